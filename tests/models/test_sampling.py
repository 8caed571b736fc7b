"""Schedules, timestep grids, overrides and one-step solvers against independent formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from worldloop.models.sampling import (
    Schedule,
    add_noise,
    plan_timesteps,
    predict_x0,
    project_to_sphere,
    timestep_grid,
)  # fmt: skip

PUBLISHED = (999, 878, 669)
GENERATOR = torch.Generator().manual_seed(0)


def alpha_bar(t: float, ratio: float = 1.0, offset: float = 0.008) -> float:
    """Cosine with its offset; log-SNR moved by 2 log(ratio)."""
    cosine = np.cos((t / 1000 + offset) / (1 + offset) * np.pi / 2) ** 2
    plain = cosine / np.cos(offset / (1 + offset) * np.pi / 2) ** 2
    if plain == 1:
        return 1.0
    log_snr = np.log(plain) - np.log1p(-plain) + 2 * np.log(ratio)
    return float(1 / (1 + np.exp(-log_snr)))


@pytest.mark.parametrize("ratio", [1.0, 0.5, 2.0, 0.25])
@pytest.mark.parametrize("t", [0, 1, 439, 669, 878, 999])
def test_schedule_equals_the_formula(t: int, ratio: float) -> None:
    law = Schedule(ratio=ratio)
    alpha, sigma = law.scales(t)

    assert law.alpha_bar(t) == pytest.approx(alpha_bar(t, ratio), rel=1e-9, abs=1e-15)
    assert alpha**2 + sigma**2 == pytest.approx(1, abs=1e-12)
    assert alpha == pytest.approx(math.sqrt(alpha_bar(t, ratio)), rel=1e-9)
    if t:
        assert law.alpha_bar(t) != pytest.approx(alpha_bar(t, ratio, offset=0.0), rel=1e-9)  # control


def test_schedule_runs_from_clean_to_noise() -> None:
    values = [Schedule().alpha_bar(t) for t in range(1000)]

    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert 0 < values[-1] < 1e-5


@pytest.mark.parametrize("t", [100, 669, 878])
def test_ratio_shifts_log_snr_by_twice_its_logarithm(t: int) -> None:
    def log_snr(ratio: float) -> float:
        alpha, sigma = Schedule(ratio=ratio).scales(t)
        return 2 * math.log(alpha / sigma)

    for ratio in (0.25, 0.5, 3.0):
        assert log_snr(ratio) - log_snr(1) == pytest.approx(2 * math.log(ratio), abs=1e-9)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_ratios_that_are_none_are_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"shifted_cosine_ratio=.* must be a finite number above 0"):
        Schedule(ratio=ratio)


def test_another_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="noise_schedule='linear' must be 'cosine'"):
        Schedule(name="linear")


def test_grid_gives_the_published_lists() -> None:
    assert timestep_grid(3, 3.0) == PUBLISHED
    assert timestep_grid(6, 3.0) == (999, 942, 878, 795, 669, 439)
    assert timestep_grid(1, 3.0) == (999,)
    assert timestep_grid(3, 2.9) != PUBLISHED  # control


@pytest.mark.parametrize("shift", [1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("steps", [2, 3, 6, 17, 32])
def test_grid_equals_a_search_for_the_shifted_angle(steps: int, shift: float) -> None:
    """The timestep whose angle has `shift` times the tangent, found by bisection instead of an inverse."""
    expected = [999]
    for k in range(1, steps):
        target = shift * math.tan((1 - k / steps + 0.008) / 1.008 * math.pi / 2)
        low, high = 0.0, 1.0
        for _ in range(80):
            middle = (low + high) / 2
            below = math.tan((middle + 0.008) / 1.008 * math.pi / 2) < target
            low, high = (middle, high) if below else (low, middle)
        expected.append(round(999 * low))

    grid = timestep_grid(steps, shift)

    assert list(grid) == expected
    assert list(grid) == sorted(set(grid), reverse=True)


@pytest.mark.parametrize("steps", [0, -1])
def test_an_empty_grid_is_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=f"steps={steps} must be at least 1"):
        timestep_grid(steps, 3.0)


@pytest.mark.parametrize("shift", [0.0, -3.0, math.nan, math.inf])
def test_a_shift_that_is_none_is_refused(shift: float) -> None:
    with pytest.raises(ValueError, match=r"timestep_shift=.* must be a finite number above 0"):
        timestep_grid(1, shift)


@pytest.mark.parametrize(
    ("nfe", "mode", "expected"),
    [
        (None, "repeat", PUBLISHED),
        (None, "grid", PUBLISHED),
        (3, "repeat", PUBLISHED),
        (4, "repeat", (999, 878, 669, 669)),
        (5, "repeat", (999, 878, 878, 669, 669)),
        (6, "repeat", (999, 999, 878, 878, 669, 669)),
        (6, "grid", (999, 942, 878, 795, 669, 439)),
        (1, "grid", (999,)),
    ],
)
def test_overrides(nfe: int | None, mode: str, expected: tuple[int, ...]) -> None:
    assert plan_timesteps(PUBLISHED, 3.0, nfe=nfe, mode=mode) == expected


@pytest.mark.parametrize("nfe", range(3, 33))
def test_repeat_uses_only_the_checkpoints_own(nfe: int) -> None:
    plan = plan_timesteps(PUBLISHED, 3.0, nfe=nfe, mode="repeat")

    assert len(plan) == nfe
    assert set(plan) == set(PUBLISHED)
    assert list(plan) == sorted(plan, reverse=True)


@pytest.mark.parametrize(
    ("nfe", "mode", "message"),
    [
        (2, "repeat", "nfe=2 in mode 'repeat' must be at least the checkpoint's own 3"),
        (0, "grid", r"nfe=0 must be an integer in 1\.\.32"),
        (33, "grid", r"nfe=33 must be an integer in 1\.\.32"),
        (33, "repeat", r"nfe=33 must be an integer in 1\.\.32"),
        (-1, "repeat", r"nfe=-1 must be an integer in 1\.\.32"),
        (3, "twice", "nfe_mode='twice' must be 'repeat' or 'grid'"),
        (None, "", "nfe_mode='' must be"),
    ],
)
def test_overrides_that_cannot_be_are_refused(nfe: int | None, mode: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_timesteps(PUBLISHED, 3.0, nfe=nfe, mode=mode)


@pytest.mark.parametrize("t", [0, 669, 999])
def test_solver_identities(t: int) -> None:
    x0, noise = torch.randn(2, 5, 48, dtype=torch.float64, generator=GENERATOR)
    alpha, sigma = Schedule().scales(t)
    x_t = add_noise(x0, noise, alpha, sigma)
    v = alpha * noise - sigma * x0

    assert (x_t - (math.sqrt(alpha_bar(t)) * x0 + math.sqrt(1 - alpha_bar(t)) * noise)).abs().max() < 1e-7
    assert (predict_x0(x_t, v, alpha, sigma) - x0).abs().max() < 1e-12
    assert (sigma * x_t + alpha * v - noise).abs().max() < 1e-12
    assert (predict_x0(x_t, -v, alpha, sigma) - x0).abs().max() > 0.1 or sigma == 0  # control


def test_sphere_has_radius_root_c_and_keeps_the_direction() -> None:
    x = torch.randn(1, 7, 48, dtype=torch.float64, generator=GENERATOR) * 5
    on = project_to_sphere(x)

    assert np.linalg.norm(on.numpy(), axis=-1) == pytest.approx(np.full((1, 7), math.sqrt(48)), abs=1e-12)
    assert (on / on.norm(dim=-1, keepdim=True) - x / x.norm(dim=-1, keepdim=True)).abs().max() < 1e-12
    assert torch.allclose(project_to_sphere(on), on, atol=1e-12)
    assert torch.equal(project_to_sphere(torch.zeros(2, 48)), torch.zeros(2, 48))
