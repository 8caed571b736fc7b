"""MOSS-Image's own pieces: positions, activation, timesteps, the Euler step, and the way from rows to the decoder."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldloop.models.moss import decode, schedule, transformer
from worldloop.models.moss.decode import unpack

from ..arithmetic import Arithmetic, Array
from ..registry import Case, Entry, Truth, normals, uniforms
from .positions import neighbours, rotations, waves
from .sampling import combine, latents

BF16 = torch.bfloat16
AXES = (32, 32, 32, 32)
"""Channels of a head that each of the four axes turns."""


# -- positions ----------------------------------------------------------------------------------------------------
def table(rows: Tensor, *, text: int, grid: tuple[int, int]) -> Tensor:
    """Cosines, then sines, of the rows asked for, `[R, 128]`."""
    config: Any = SimpleNamespace(rope_axes=AXES, rope_base=10_000.0)
    found = transformer.rope(config, text, grid)
    return torch.cat((found.cos, found.sin), -1)[rows]


def table_truth(arithmetic: Arithmetic, rows: Array, *, text: int, grid: tuple[int, int]) -> Truth:
    """Picture rows are at (0, text, y, x) about the middle, text rows at (0, number, 0, 0); bands are float32."""
    bands = np.array([np.float32(10_000.0 ** (-i / 16)) for i in range(16)], dtype=float)
    angle = np.zeros((len(rows), 4, 16))
    for number, row in enumerate(rows.tolist()):
        y, x = divmod(row, grid[1])
        if row < grid[0] * grid[1]:
            place = (0, text, y - (grid[0] - 1) / 2, x - (grid[1] - 1) / 2)
        else:
            place = (0, row - grid[0] * grid[1], 0, 0)
        angle[number] = np.array(place)[:, None] * bands
    return waves(arithmetic, angle.reshape(len(rows), -1))


# -- activation ---------------------------------------------------------------------------------------------------
def activation_truth(arithmetic: Arithmetic, value: Array, gate: Array) -> Truth:
    """4 tanh(g / 4) sigmoid(g) times 25 tanh(h / 25)."""
    keep = arithmetic.keep
    ratio, sigmoid = keep(np.tanh(gate / 4)), keep(1 / (1 + np.exp(-gate)))
    squashed = keep(25 * np.tanh(value / 25))
    result = keep(keep(4 * ratio * sigmoid) * squashed)
    return Truth(value=result, inner=np.abs(result))


def activations() -> list[Case]:
    """Both sides of nought, where the factors level off, and far beyond."""
    spread = torch.logspace(-4, 3, 60)[:, None]
    inputs = (normals(60, 64, seed=1) * spread, normals(60, 64, seed=2) * spread.clamp(max=20))
    return [
        Case(name=f"up to 1000, {dtype}", inputs=tuple(each.to(dtype) for each in inputs))
        for dtype in (BF16, torch.float32)
    ]


# -- steps --------------------------------------------------------------------------------------------------------
def timesteps(steps: Tensor, *, shift: float) -> Tensor:
    """The first two and the last timestep, and how many there are."""
    found = [schedule.timesteps(int(n), shift) for n in steps]
    return torch.tensor([[*each[:2], each[-1], len(each)] for each in found])


def timesteps_truth(arithmetic: Arithmetic, steps: Array, *, shift: float) -> Truth:
    """In fractions: the multiple of 1/1000 that is nearest, the lower one of two; each one once."""
    result = []
    for n in steps.tolist():
        last = 1 / (1 + 999 / Fraction(shift))
        v = [1 - i * (1 - last) / (n - 1) for i in range(n)]
        near = []
        for sigma in (x / (x + (1 - x) / Fraction(shift)) for x in v):
            lost = float(arithmetic.keep(np.asarray(float(sigma)))) - float(sigma)
            whole, part = divmod(1000 * (sigma + Fraction(lost)), 1)
            near.append(whole + (part > Fraction(1, 2)))
        once = sorted(set(near), reverse=True)
        result.append([*once[:2], once[-1], len(once)])
    return Truth(value=np.array(result, dtype=float))


def euler_truth(arithmetic: Arithmetic, x: Array, v: Array, *, sigma: float, after: float) -> Truth:
    """The step is a difference of two float32, so both count as terms."""
    found = combine(arithmetic, (1.0, x), (after - sigma, v))
    return Truth(value=found.value, inner=np.abs(x) + (sigma + after) * np.abs(v))


# -- rows to the decoder ------------------------------------------------------------------------------------------
def restored(rows: Tensor, variance: Tensor, mean: Tensor) -> Tensor:
    norm = SimpleNamespace(running_var=variance, running_mean=mean)
    decoder: Any = SimpleNamespace(vae=SimpleNamespace(bn=norm), config=SimpleNamespace(eps=1e-4))
    return decode.Decoder.restored(decoder, rows)


def restored_truth(arithmetic: Arithmetic, rows: Array, variance: Array, mean: Array) -> Truth:
    keep = arithmetic.keep
    value = keep(keep(rows * keep(np.sqrt(keep(variance + 1e-4)))) + mean)
    return Truth(value=value, inner=np.abs(rows) * np.sqrt(variance + 1e-4) + np.abs(mean))


def unpacked_truth(arithmetic: Arithmetic, channels: Array, *, grid: tuple[int, int]) -> Truth:
    """Channels are numbered (channel, y, x)."""
    groups = channels.reshape(len(channels), 2, 2, *grid)
    value = np.zeros((len(channels), 2 * grid[0], 2 * grid[1]))
    for y, x in np.ndindex(2, 2):
        value[:, y::2, x::2] = groups[:, y, x]
    return Truth(value=arithmetic.keep(value), outer=0.0)


def unpacked(channels: Tensor, *, grid: tuple[int, int]) -> Tensor:
    """A row is an unpacked channel, `[c, 4, P]`: the packed rows are put together from them."""
    packed = channels.flatten(0, 1).t().contiguous()
    return unpack(packed, grid, (2, 2))[0].contiguous()


def levels_truth(arithmetic: Arithmetic, pictures: Array) -> Truth:
    keep = arithmetic.keep
    level = keep(np.clip(keep(keep(pictures / 2) + 0.5), 0, 1) * 255)
    return Truth(value=level.transpose(0, 2, 3, 1), inner=level.transpose(0, 2, 3, 1) + 1, whole=True)


def levels() -> list[Case]:
    """Every byte, just below and on the halves, and out of range."""
    every = torch.cat((torch.arange(256.0), torch.arange(256.0) + 0.5, torch.arange(256.0) + 0.498))
    flat = torch.cat((every / 127.5 - 1, torch.tensor([-3.0, 7.0])))
    return [Case(name="bytes and halves", inputs=(flat[:768].view(2, 3, 8, 16),))]


ENTRIES = [
    Entry(
        name="moss/rotate",
        run=lambda x, cos, sin: transformer.Rope(cos, sin).rotate(x),
        truth=neighbours,
        cases=lambda: rotations(BF16, torch.float32),
        rows=(True, True, True),
        inner_roundings=1,
        why="each product is rounded, then their sum, then the result when it is narrower",
    ),
    Entry(
        name="moss/table",
        run=table,
        truth=table_truth,
        cases=lambda: [
            Case(name=f"{text} text rows", inputs=(torch.tensor(rows),), options={"text": text, "grid": grid})
            for text, grid, rows in (
                (31, (64, 64), [0, 1, 4095, 4096, 4126]),
                (4096, (3, 5), [0, 14, 15, 4110]),
            )
        ],
        rows=(True,),
        inner=torch.float64,
        inner_roundings=4,
        why="float64: power, product, cosine; then one rounding to float32",
        host=True,
    ),
    Entry(
        name="moss/activation",
        run=transformer.squashed,
        truth=activation_truth,
        cases=activations,
        rows=(True, True),
        inner_roundings=12,
        why="two tanh and a sigmoid at 2 each and their arguments, three products, then one rounding",
    ),
    Entry(
        name="moss/timesteps",
        run=timesteps,
        truth=timesteps_truth,
        cases=lambda: [
            Case(
                name=f"shift {shift:g}", inputs=(torch.tensor([4, 5, 9, 50, 200]),), options={"shift": shift}
            )
            for shift in (1.0, 5.0)
        ],
        rows=(True,),
        why="exact fractions",
        host=True,
    ),
    Entry(
        name="moss/euler",
        run=lambda x, v, *, sigma, after: schedule.euler(x, v, sigma, after),
        truth=euler_truth,
        cases=lambda: latents(
            2, *({"sigma": s, "after": n} for s, n in ((1.0, 0.938), (0.63, 0.024), (0.024, 0.0)))
        ),
        rows=(True, True),
        inner_roundings=3,
        why="both sigmas, their difference and the product are rounded, then the sum",
    ),
    Entry(
        name="moss/restore",
        run=restored,
        truth=restored_truth,
        cases=lambda: [
            Case(
                name="128 channels",
                inputs=(normals(60, 128, seed=1), uniforms(128, seed=2), normals(128, seed=3)),
            )
        ],
        rows=(True, False, False),
        inner_roundings=3,
        why="sum, root and product are rounded, then the sum",
    ),
    Entry(
        name="moss/unpack",
        run=unpacked,
        truth=unpacked_truth,
        cases=lambda: [
            Case(name="32 channels", inputs=(normals(32, 4, 15, seed=1),), options={"grid": (3, 5)})
        ],
        rows=(True,),
        why="numbers change places only: exact",
    ),
    Entry(
        name="moss/to bytes",
        run=lambda pictures: torch.stack([decode.to_bytes(each) for each in pictures]),
        truth=levels_truth,
        cases=levels,
        rows=(True,),
        inner_roundings=3,
        why="half, sum and product are rounded, then the nearest whole number",
    ),
]
