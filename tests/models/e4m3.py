"""The number format e4m3 from its definition, in float64: a sign, 4 exponent bits of bias 7, 3 mantissa bits.

No infinities; all bits set is not a number, so the largest is 1.75 * 2^8 = 448. Nothing of torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LARGEST = 448.0
MANTISSA, BIAS = 3, 7


def numbers() -> Array:
    """Every finite e4m3 number that is not negative, in order, by its bits."""
    result = []
    for bits in range(0x7F):
        exponent, fraction = bits >> MANTISSA, (bits & 7) / 8
        result.append((1 + fraction) * 2.0 ** (exponent - BIAS) if exponent else fraction * 2.0 ** (1 - BIAS))
    return np.array(result)


def round_to(x: Array) -> Array:
    """The nearest e4m3 number, ties to the even mantissa; what is larger than the largest becomes it."""
    size = np.minimum(np.abs(x), LARGEST)
    exponent = np.maximum(np.frexp(size)[1] - 1, 1 - BIAS)
    quantum = 2.0 ** (exponent - MANTISSA)
    return np.copysign(np.minimum(np.rint(size / quantum) * quantum, LARGEST), x)


def sweep() -> NDArray[np.float32]:
    """Every number, every tie between two, the float32 neighbours of each, small and large ones, both signs."""
    exact = numbers().astype(np.float32)
    points = np.concatenate((exact, (exact[1:] + exact[:-1]) / 2)).astype(np.float32)
    beside = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    spread = np.float32(2.0) ** np.random.default_rng(0).uniform(-14, 12, 20_000).astype(np.float32)
    beyond = np.array([448.0, 449.0, 463.9, 464.0, 464.1, 480.0, 512.0, 1e6, 3e38, np.inf], dtype=np.float32)
    half = np.concatenate((points, *beside, spread, beyond))
    return np.concatenate((half, -half))
