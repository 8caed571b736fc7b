"""Attention over a memory: plain, with the recency bias, and over the window of a video.

References keep every frame whole and choose what is seen by its age; they know no slots. An error of a logit moves
every weight of its row, so the sum of absolute terms of an output is that of its weighted values times (1 + its logits'
own sums).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from worldloop.models.causal_memory import CausalMemory, CausalMemoryConfig, GridRope
from worldloop.models.memory import Memory, MemoryConfig, Recency
from worldloop.models.rope import RopeConfig, RopeTables
from worldloop.models.summaryformer import attend, attend_flex

from ..arithmetic import Arithmetic, Array
from ..registry import Case, Entry, Truth, normals, uniforms

BF16 = torch.bfloat16
DOT = 8
"""Roundings of a sum of products of a head's width, and of what is passed on."""
LAW = (3, 6, 4.0, 1.5)
"""Recency: no bias up to 3 frames of age, the floor of -4 from 6 on, smoothstep to the power 1.5 between."""
WINDOW, RAW, CELLS, SUMMARIES, GAP = 6, 2, 5, 2, 3


def softmax_rows(
    arithmetic: Arithmetic,
    q: Array,
    k: Array,
    v: Array,
    bias: Array | float = 0.0,
    rounded: Array | float = 0.0,
) -> Truth:
    """`q [R, H, K]`, `k` and `v` `[H, S, K]`, bias `[S]`, to `[R, H, K]`.

    `rounded`, a number or one a key, is how often the operands of a logit were rounded to the result's format.
    """
    keep = arithmetic.keep
    q = q.swapaxes(0, 1)
    scale = 1 / math.sqrt(q.shape[-1])
    logits = keep(keep(arithmetic.dot(q, k) * scale) + bias)
    size = np.abs(q) @ np.abs(k).swapaxes(1, 2) * scale + np.where(np.isfinite(bias), np.abs(bias), 0)
    grown = keep(np.exp(logits - logits.max(-1, keepdims=True)))
    weights = keep(grown / arithmetic.total(grown)[..., None])
    value = arithmetic.dot(weights, v.swapaxes(1, 2))
    plain = weights @ np.abs(v)

    def passed_on(off: Array) -> Array:
        """What errors of the logits, each `off`, do to an output."""
        moved = weights * off
        return moved @ np.abs(v) + plain * moved.sum(-1, keepdims=True)

    # Values are added one key after the other: an accumulator that rounds at each walks at random, sqrt(keys / 3).
    walk = math.sqrt(k.shape[1] / 3) / DOT
    inner, outer = (2 + walk) * plain + passed_on(size), plain + passed_on(size * rounded)
    return Truth(value=value.swapaxes(0, 1), inner=inner.swapaxes(0, 1), outer=outer.swapaxes(0, 1))


# -- plain --------------------------------------------------------------------------------------------------------
def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The network's dense attention, rows first."""
    return attend(q.transpose(0, 1)[None], k[None], v[None], None)[0].transpose(0, 1).contiguous()


def plain_cases() -> list[Case]:
    """The published size's whole memory, one key alone, logits far apart, and values of one sign."""
    wide = (normals(24, 2, 64, seed=1), normals(2, 6528, 64, seed=2), normals(2, 6528, 64, seed=3))
    alone = (normals(3, 1, 96, seed=4), normals(1, 1, 96, seed=5), normals(1, 1, 96, seed=6))
    apart = (normals(5, 1, 64, seed=7) * 6, normals(1, 300, 64, seed=8), normals(1, 300, 64, seed=9))
    one_sign = (
        normals(3, 1, 64, seed=10) * 0.01,
        normals(1, 6528, 64, seed=11),
        uniforms(1, 6528, 64, seed=12),
    )
    named = {"6528 keys": wide, "one key": alone, "logits far apart": apart, "one sign": one_sign}
    return [
        Case(name=f"{name}, {dtype}", inputs=tuple(x.to(dtype) for x in inputs))
        for dtype in (torch.float32, BF16)
        for name, inputs in named.items()
    ]


