"""Noise laws, grids of timesteps, solvers, guidance and the sphere.

Schedules are numbers of Python, in float64; solvers work on latents in float32, those of the videos in float64 with one
rounding a step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldloop.models.flow import guide, mix, predict_clean, sigma_grid, solve
from worldloop.models.sampling import Schedule, add_noise, predict_x0, project_to_sphere, timestep_grid

from ..arithmetic import HALF, Arithmetic, Array
from ..registry import Case, Entry, Truth, normals

DOUBLE = torch.float64
LATENT = (6, 60, 48)
"""Frames, cells and channels of latents; a row is a frame."""


# -- schedules ----------------------------------------------------------------------------------------------------
def scales(timesteps: Tensor, *, ratio: float) -> Tensor:
    """(alpha, sigma) of every timestep, `[T, 2]`."""
    schedule = Schedule(ratio=ratio)
    return torch.tensor([schedule.scales(float(t)) for t in timesteps], dtype=DOUBLE)


def scales_truth(arithmetic: Arithmetic, timesteps: Array, *, ratio: float) -> Truth:
    """Signal and noise apart, by products of sines: cos^2 a0 - cos^2 a = sin(a - a0) sin(a + a0)."""
    keep = arithmetic.keep
    first = keep(np.asarray(0.008 / 1.008 * math.pi / 2))
    step = keep(timesteps / 1000 / 1.008 * math.pi / 2)
    signal = keep(np.cos(step + first) ** 2)
    noise = keep(np.sin(step) * np.sin(step + 2 * first))
    both = keep(ratio**2 * signal + noise)
    value = np.stack((ratio * np.sqrt(signal / both), np.sqrt(noise / both)), -1)
    signal, noise = signal / (signal + noise), noise / (signal + noise)
    # An error of the angle or the signal is one of the signal-to-noise ratio, larger by 1 / noise: noise is 1 - signal.
    tangent = np.tan(step + first) * (step + first)
    off = np.divide(1 + tangent, noise, out=np.zeros_like(noise), where=noise > 0)
    alpha, sigma = value.T
    back = np.divide(alpha**2, sigma, out=np.zeros_like(sigma), where=sigma > 0)
    inner = np.stack((alpha * (1 + sigma**2 * off), sigma * (1 + alpha**2 * off) + back), -1)
    return Truth(value=value, inner=inner)


def grid(steps: Tensor, *, shift: float) -> Tensor:
    """The first three and the last timestep of grids, `[T, 4]`."""
    grids = [timestep_grid(int(n), shift) for n in steps]
    return torch.tensor([[*each[:3], each[-1]] for each in grids])


def grid_truth(arithmetic: Arithmetic, steps: Array, *, shift: float) -> Truth:
    """By bisection: the timestep whose angle has `shift` times the tangent."""

    def angle(u: float) -> float:
        return (u + 0.008) / 1.008 * math.pi / 2

    def moved(u: float) -> float:
        low, high = -1.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if math.tan(angle(middle)) < shift * math.tan(angle(u)) else (low, middle)
            )
        return float(arithmetic.keep(np.asarray(low)))

    value = np.array([[999 * moved(1 - k / n) for k in (0, 1, 2, n - 1)] for n in steps.tolist()])
    return Truth(value=value, inner=value, whole=True)


def sigmas(steps: Tensor, *, shift: float) -> Tensor:
    """The first three and the last two sigmas of grids, `[T, 5]`."""
    grids = [sigma_grid(int(n), shift) for n in steps]
    return torch.tensor([[*each[:3], *each[-2:]] for each in grids], dtype=DOUBLE)


def sigmas_truth(arithmetic: Arithmetic, steps: Array, *, shift: float) -> Truth:
    """sigma / (1 - sigma) is multiplied by the shift."""
    keep = arithmetic.keep
    left = np.array([[n, n - 1, n - 2, 1, 0] for n in steps.tolist()], dtype=float)
    done = steps[:, None] - left
    value = keep(keep(shift * left) / keep(shift * left + done))
    return Truth(value=value, inner=value)


# -- solvers ------------------------------------------------------------------------------------------------------
def combine(arithmetic: Arithmetic, *pairs: tuple[float, Array]) -> Truth:
    """A sum of numbers times tensors."""
    value, size = np.zeros_like(pairs[0][1]), np.zeros_like(pairs[0][1])
    for factor, tensor in pairs:
        value = arithmetic.keep(value + arithmetic.keep(factor * tensor))
        size = size + np.abs(factor * tensor)
    return Truth(value=value, inner=size)


def guided(arithmetic: Arithmetic, cond: Array, uncond: Array, *, scale: float) -> Truth:
    keep = arithmetic.keep
    value = keep(uncond + keep(scale * keep(cond - uncond)))
    return Truth(value=value, inner=np.abs(uncond) + abs(scale) * (np.abs(cond) + np.abs(uncond)))


def renoised(
    arithmetic: Arithmetic, x: Array, v: Array, fresh: Array, *, sigma: float, after: float
) -> Truth:
    """Through x0, which is rounded to the latent's format."""
    clean = arithmetic.keep(x - sigma * v)
    found = combine(arithmetic, (1 - after, clean), (after, fresh))
    size = (1 - after) * (np.abs(x) + np.abs(sigma * v)) + np.abs(after * fresh)
    return Truth(value=found.value, inner=size, outer=np.abs(found.value) + (1 - after) * np.abs(clean))


