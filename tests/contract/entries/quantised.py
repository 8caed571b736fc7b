"""Multiplication in fp8: the rounding, the scales, and a layer by row. e4m3 is written here from its definition."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from worldloop.models.fp8 import Fp8Linear, quantise, to_e4m3

from ..arithmetic import EXACT, Arithmetic, Array
from ..registry import Case, Entry, Truth, load, normals, uniforms

BF16 = torch.bfloat16


def e4m3(x: Array) -> Array:
    """4 bits of significand, exponents from -6, subnormals, at most 448; ties to even."""
    size = np.minimum(np.abs(x), 448.0)
    quantum = 2.0 ** (np.maximum(np.frexp(size)[1] - 1, -6) - 3)
    return np.copysign(np.minimum(np.rint(size / quantum) * quantum, 448.0), x)


def single(x: Array) -> Array:
    """Rounded to float32: what a scale is, by its definition."""
    return x.astype(np.float32).astype(np.float64)


def scaled(x: Array, arithmetic: Arithmetic) -> tuple[Array, Array]:
    """e4m3 numbers and the scale of each row, which is float32, as is x / scale."""
    scale = single(np.maximum(np.abs(x).max(-1, keepdims=True), single(np.asarray(1e-12))) / 448)
    return e4m3(arithmetic.keep(single(x / scale))), scale


def rounding_truth(arithmetic: Arithmetic, x: Array) -> Truth:
    return Truth(value=e4m3(arithmetic.keep(x)), outer=0.0)


def values_and_scales(x: Tensor) -> Tensor:
    """`[M, K + 1]`: the values, then the scale."""
    values, scale = quantise(x, "row")
    return torch.cat((values.float(), scale), -1)


def values_truth(arithmetic: Arithmetic, x: Array) -> Truth:
    values, scale = scaled(x, arithmetic)
    return Truth(value=np.concatenate((values, scale), -1), outer=0.0)


def layer(x: Tensor, weight: Tensor) -> Tensor:
    plain = load(nn.Linear(*weight.shape[::-1], bias=False), (weight,))
    return Fp8Linear(plain, "row")(x)


def layer_truth(arithmetic: Arithmetic, x: Array, weight: Array) -> Truth:
    # Operands are quantised alike, whatever their products are added up in.
    (a, scale_a), (b, scale_b) = (scaled(each, EXACT) for each in (x, weight))
    value = arithmetic.dot(a, b) * scale_a * scale_b.T
    return Truth(value=value, inner=np.abs(a * scale_a) @ np.abs(b * scale_b).T)


def sweep() -> Tensor:
    """Every e4m3 number, ties between two, their float32 neighbours, small, large and infinite; both signs."""
    exact = [(8 + m) * 2.0 ** (e - 3) for e in range(-6, 9) for m in range(8)] + [
        m * 2.0**-9 for m in range(8)
    ]
    grid = np.unique(np.array(exact, np.float32))
    points = np.concatenate((grid, (grid[1:] + grid[:-1]) / 2)).astype(np.float32)
    beside = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    beyond = np.array([449, 464, 480, 1e6, 3e38, np.inf, 1e-30], np.float32)
    half = np.concatenate((points, *beside, beyond))
    return torch.from_numpy(np.concatenate((half, -half)))


def rows_of(width: int) -> Tensor:
    """Rows of several sizes, one with an outlier, one of nothing."""
    x = normals(9, width, seed=width) * torch.logspace(-3, 3, 9)[:, None]
    x[4, 3] *= 1e4
    x[5] = 0
    return x.to(BF16)


ENTRIES = [
    Entry(
        name="fp8/e4m3",
        run=to_e4m3,
        truth=rounding_truth,
        cases=lambda: [Case(name="every number and tie", inputs=(sweep(),))],
        rows=(True,),
        why="a definition: exact",
    ),
    Entry(
        name="fp8/scales",
        run=values_and_scales,
        truth=values_truth,
        cases=lambda: [
            Case(name=f"{width} wide", inputs=(rows_of(width).float(),)) for width in (256, 1280, 16)
        ],
        rows=(True,),
        why="a definition: exact",
    ),
    Entry(
        name="fp8/layer by row",
        run=layer,
        truth=layer_truth,
        cases=lambda: [
            Case(name="1280 wide", inputs=(rows_of(1280), normals(48, 1280, seed=1).to(BF16))),
            Case(
                name="one sign",
                inputs=(uniforms(3, 2048, seed=2).to(BF16), uniforms(16, 2048, seed=3).to(BF16)),
            ),
        ],
        rows=(True, False),
        inner_roundings=8,
        why="8 of a sum of products in float32, the scales 2 of them; then one rounding to bfloat16",
    ),
]
