"""The noise law, golden steps, and both solvers against their formulas."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from worldloop.models.flow import (
    MAX_STEPS,
    guide,
    latent_dtype,
    mix,
    predict_clean,
    shifted,
    sigma_grid,
    solve,
    timestep,
    velocity,
)  # fmt: skip

GOLDEN = {
    (4, 5.0): (1.0, 0.9375, 5 / 6, 0.625, 0.0),
    (2, 5.0): (1.0, 5 / 6, 0.0),
    (4, 1.0): (1.0, 0.75, 0.5, 0.25, 0.0),
    (3, 8.0): (1.0, 16 / 17, 0.8, 0.0),
    (1, 5.0): (1.0, 0.0),
}


@pytest.mark.parametrize(("steps", "shift"), GOLDEN)
def test_the_golden_grids(steps: int, shift: float) -> None:
    assert sigma_grid(steps, shift) == pytest.approx(GOLDEN[steps, shift], abs=1e-15)


def test_four_steps_are_the_timesteps_of_self_forcing() -> None:
    told = [round(timestep(sigma), 1) for sigma in sigma_grid(4, 5.0)[:-1]]

    assert told == [1000.0, 937.5, 833.3, 625.0]
    assert told != [round(timestep(sigma), 1) for sigma in sigma_grid(4, 8.0)[:-1]]  # control: another shift


def test_a_shift_keeps_both_ends_and_moves_towards_noise() -> None:
    assert (shifted(0.0, 5.0), shifted(1.0, 5.0)) == (0.0, 1.0)
    assert all(shifted(k / 10, 5.0) > k / 10 for k in range(1, 10))


@pytest.mark.parametrize("steps", [0, MAX_STEPS + 1, True, 2.0])
def test_a_number_of_steps_out_of_range_is_refused(steps: Any) -> None:
    with pytest.raises(ValueError, match=f"must be an integer in 1..{MAX_STEPS}"):
        sigma_grid(steps, 5.0)


@pytest.mark.parametrize("shift", [0.0, -1.0, float("inf"), float("nan")])
def test_a_shift_out_of_range_is_refused(shift: float) -> None:
    with pytest.raises(ValueError, match="finite number above 0"):
        sigma_grid(4, shift)


def pair(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x0, noise = torch.randn(2, 2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return x0.to(dtype), noise.to(dtype)


def nothing() -> Tensor:
    raise AssertionError("no noise is needed")


@pytest.mark.parametrize("sigma", [1.0, 0.9375, 0.3])
def test_x0_comes_back_from_x_and_v(sigma: float) -> None:
    x0, noise = pair()
    x, v = mix(x0, noise, sigma), velocity(x0, noise)

    assert torch.allclose(predict_clean(x, v, sigma), x0, atol=1e-12)
    assert not torch.allclose(predict_clean(x, -v, sigma), x0, atol=1e-2)  # control: the other sign


def test_x0_is_rounded_once() -> None:
    x0, noise = pair(torch.float32)
    sigma = 5 / 6
    x, v = mix(x0, noise * 1000, sigma), velocity(x0, noise * 1000)
    exact = (x.double() - sigma * v.double()).float()

    assert torch.equal(predict_clean(x, v, sigma), exact)
    assert predict_clean(x, v, sigma).dtype == torch.float32
    assert not torch.equal(x - sigma * v, exact)  # control: in float32 throughout


@pytest.mark.parametrize("solver", ["euler", "renoise"])
def test_a_perfect_network_lands_on_x0(solver: str) -> None:
    x0, noise = pair()
    grid = sigma_grid(5, 5.0)
    x = noise
    for sigma, after in itertools.pairwise(grid):
        v = (x - x0) / sigma
        x = solve(solver, x, v, sigma, after, (lambda: noise) if solver == "renoise" else nothing)

    assert torch.allclose(x, x0, atol=1e-12)


def test_the_solvers_are_their_formulas() -> None:
    x0, noise = pair()
    fresh = noise.flip(0)
    x, v = mix(x0, noise, 0.8), noise * 0.3

    assert torch.allclose(solve("euler", x, v, 0.8, 0.5, nothing), x - 0.3 * v, atol=1e-12)
    renoised = solve("renoise", x, v, 0.8, 0.5, lambda: fresh)
    assert torch.allclose(renoised, 0.5 * (x - 0.8 * v) + 0.5 * fresh, atol=1e-12)
    assert not torch.allclose(renoised, solve("euler", x, v, 0.8, 0.5, nothing), atol=1e-2)
    assert torch.equal(solve("renoise", x, v, 0.8, 0.0, nothing), solve("euler", x, v, 0.8, 0.0, nothing))


def test_an_unknown_solver_is_refused() -> None:
    with pytest.raises(ValueError, match="solver='heun' must be euler or renoise"):
        solve("heun", *pair(), 1.0, 0.5, nothing)


def test_guidance() -> None:
    cond, uncond = pair()

    assert torch.allclose(guide(cond, uncond, 1.0), cond)
    assert torch.equal(guide(cond, uncond, 0.0), uncond)
    assert torch.allclose(guide(cond, uncond, 3.0), 3 * cond - 2 * uncond)


def test_latents_are_at_least_float32() -> None:
    made = [latent_dtype(dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64)]

    assert made == [torch.float32, torch.float32, torch.float64]
