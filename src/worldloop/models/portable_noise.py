"""Portable noise: the normals that PyTorch draws on an x86 processor with AVX2, in arithmetic that any CPU repeats.

A picture model's published noise is what `torch.randn` gives on such a processor; elsewhere PyTorch takes the same
uniforms through other logarithms and sines, and the picture changes. Here every step is an integer operation or one
correctly rounded float32 or float64 operation, so the bytes hang on no C library, processor or number of threads.

    MT19937 (Matsumoto & Nishimura 1998) -> 24-bit uniforms -> groups of 16: 8 radii, 8 angles -> Box-Muller, 8 + 8

Logarithm, sine and cosine are the single-precision polynomials of the Cephes library (Moshier). A multiplication whose
only use is an addition is fused with it, as the compiler of that build does. Has no state. Called by picture loops;
`noise` is the generator of the worlds and videos.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldloop.models.noise import check_seed

GROUP = 16
BLOCK = 2**14
"""Pairs that are worked on at once, so that they stay in the processor's cache."""

Floats = NDArray[np.float32]

_SQRT_HALF = np.float32(0.707106781186547524)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOG = np.array(
    (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
     2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    dtype=np.float32,
)  # fmt: skip
_FOUR_OVER_PI = np.float32(1.27323954473516)
_MINUS_PI_OVER_4 = np.array((-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8), np.float32)
_SIN = np.array((-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1), dtype=np.float32)
_COS = np.array((2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2), dtype=np.float32)
_ONE, _HALF, _TWO_PI = np.float32(1), np.float32(0.5), np.float32(2 * math.pi)


def portable_normal(shape: tuple[int, ...], *, seed: int) -> Tensor:
    """Standard normals, float32 on the CPU: `torch.randn` of a fresh generator on an x86 processor with AVX2.

    Args:
        shape: of the result, at least 16 numbers: fewer go another way in PyTorch, which no other processor repeats.
        seed: in [0, 2**32).

    Raises:
        ValueError: a seed out of range, or fewer than 16 numbers.
    """
    count = math.prod(shape)
    if count < GROUP:
        raise ValueError(f"portable noise of shape {shape} has {count} numbers; it takes at least {GROUP}")
    whole = count - count % GROUP
    uniform = _uniform(count + GROUP, check_seed(seed))
    normal = np.empty(count, np.float32)
    normal[:whole] = _box_muller(uniform[:whole])
    if whole < count:  # an incomplete last group: the last 16 numbers are drawn anew
        normal[-GROUP:] = _box_muller(uniform[count:])
    return torch.from_numpy(normal).reshape(shape)


def portable_rows(grid: tuple[int, int], channels: int, *, seed: int) -> Tensor:
    """Noise of one picture as token rows, float32 `[h * w, C]`: drawn channel by channel, `[C, h, w]`, then turned.

    Args:
        grid: (h, w) of the latent.
        channels: C.
        seed: see `portable_normal`, which also says what raises.
    """
    return portable_normal((channels, *grid), seed=seed).flatten(1).t().contiguous()


def _uniform(count: int, seed: int) -> Floats:
    """Numbers in [0, 1): the low 24 bits of each word."""
    words = np.random.RandomState(seed).randint(0, 2**32, count, np.uint32)
    return (words & 0xFFFFFF).astype(np.float32) * np.float32(2.0**-24)


def _box_muller(uniform: Floats) -> Floats:
    """Groups of 8 radii and 8 angles to groups of 8 cosines and 8 sines."""
    groups = uniform.reshape(-1, 2, GROUP // 2)
    result = np.empty_like(groups)
    for start in range(0, len(groups), BLOCK // 8):
        part = slice(start, start + BLOCK // 8)
        radius = np.sqrt(np.float32(-2) * _log(_ONE - groups[part, 0]))
        sine, cosine = _sine_cosine(_TWO_PI * groups[part, 1])
        # The build multiplies by a deviation of 1 and adds a mean of 0, which makes a plus of a minus zero.
        result[part, 0] = radius * cosine + np.float32(0)
        result[part, 1] = radius * sine + np.float32(0)
    return result.reshape(-1)


def _fused(a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    """a * b + c rounded once to float32.

    The product is exact in float64. Its sum is rounded to odd, which makes the second rounding the only one that
    shows (Boldo & Melquiond 2008): float64 has more than twice the digits of float32, and two.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    bits = total.view(np.int64)
    lossy = (error != 0) & (bits & 1 == 0)
    bits += np.where((error > 0) == (total > 0), lossy, -lossy.astype(np.int64))
    return total.astype(np.float32)


def _log(x: Floats) -> Floats:
    """Natural logarithm of numbers in (0, 1]."""
    bits = x.view(np.int32)
    e = ((bits >> 23) - 0x7F).astype(np.float32) + _ONE
    m = ((bits & ~0x7F800000) | 0x3F000000).view(np.float32)
    small = m < _SQRT_HALF
    e -= small
    m = m - _ONE + np.where(small, m, np.float32(0))
    z = m * m
    y: Floats = np.full_like(m, _LOG[0])
    for coefficient in _LOG[1:]:
        y = _fused(y, m, coefficient)
    y = _fused(y * m, z, e * _LN2_LOW)
    y = y - z * _HALF
    return _fused(e, _LN2_HIGH, m + y)


def _sine_cosine(x: Floats) -> tuple[Floats, Floats]:
    """Sine and cosine of angles in [0, 2 pi)."""
    octant = ((x * _FOUR_OVER_PI).astype(np.int32) + 1) & ~1
    turns = octant.astype(np.float32)
    for part in _MINUS_PI_OVER_4:
        x = _fused(turns, part, x)
    z = x * x
    cosine = _fused(_fused(np.full_like(z, _COS[0]), z, _COS[1]), z, _COS[2])
    cosine = _fused(cosine * z, z, -(z * _HALF)) + _ONE
    sine = _fused(_fused(np.full_like(z, _SIN[0]), z, _SIN[1]), z, _SIN[2])
    sine = _fused(sine * z, x, x)
    swapped = octant & 2 != 0
    lower = octant & 4 != 0
    left = (octant - 2) & 4 == 0
    upright, sideways = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where(lower, -upright, upright), np.where(left, -sideways, sideways)
