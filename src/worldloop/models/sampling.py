"""Noise schedules, timestep grids and one-step solvers: pure functions of numbers and tensors.

Owns the law of the published sampler: a variance-preserving cosine schedule (Nichol & Dhariwal 2021,
arXiv:2102.09672) with the log-SNR shift of simple diffusion (Hoogeboom et al. 2023, arXiv:2301.11093), v-prediction
(Salimans & Ho 2022, arXiv:2202.00512), and few-step sampling that re-noises x0 with fresh noise between passes.
Called by `loops` and `trainer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

TRAIN_STEPS = 1000
OFFSET = 0.008
MAX_NFE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Noise law of a checkpoint.

    Attributes:
        name: `cosine`, the only one.
        ratio: shifts log-SNR by 2 log(ratio); 1 leaves the cosine as it is.
    """

    name: str = "cosine"
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.name != "cosine":
            raise ValueError(f"noise_schedule={self.name!r} must be 'cosine'")
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"shifted_cosine_ratio={self.ratio!r} must be a finite number above 0")

    def alpha_bar(self, timestep: float) -> float:
        """Share of signal variance at a timestep in [0, 999]."""
        plain = math.cos(_angle(timestep / TRAIN_STEPS)) ** 2 / math.cos(_angle(0.0)) ** 2
        if self.ratio == 1.0 or plain >= 1.0:
            return min(plain, 1.0)
        snr = plain / (1.0 - plain) * self.ratio**2
        return snr / (1.0 + snr)

    def scales(self, timestep: float) -> tuple[float, float]:
        """(alpha, sigma): x_t = alpha * x0 + sigma * noise."""
        share = self.alpha_bar(timestep)
        return math.sqrt(share), math.sqrt(1.0 - share)


def timestep_grid(steps: int, shift: float) -> tuple[int, ...]:
    """The `steps` timesteps of a frame, high to low, first 999. Shift 3 with 3 steps gives 999, 878, 669."""
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    if not 0 < shift < math.inf:
        raise ValueError(f"timestep_shift={shift!r} must be a finite number above 0")
    grid = [TRAIN_STEPS - 1]
    for k in range(1, steps):
        moved = math.atan(shift * math.tan(_angle(1.0 - k / steps)))
        grid.append(round((TRAIN_STEPS - 1) * _angle_inverse(moved)))
    return tuple(grid)


def plan_timesteps(own: Sequence[int], shift: float, *, nfe: int | None, mode: str) -> tuple[int, ...]:
    """Timesteps of one frame's denoising calls under an override of their number.

    Args:
        own: the checkpoint's timesteps, high to low.
        shift: its timestep shift.
        nfe: calls a frame in 1..32, or None for the checkpoint's own.
        mode: `repeat` calls the checkpoint's own timesteps several times, the remainder on the lowest; `grid` rebuilds
            the grid at `nfe` points.

    Raises:
        ValueError: out of range, an unknown mode, or fewer calls than the checkpoint's own in `repeat`.
    """
    if mode not in ("repeat", "grid"):
        raise ValueError(f"nfe_mode={mode!r} must be 'repeat' or 'grid'")
    if nfe is None or nfe == len(own):
        return tuple(own)
    if isinstance(nfe, bool) or not isinstance(nfe, int) or not 1 <= nfe <= MAX_NFE:
        raise ValueError(f"nfe={nfe!r} must be an integer in 1..{MAX_NFE}")
    if mode == "grid":
        return timestep_grid(nfe, shift)
    if nfe < len(own):
        raise ValueError(f"nfe={nfe} in mode 'repeat' must be at least the checkpoint's own {len(own)} calls")
    each, extra = divmod(nfe, len(own))
    return tuple(t for k, t in enumerate(own) for _ in range(each + (k >= len(own) - extra)))


def predict_x0(x_t: Tensor, v: Tensor, alpha: float, sigma: float) -> Tensor:
    """x0 from a v-prediction: alpha * x_t - sigma * v."""
    return alpha * x_t - sigma * v


def add_noise(x0: Tensor, noise: Tensor, alpha: float, sigma: float) -> Tensor:
    """x_t = alpha * x0 + sigma * noise."""
    return alpha * x0 + sigma * noise


def project_to_sphere(x: Tensor) -> Tensor:
    """Put every cell's vector `[..., C]` on the sphere of radius sqrt(C); a zero vector stays."""
    norm = x.norm(dim=-1, keepdim=True)
    scale: Tensor = math.sqrt(x.shape[-1]) / norm.clamp_min(1e-12)
    return x * scale


def _angle(u: float) -> float:
    return (u + OFFSET) / (1.0 + OFFSET) * math.pi / 2


def _angle_inverse(angle: float) -> float:
    return angle * (1.0 + OFFSET) / (math.pi / 2) - OFFSET
