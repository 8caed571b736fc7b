"""Rotary positions: both kinds of rotation, their tables, the level axis, and the start picture that is moved along.

Angles are complex numbers of float64 here; the pieces have tables of cosines and sines, made in float64 and rounded.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from worldloop.models.causal_memory import GridRope, turn
from worldloop.models.memory import Memory, MemoryConfig
from worldloop.models.rope import RopeConfig, RopeTables, rotate

from ..arithmetic import Arithmetic, Array
from ..registry import Case, Entry, Truth, normals

GTA = (64, (24, 42), 96)
ODD = (96, (3, 5), 3)
"""Head width, grid and summary tokens: the published size, and one where no two sizes agree."""


# -- rotations ----------------------------------------------------------------------------------------------------
def turned(
    a: Array, b: Array, cos: Array, sin: Array, arithmetic: Arithmetic
) -> tuple[Array, Array, Array, Array]:
    """Both halves of a turned pair, and their sums of absolute terms."""
    keep = arithmetic.keep
    one = keep(keep(a * cos) - keep(b * sin))
    other = keep(keep(a * sin) + keep(b * cos))
    return one, other, np.abs(a * cos) + np.abs(b * sin), np.abs(a * sin) + np.abs(b * cos)


def halves(arithmetic: Arithmetic, x: Array, cos: Array, sin: Array) -> Truth:
    """The world's rotation: x[p] with x[P + p]."""
    half = x.shape[-1] // 2
    one, other, size, other_size = turned(x[..., :half], x[..., half:], cos, sin, arithmetic)
    return Truth(value=np.concatenate((one, other), -1), inner=np.concatenate((size, other_size), -1))


def neighbours(arithmetic: Arithmetic, x: Array, cos: Array, sin: Array) -> Truth:
    """The video network's rotation: x[2p] with x[2p + 1]."""
    one, other, size, other_size = turned(x[..., 0::2], x[..., 1::2], cos, sin, arithmetic)
    value, inner = np.empty_like(x), np.empty_like(x)
    value[..., 0::2], value[..., 1::2], inner[..., 0::2], inner[..., 1::2] = one, other, size, other_size
    return Truth(value=value, inner=inner)