def sphere(arithmetic: Arithmetic, x: Array) -> Truth:
    """Length sqrt(C); nothing stays nothing."""
    keep = arithmetic.keep
    length = np.sqrt(keep(arithmetic.total(keep(x * x))))[..., None]
    value = keep(x / np.maximum(length, 1e-12) * math.sqrt(x.shape[-1]))
    return Truth(value=value, inner=np.abs(value))


def latents(count: int, *options: dict[str, Any]) -> list[Case]:
    """Latents of several sizes, and of nothing."""
    inputs = tuple(
        normals(*LATENT, seed=i) * torch.logspace(-3, 3, LATENT[0])[:, None, None] for i in range(count)
    )
    inputs[0][1, :7] = 0
    return [Case(name=", ".join(f"{k} {v:g}" for k, v in each.items()) or "latents", inputs=inputs, options=each)
            for each in options or ({},)]  # fmt: skip


def world_scales() -> list[dict[str, Any]]:
    """Of the timesteps that are served."""
    found = [
        Schedule(ratio=ratio).scales(t)
        for t, ratio in ((999, 1.0), (878, 1.0), (669, 0.5), (548, 1.0), (0, 1.0))
    ]
    return [{"alpha": alpha, "sigma": sigma} for alpha, sigma in found]


STEPS = [{"sigma": 1.0, "after": 0.9375}, {"sigma": 0.9375, "after": 5 / 6}, {"sigma": 0.625, "after": 0.0}]
SIGMAS = [{"sigma": 1.0}, {"sigma": 0.9375}, {"sigma": 5 / 6}, {"sigma": 0.0}]

