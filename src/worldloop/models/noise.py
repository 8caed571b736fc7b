"""Counter-based noise: standard normals as a pure function of (seed, frame, pass), the same on every machine.

Philox4x64-10 counts, Box-Muller turns pairs of 32-bit words into normals in float64. Nothing here has state, so a
step can be run again and a session replayed. Called by `loops`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

SEED_LIMIT = 2**32


def check_seed(seed: int) -> int:
    """The seed, or ValueError unless it is an integer in [0, 2**32)."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
        raise ValueError(f"seed={seed!r} must be an integer in [0, {SEED_LIMIT})")
    return seed


def normal(shape: tuple[int, ...], *, seed: int, frame: int, step: int) -> Tensor:
    """Standard normals, float32 on the CPU.

    Args:
        shape: of the result.
        seed: in [0, 2**32).
        frame: latent frame number, at least 0.
        step: denoising call within the frame, at least 0.
    """
    count = math.prod(shape)
    pairs = (count + 1) // 2
    stream = np.random.Philox(key=[check_seed(seed), 0], counter=[0, 0, step, frame])
    words = stream.random_raw(pairs)
    radius = np.sqrt(-2.0 * np.log(((words >> 32).astype(np.float64) + 1.0) / SEED_LIMIT))
    angle = (words & 0xFFFFFFFF).astype(np.float64) * (2.0 * math.pi / SEED_LIMIT)
    values = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)