def rotations(*formats: torch.dtype) -> list[Case]:
    """Rows at random angles, at none and at a quarter turn."""
    cases = []
    for dtype in formats:
        for rows, width in ((1104, 64), (7, 128)):
            angle = normals(rows, width // 2, seed=rows).double() * 100
            angle[0], angle[1] = 0, math.pi / 2
            x = normals(rows, width, seed=1) * torch.logspace(-3, 3, rows)[:, None]
            inputs = (x.to(dtype), angle.cos().float(), angle.sin().float())
            cases.append(Case(name=f"{rows} rows of {width}, {dtype}", inputs=inputs))
    return cases


# -- tables -------------------------------------------------------------------------------------------------------
def waves(arithmetic: Arithmetic, angle: Array) -> Truth:
    """Cosines, then sines, of float64 angles. An angle is off by its own rounding, which the cosine passes on."""
    kept = arithmetic.keep(angle)
    value = np.concatenate((np.cos(kept), np.sin(kept)), -1)
    return Truth(value=value, inner=np.concatenate((np.abs(angle), np.abs(angle)), -1))


def level_table(ids: Tensor, *, head_dim: int, grid: tuple[int, int], summaries: int) -> Tensor:
    """`[T, R, 2 P]`: cosines, then sines, of every row of the records with these ids."""
    tables = RopeTables(
        RopeConfig(head_dim=head_dim, grid=grid, summary_tokens=summaries, spatial_base=100.0)
    )
    cos, sin = tables.records(ids)
    return torch.cat((cos, sin), -1).view(len(ids), -1, head_dim)


def level_truth(
    arithmetic: Arithmetic, ids: Array, *, head_dim: int, grid: tuple[int, int], summaries: int
) -> Truth:
    """Planes: time, two of level, row, column."""
    planes, time = head_dim // 2, head_dim * 3 // 16
    each = (planes - time) // 2
    angle = np.zeros((len(ids), grid[0] * grid[1] + summaries, planes))
    for p in range(time - 2):
        angle[:, :, p] = ids[:, None] / 10_000.0 ** (p / time)
    angle[:, grid[0] * grid[1] :, time - 2 : time] = math.pi / 2
    place = np.arange(grid[0] * grid[1])
    for p in range(each):
        angle[:, : len(place), time + p] = place // grid[1] / 100.0 ** (p / each)
        angle[:, : len(place), time + each + p] = place % grid[1] / 100.0 ** (p / each)
    return waves(arithmetic, angle)


def grid_table(positions: Tensor, *, head_dim: int, grid: tuple[int, int]) -> Tensor:
    """`[T, N, K]`: cosines, then sines, of every token of frames at these positions."""
    cos, sin = GridRope(head_dim, grid, device=positions.device).frames(positions)
    return torch.cat((cos, sin), -1).view(len(positions), -1, head_dim)


def grid_truth(arithmetic: Arithmetic, positions: Array, *, head_dim: int, grid: tuple[int, int]) -> Truth:
    """Pairs: time, row, column, each with wavelengths of its own."""
    side = head_dim // 6
    counts = (head_dim // 2 - 2 * side, side, side)
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    shape = (len(positions), len(rows))
    places = (positions[:, None], rows[None], columns[None])
    parts = [
        np.broadcast_to(place, shape)[..., None] / 10_000.0 ** (np.arange(count) / max(count, 1))
        for place, count in zip(places, counts, strict=True)
    ]
    return waves(arithmetic, np.concatenate(parts, -1))


# -- the start picture --------------------------------------------------------------------------------------------
def moved_sink(keys: Tensor, *, frames: int, dtype: torch.dtype) -> Tensor:
    """The start picture's keys `[R, K]` in a memory after so many frames."""
    rows, width = keys.shape
    tables = RopeTables(RopeConfig(head_dim=width, grid=(rows, 1), summary_tokens=0), keys.device)
    config = MemoryConfig(
        layers=1,
        heads=1,
        head_dim=width,
        raw_tokens=rows,
        summary_tokens=0,
        raw_window=2,
        window=5,
        sink_gap_max=3,
    )
    memory = Memory(config, tables, dtype=dtype, device=keys.device)
    memory.write(0, keys[None, None], keys[None, None])
    for _ in range(frames):
        memory.advance()
    return memory.keys[0, 0, 0, :rows].clone()


def moved_truth(arithmetic: Arithmetic, keys: Array, *, frames: int, dtype: torch.dtype) -> Truth:
    """One rotation by where the sink stands: it is moved behind the oldest frame when that is 3 ahead of it."""
    sink = 0
    for frame in range(1, frames + 1):
        oldest = max(1, frame - 5)
        sink = oldest - 1 if oldest - sink >= 3 else sink
    width = keys.shape[-1]
    time = width * 3 // 16
    angle = np.zeros(width // 2)
    angle[: time - 2] = sink / 10_000.0 ** (np.arange(time - 2) / time)
    keep = arithmetic.keep
    return halves(arithmetic, keys, keep(np.cos(angle)), keep(np.sin(angle)))


def moves() -> list[Case]:
    """Not yet moved, moved once, and far into a session; keys as served and in float32."""
    single, half = torch.float32, torch.bfloat16
    options = [(4, half), (8, half), (8, single), (599, single), (2999, half)]
    return [
        Case(
            name=f"{frames} frames, {dtype}",
            inputs=(normals(24, 64, seed=3),),
            options={"frames": frames, "dtype": dtype},
        )
        for frames, dtype in options
    ]


ENTRIES = [
    Entry(
        name="rope/rotate",
        run=rotate,
        truth=halves,
        cases=lambda: rotations(torch.float32),
        rows=(True, True, True),
        inner_roundings=1,
        why="each product is rounded, then their sum",
    ),
    Entry(
        name="rope/turn",
        run=turn,
        truth=neighbours,
        cases=lambda: rotations(torch.bfloat16, torch.float32),
        rows=(True, True, True),
        inner_roundings=2,
        why="each product is rounded, then their sum, then the result when it is narrower",
    ),
    Entry(
        name="rope/level table",
        run=level_table,
        truth=level_truth,
        cases=lambda: [
            Case(
                name=f"head of {head_dim}, ids to 4095",
                inputs=(torch.tensor([0, 1, 877, 4095]),),
                options={"head_dim": head_dim, "grid": grid, "summaries": summaries},
            )
            for head_dim, grid, summaries in (GTA, ODD)
        ],
        rows=(True,),
        inner=torch.float64,
        inner_roundings=4,
        why="float64: power, quotient, product, cosine; then one rounding to float32",
    ),
    Entry(
        name="rope/grid table",
        run=grid_table,
        truth=grid_truth,
        cases=lambda: [
            Case(
                name=f"head of {head_dim}, ranks to 900",
                inputs=(torch.tensor([0, 1, 20, 900]),),
                options={"head_dim": head_dim, "grid": grid},
            )
            for head_dim, grid in ((128, (30, 52)), (64, (3, 5)), (10, (2, 3)))
        ],
        rows=(True,),
        inner=torch.float64,
        inner_roundings=4,
        why="float64: power, quotient, product, cosine; then one rounding to float32",
    ),
    Entry(
        name="rope/sink rotation",
        run=moved_sink,
        truth=moved_truth,
        cases=moves,
        rows=(True,),
        inner_roundings=3,
        why="cosine, product and sum are rounded to float32, then the result when it is narrower",
    ),
]
