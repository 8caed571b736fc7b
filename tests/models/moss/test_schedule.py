"""Sigmas against a search of the grid in float64, golden numbers, ties, and the Euler step in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldloop.models.flow import MAX_STEPS
from worldloop.models.moss.schedule import euler, sigmas, timestep, timesteps

from . import reference

GOLDEN = {5: (1000, 938, 835, 630, 24), 4: (1000, 910, 717, 24), 1: (1000,), 2: (1000, 24)}


@pytest.mark.parametrize("steps", GOLDEN)
def test_golden_timesteps(steps: int) -> None:
    assert timesteps(steps, 5.0) == GOLDEN[steps]


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.5, 3.0, 5.0, 12.0])
@pytest.mark.parametrize("steps", [1, 3, 8, 50, 77, MAX_STEPS])
def test_timesteps_are_the_nearest_of_the_grid(steps: int, shift: float) -> None:
    assert list(timesteps(steps, shift)) == reference.timesteps(steps, shift)


def test_a_tie_goes_to_the_lower_one() -> None:
    # At shift 1 the middle of three is exactly 500.5.
    assert timesteps(3, 1.0) == (1000, 500, 1)
    assert reference.timesteps(3, 1.0) == [1000, 500, 1]
    assert reference.timesteps(3, 1.0, high=True) == [1000, 501, 1]  # planted: ties high


def test_duplicates_are_dropped() -> None:
    few = timesteps(200, 400.0)

    assert len(few) < 200
    assert list(few) == sorted(set(few), reverse=True)


def test_sigmas_end_at_zero_and_name_whole_timesteps() -> None:
    assert sigmas(5, 5.0) == (1.0, 0.938, 0.835, 0.63, 0.024, 0.0)
    assert [timestep(k / 1000) for k in range(1001)] == list(range(1001))


@pytest.mark.parametrize("steps", [0, -1, MAX_STEPS + 1, True, 5.0, "5"])
def test_steps_out_of_range_are_refused(steps: object) -> None:
    with pytest.raises(ValueError, match=r"steps=.* must be an integer in 1\.\.200"):
        timesteps(steps, 5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("shift", [0.0, -1.0, float("nan"), float("inf")])
def test_a_shift_out_of_range_is_refused(shift: float) -> None:
    with pytest.raises(ValueError, match=r"shift=.* must be a finite number above 0"):
        timesteps(5, shift)


def test_a_step_is_float32_arithmetic_in_a_fixed_order() -> None:
    x, v = torch.randn(2, 1000, generator=torch.Generator().manual_seed(1))
    step = np.float32(0.835) - np.float32(0.938)

    moved = euler(x, v, 0.938, 0.835)

    assert moved.dtype == torch.float32
    assert np.array_equal(moved.numpy(), x.numpy() + step * v.numpy())
    exact = x.double() + (0.835 - 0.938) * v.double()
    assert 0 < (moved - exact).abs().max() < 1e-6
    # Planted: float64 with one rounding, as `flow` does it, is not the same.
    assert not np.array_equal(moved.numpy(), exact.float().numpy())
