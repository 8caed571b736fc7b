"""What a reference computes with: exact float64, or the same formulas with every step kept in fewer bits.

A reference is written once, over `dot`, `total` and `keep`. With `EXACT` it is the truth; with `Narrow` it is what a
kernel would give whose accumulators hold too little, and the bound of the entry must tell the two apart.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HALF, SINGLE = 11, 24
"""Significant bits of half precision (and of TF32), and of single precision."""


class Arithmetic(Protocol):
    """How sums are added up and what an intermediate number is kept in."""

    def keep(self, x: Array) -> Array:
        """An intermediate result."""
        ...

    def total(self, x: Array) -> Array:
        """Sum over the last axis, which is gone."""
        ...

    def dot(self, a: Array, b: Array) -> Array:
        """`[..., M, K]` times `[..., N, K]`, to `[..., M, N]`."""
        ...


class Exact:
    """float64 throughout."""

    def keep(self, x: Array) -> Array:
        return x

    def total(self, x: Array) -> Array:
        return np.asarray(x.sum(-1))

    def dot(self, a: Array, b: Array) -> Array:
        return np.asarray(a @ b.swapaxes(-1, -2))


class Narrow:
    """Every step rounded to `bits` significant bits, sums one term after the other."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def keep(self, x: Array) -> Array:
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.rint(np.ldexp(mantissa, self.bits)), exponent - self.bits)

    def total(self, x: Array) -> Array:
        result = np.zeros(x.shape[:-1])
        for term in np.moveaxis(x, -1, 0):
            result = self.keep(result + term)
        return result

    def dot(self, a: Array, b: Array) -> Array:
        result = np.zeros((*a.shape[:-1], b.shape[-2]))
        for k in range(a.shape[-1]):
            result = self.keep(result + a[..., :, None, k] * b[..., None, :, k])
        return result


EXACT = Exact()