ENTRIES = [
    Entry(
        name="schedule/world scales",
        run=scales,
        truth=scales_truth,
        cases=lambda: [
            Case(
                name=f"ratio {ratio:g}",
                inputs=(torch.tensor([0.0, 1, 24, 439, 548, 669, 820, 878, 942, 999]),),
                options={"ratio": ratio},
            )
            for ratio in (1.0, 0.5, 2.0)
        ],
        rows=(True,),
        inner=DOUBLE,
        inner_roundings=6,
        why="float64: two angles, two cosines squared, their quotient, signal to noise, root",
        host=True,
    ),
    Entry(
        name="schedule/world timesteps",
        run=grid,
        truth=grid_truth,
        cases=lambda: [
            Case(
                name=f"shift {shift:g}",
                inputs=(torch.tensor([3, 4, 6, 9, 17, 32]),),
                options={"shift": shift},
            )
            for shift in (3.0, 2.0, 1.0)
        ],
        rows=(True,),
        inner=DOUBLE,
        inner_roundings=9,
        why="float64: to the angle 3, tangent, factor, its inverse, and back 3; then the nearest whole number",
        fewer=HALF,  # whole numbers up to 999 hide single precision
        host=True,
    ),
    Entry(
        name="schedule/flow sigmas",
        run=sigmas,
        truth=sigmas_truth,
        cases=lambda: [
            Case(
                name=f"shift {shift:g}", inputs=(torch.tensor([3, 4, 9, 50, 200]),), options={"shift": shift}
            )
            for shift in (1.0, 5.0, 8.0, 0.3)
        ],
        rows=(True,),
        inner=DOUBLE,
        inner_roundings=6,
        why="float64: quotient, two products, difference, sum, quotient",
        host=True,
    ),
    Entry(
        name="solver/world x0",
        run=predict_x0,
        truth=lambda a, x, v, *, alpha, sigma: combine(a, (alpha, x), (-sigma, v)),
        cases=lambda: latents(2, *world_scales()),
        rows=(True, True),
        inner_roundings=2,
        why="each factor and each product are rounded, then the sum",
    ),
    Entry(
        name="solver/world noise",
        run=add_noise,
        truth=lambda a, x0, noise, *, alpha, sigma: combine(a, (alpha, x0), (sigma, noise)),
        cases=lambda: latents(2, *world_scales()),
        rows=(True, True),
        inner_roundings=2,
        why="each factor and each product are rounded, then the sum",
    ),
    Entry(
        name="solver/sphere",
        run=project_to_sphere,
        truth=sphere,
        cases=lambda: latents(1),
        rows=(True,),
        inner_roundings=7,
        why="8 of a sum of squares, half of it in the root; root, quotient, product",
    ),
    Entry(
        name="solver/flow x0",
        run=predict_clean,
        truth=lambda a, x, v, *, sigma: combine(a, (1.0, x), (-sigma, v)),
        cases=lambda: latents(2, *SIGMAS),
        rows=(True, True),
        inner=DOUBLE,
        inner_roundings=3,
        why="float64, then one rounding",
    ),
    Entry(
        name="solver/flow mix",
        run=mix,
        truth=lambda a, x0, noise, *, sigma: combine(a, (1 - sigma, x0), (sigma, noise)),
        cases=lambda: latents(2, *SIGMAS),
        rows=(True, True),
        inner=DOUBLE,
        inner_roundings=3,
        why="float64, then one rounding",
    ),
    Entry(
        name="solver/euler",
        run=lambda x, v, *, sigma, after: solve("euler", x, v, sigma, after, lambda: x),
        truth=lambda a, x, v, *, sigma, after: combine(a, (1.0, x), (after - sigma, v)),
        cases=lambda: latents(2, *STEPS),
        rows=(True, True),
        inner=DOUBLE,
        inner_roundings=3,
        why="float64, then one rounding",
    ),
    Entry(
        name="solver/renoise",
        run=lambda x, v, fresh, *, sigma, after: solve("renoise", x, v, sigma, after, lambda: fresh),
        truth=renoised,
        cases=lambda: latents(3, *STEPS),
        rows=(True, True, True),
        inner=DOUBLE,
        inner_roundings=4,
        why="float64, one rounding of x0 and one of the result",
    ),
    Entry(
        name="solver/guidance",
        run=guide,
        truth=guided,
        cases=lambda: latents(2, {"scale": 3.0}, {"scale": 7.5}, {"scale": 0.0}, {"scale": 1.0}),
        rows=(True, True),
        inner_roundings=3,
        why="difference, factor and product are rounded, then the sum",
    ),
]