def generated(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The kernel that a card is given when a pass is compiled; on a CPU its form without a compiler, which warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        call = compiled_flex() if q.is_cuda else attend_flex
        return call(q.transpose(0, 1)[None], k[None], v[None], bias)[0].transpose(0, 1).contiguous()


@cache
def compiled_flex() -> Callable[..., Tensor]:
    limits: Any = torch._dynamo.config
    limits.recompile_limit = 64  # one graph for each shape of the cases
    return torch.compile(attend_flex, dynamic=False)


def generated_cases() -> list[Case]:
    """A memory that is not full, its summaries under a bias that float16 does not hold."""
    cases = []
    for dtype in (torch.float32, BF16):
        bias = torch.zeros(640)
        bias[300:500], bias[500:] = (
            -torch.rand(200, generator=torch.Generator().manual_seed(1)) * 4,
            -math.inf,
        )
        k, v = (normals(2, 640, 64, seed=seed).to(dtype) for seed in (2, 3))
        one_sign = (normals(3, 2, 64, seed=5) * 0.01, k, uniforms(2, 640, 64, seed=6))
        inputs = {"640 rows": (normals(24, 2, 64, seed=4), k, v), "one sign": one_sign}
        for name, each in inputs.items():
            cases.append(Case(name=f"{name}, {dtype}", inputs=(*(x.to(dtype) for x in each), bias)))
    return cases


# -- the world's memory -------------------------------------------------------------------------------------------
def recent(
    q: Tensor, keys: Tensor, values: Tensor, *, dtype: torch.dtype, beta: float = LAW[2], gap: int = GAP
) -> Tensor:
    """Write the records `[T, H, R, K]` one after the other; then `q [rows, H, K]` reads what the last frame sees."""
    frames, heads, rows, width = keys.shape
    assert rows == CELLS + SUMMARIES
    tables = RopeTables(RopeConfig(head_dim=width, grid=(1, CELLS), summary_tokens=SUMMARIES), q.device)
    config = MemoryConfig(
        layers=1, heads=heads, head_dim=width, raw_tokens=CELLS, summary_tokens=SUMMARIES, raw_window=RAW,
        window=WINDOW, sink_gap_max=gap,
    )  # fmt: skip
    law = Recency(flat_until=LAW[0], decay_end=LAW[1], beta=beta, gamma=LAW[3])
    memory = Memory(config, tables, recency=law, dtype=dtype, device=q.device)
    for frame in range(frames):
        memory.write(0, keys[frame][None], values[frame][None])
        if frame + 1 < frames:
            memory.advance()
    found = attend(q.to(dtype).transpose(0, 1)[None], *memory.read(0))
    return found[0].transpose(0, 1).contiguous()


def recent_truth(
    arithmetic: Arithmetic, q: Array, keys: Array, values: Array, *, dtype: torch.dtype
) -> Truth:
    """Every frame by its age: own and raw ones whole, older ones their summaries, the first one for ever."""
    now, width = len(keys) - 1, keys.shape[-1]
    sink = 0
    for frame in range(1, now + 1):
        oldest = max(1, frame - WINDOW)
        sink = oldest - 1 if oldest - sink >= GAP else sink
    half, time = width // 2, width * 3 // 16
    turns = np.exp(
        1j * sink * np.concatenate((10_000.0 ** -(np.arange(time - 2) / time), np.zeros(half - time + 2)))
    )
    first = (keys[0][..., :half] + 1j * keys[0][..., half:]) * turns
    seen_keys, seen_values, bias = (
        [np.concatenate((first.real, first.imag), -1)],
        [values[0]],
        [0.0] * keys.shape[2],
    )
    for frame in range(1, now + 1):
        age = now - frame
        if age > WINDOW:
            continue
        part = slice(0 if age <= RAW else CELLS, None)
        seen_keys.append(keys[frame][:, part])
        seen_values.append(values[frame][:, part])
        share = min(max((age - LAW[0]) / (LAW[1] - LAW[0]), 0), 1)
        floor = -LAW[2] * (3 * share**2 - 2 * share**3) ** LAW[3]
        bias += [0.0 if age <= RAW else floor] * seen_keys[-1].shape[1]
    k, v = np.concatenate(seen_keys, 1), np.concatenate(seen_values, 1)
    moved = np.arange(k.shape[1]) < keys.shape[2]  # the first record's keys were turned, and rounded after
    return softmax_rows(arithmetic, q, k, v, np.array(bias), rounded=moved.astype(float))


def recent_cases() -> list[Case]:
    """The memory half full, just full, and after the start picture was moved twice."""
    rows = CELLS + SUMMARIES
    return [
        Case(
            name=f"{frames} frames, {dtype}",
            inputs=(
                normals(rows, 2, 64, seed=frames),
                normals(frames, 2, rows, 64, seed=frames + 1).to(dtype).float(),
                (normals if frames < 14 else uniforms)(frames, 2, rows, 64, seed=frames + 2)
                .to(dtype)
                .float(),
            ),
            options={"dtype": dtype},
        )
        for dtype in (BF16, torch.float32)
        for frames in (1, 5, 8, 14)
    ]


def recency(ages: Tensor) -> Tensor:
    law = Recency(flat_until=LAW[0], decay_end=LAW[1], beta=LAW[2], gamma=LAW[3])
    return torch.tensor([law.bias(int(age)) for age in ages], dtype=torch.float64)


def recency_truth(arithmetic: Arithmetic, ages: Array) -> Truth:
    """The integral of 6 x (1 - x), to a power: smoothstep by another way."""
    keep = arithmetic.keep
    share = keep(np.clip((ages - LAW[0]) / (LAW[1] - LAW[0]), 0, 1))
    area = keep(3 * share**2) - keep(2 * share**3)
    value = -LAW[2] * keep(keep(area) ** LAW[3])
    return Truth(
        value=value, inner=LAW[2] * LAW[3] * area ** (LAW[3] - 1) * (3 * share**2 + 2 * share**3) - value
    )


# -- the video's memory -------------------------------------------------------------------------------------------
def window(
    q: Tensor, keys: Tensor, values: Tensor, *, chunk: int, size: int, sink: int, dtype: torch.dtype
) -> Tensor:
    """Write `[H, T, N, K]` chunk by chunk; then the last chunk's `q [H, chunk * N, K]` reads the window."""
    heads, frames, tokens, width = keys.shape
    grid = (1, tokens)
    config = CausalMemoryConfig(
        layers=1, heads=heads, head_dim=width, grid=grid, chunk=chunk, window=size, sink=sink
    )
    memory = CausalMemory(config, GridRope(width, grid, device=q.device), dtype=dtype, device=q.device)
    for start in range(0, frames, chunk):
        memory.begin(chunk)
        memory.write(0, *(each[:, start : start + chunk].flatten(1, 2)[None] for each in (keys, values)))
        if start + chunk < frames:
            memory.advance()
    return F.scaled_dot_product_attention(memory.turn_queries(q[None]), *memory.read(0))[0]


def window_truth(
    arithmetic: Arithmetic, q: Array, keys: Array, values: Array, *, chunk: int, size: int, sink: int,
    dtype: torch.dtype,
) -> Truth:  # fmt: skip
    """What is seen are the first `sink` frames and the last ones up to `size`; a position is a rank among them."""
    heads, frames, tokens, width = keys.shape
    seen = [n for n in range(frames) if n < sink or n >= frames - (size - sink)]
    side = width // 6
    counts = (width // 2 - 2 * side, side, side)
    cell = np.arange(tokens)

    def rotated(x: Array, rank: int) -> Array:
        angles = [
            place[:, None] / 10_000.0 ** (np.arange(count) / max(count, 1))
            for place, count in zip((np.full(tokens, rank), cell * 0, cell), counts, strict=True)
        ]
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * np.concatenate(angles, -1))
        return np.stack((pairs.real, pairs.imag), -1).reshape(x.shape)

    k = np.concatenate([rotated(keys[:, n], rank) for rank, n in enumerate(seen)], 1)
    v = np.concatenate([values[:, n] for n in seen], 1)
    own = q.reshape(heads, chunk, tokens, width)
    queries = np.concatenate([rotated(own[:, i], len(seen) - chunk + i) for i in range(chunk)], 1)
    found = softmax_rows(arithmetic, queries.swapaxes(0, 1), k, v, rounded=2.0)
    parts = {name: getattr(found, name).swapaxes(0, 1) for name in ("value", "inner", "outer")}
    return Truth(**parts)


def window_cases() -> list[Case]:
    """The window not yet full, just full, and far past it."""
    tokens = 5
    return [
        Case(
            name=f"{frames} frames by {chunk}, {dtype}",
            inputs=(
                normals(2, chunk * tokens, 64, seed=frames),
                normals(2, frames, tokens, 64, seed=frames + 1).to(dtype).float(),
                (normals if frames < 18 else uniforms)(2, frames, tokens, 64, seed=frames + 2)
                .to(dtype)
                .float(),
            ),
            options={"chunk": chunk, "size": 7, "sink": sink, "dtype": dtype},
        )
        for dtype in (BF16, torch.float32)
        for frames, chunk, sink in ((3, 3, 1), (6, 1, 0), (9, 3, 3), (18, 3, 1))
    ]


ENTRIES = [
    Entry(
        name="attention/dense",
        run=plain,
        truth=softmax_rows,
        cases=plain_cases,
        rows=(True, False, False),
        inner_roundings=DOT,
        outer_roundings=2,
        why="8 of a logit's products; exponential, total and quotient in the 2; the walk of the values' sum; weights "
        "and result are rounded",
        alone="bound",
    ),
    Entry(
        name="attention/generated",
        run=generated,
        truth=softmax_rows,
        cases=generated_cases,
        rows=(True, False, False, False),
        inner_roundings=DOT,
        outer_roundings=2,
        why="as dense",
        alone="bound",
    ),
    Entry(
        name="attention/recency",
        run=recent,
        truth=recent_truth,
        cases=recent_cases,
        rows=(True, False, False),
        inner_roundings=DOT,
        outer_roundings=2,
        why="as dense",
        alone="bound",
    ),
    Entry(
        name="attention/recency law",
        run=recency,
        truth=recency_truth,
        cases=lambda: [Case(name="every age", inputs=(torch.arange(0, 9),))],
        rows=(True,),
        inner=torch.float64,
        inner_roundings=4,
        why="float64: quotient, squares and products, power",
        host=True,
    ),
    Entry(
        name="attention/video window",
        run=window,
        truth=window_truth,
        cases=window_cases,
        rows=(True, True, True),
        inner_roundings=DOT,
        outer_roundings=2,
        why="as dense, with keys and queries that were turned and rounded; a row is a head",
    ),
]
