"""Flow matching: the noise law, its steps from high to low, and two solvers. Pure functions of numbers and tensors.

    x = (1 - sigma) * x0 + sigma * noise,    v = noise - x0,    x0 = x - sigma * v,    timestep = 1000 * sigma

Source: flow matching (Lipman et al. 2023, arXiv:2210.02747) with the resolution shift of Esser et al. 2024
(arXiv:2403.03206, section 5.3.2); few-step students that re-noise x0 after Self-Forcing (Huang et al. 2025,
arXiv:2506.08009). Owns no noise: it comes in. Called by `loops.video` and by whoever trains a video model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

TRAIN_STEPS = 1000
MAX_STEPS = 200

SigmaT = TypeVar("SigmaT", float, Tensor)

Solver = Literal["euler", "renoise"]
"""`euler` follows the velocity; `renoise` goes to x0 and adds fresh noise, as few-step students are trained to."""

SOLVERS: tuple[str, ...] = get_args(Solver)


def shifted(sigma: SigmaT, shift: float) -> SigmaT:
    """Sigma in [0, 1] after a shift, which moves time towards noise: s * sigma / (1 + (s - 1) * sigma)."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def sigma_grid(steps: int, shift: float) -> tuple[float, ...]:
    """The sigmas of `steps` passes from 1 down, then 0; `steps + 1` numbers.

    Shift 5 with 4 steps gives 1, 0.9375, 0.8333, 0.625, 0: the timesteps 1000, 937.5, 833.3, 625 of Self-Forcing.

    Raises:
        ValueError: out of range.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps={steps!r} must be an integer in 1..{MAX_STEPS}")
    if not 0 < shift < math.inf:
        raise ValueError(f"shift={shift!r} must be a finite number above 0")
    return tuple(shifted((steps - k) / steps, shift) for k in range(steps + 1))


def timestep(sigma: float) -> float:
    """What the network is told of a sigma; 0 is clean."""
    return TRAIN_STEPS * sigma


def mix(x0: Tensor, noise: Tensor, sigma: float | Tensor) -> Tensor:
    """x at sigma, in x0's dtype. A tensor of sigmas must broadcast."""
    return ((1 - sigma) * x0.double() + sigma * noise.double()).to(x0.dtype)


def velocity(x0: Tensor, noise: Tensor) -> Tensor:
    """v, what the network is trained to predict."""
    return noise - x0


def predict_clean(x: Tensor, v: Tensor, sigma: float) -> Tensor:
    """x0 from a prediction. In float64 with one rounding: near sigma 1 it is a difference of large numbers."""
    return (x.double() - sigma * v.double()).to(x.dtype)


def guide(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance (Ho & Salimans 2022, arXiv:2207.12598): scale 1 is `cond`."""
    return uncond + scale * (cond - uncond)


def solve(
    solver: str, x: Tensor, v: Tensor, sigma: float, after: float, fresh: Callable[[], Tensor]
) -> Tensor:
    """One step from `sigma` to `after`; `after` 0 is the clean latent, the same for both solvers.

    Args:
        solver: one of `SOLVERS`.
        x, v: latent and predicted velocity, the same shape.
        fresh: makes the noise of this step; only asked when it is used.
    """
    check_solver(solver)
    if after == 0:
        return predict_clean(x, v, sigma)
    if solver == "euler":
        return (x.double() + (after - sigma) * v.double()).to(x.dtype)
    return mix(predict_clean(x, v, sigma), fresh(), after)


def check_solver(solver: str) -> None:
    """ValueError unless it is one of `SOLVERS`."""
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r} must be {' or '.join(SOLVERS)}")


def latent_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of latents and velocities beside a network in `dtype`: at least float32."""
    return torch.promote_types(dtype, torch.float32)
