"""MOSS-Image's sigmas and its Euler step. Pure functions of numbers and tensors.

    v = linspace(1, s / (T + s - 1), N),    sigma = s v / (1 + (s - 1) v),    snapped to k / T, ties low

Flow matching with the resolution shift of Esser et al. 2024 (arXiv:2403.03206, section 5.3.2). Sigmas are exact
fractions until they are snapped, so no rounding of a machine decides a tie. Called by `loops.moss_pictures`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from torch import Tensor

from worldloop.models.flow import MAX_STEPS


def timesteps(steps: int, shift: float, train_steps: int = 1000) -> tuple[int, ...]:
    """What the network is told at each pass, high to low; duplicates are dropped, so it may be fewer than `steps`.

    Five steps at shift 5 are 1000, 938, 835, 630, 24.

    Raises:
        ValueError: out of range.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps={steps!r} must be an integer in 1..{MAX_STEPS}")
    if isinstance(shift, bool) or not 0 < shift < math.inf:
        raise ValueError(f"shift={shift!r} must be a finite number above 0")
    s = Fraction(shift)
    last = s / (train_steps + s - 1)
    found = []
    for i in range(steps):
        v = 1 - (1 - last) * Fraction(i, max(steps - 1, 1))
        sigma = s * v / (1 + (s - 1) * v)
        found.append(math.ceil(sigma * train_steps - Fraction(1, 2)))
    return tuple(dict.fromkeys(found))


def sigmas(steps: int, shift: float, train_steps: int = 1000) -> tuple[float, ...]:
    """Sigmas of the passes, then 0: one more than `timesteps`. ValueError when out of range."""
    return (*(k / train_steps for k in timesteps(steps, shift, train_steps)), 0.0)


def timestep(sigma: float, train_steps: int = 1000) -> int:
    """What the network is told of one of `sigmas`."""
    return round(sigma * train_steps)


def euler(x: Tensor, velocity: Tensor, sigma: float, after: float) -> Tensor:
    """x after a step along the velocity; all of it in float32, the product rounded before it is added."""
    step = float(np.float32(after) - np.float32(sigma))
    return x.float() + step * velocity.float()
