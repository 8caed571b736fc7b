"""Norms, modulations, activations, feed-forwards and embeddings of the networks.

A sum of K products is held to 8 roundings of its sum of absolute terms: libraries add in at least 8 lanes and in
blocks, and a rounding is as often up as down. A sum kept in 11 bits is a hundred times beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from worldloop.models.causal import RMSNorm, modulated, sinusoids
from worldloop.models.layers import HeadNorm, NumberEmbedding, SwiGLU, film

from ..arithmetic import Arithmetic, Array
from ..registry import Case, Entry, Truth, load, normals, uniforms

DOT = 8
BF16 = torch.bfloat16


# -- norms --------------------------------------------------------------------------------------------------------
def rms(arithmetic: Arithmetic, x: Array, eps: float) -> Array:
    """x over its root mean square."""
    keep = arithmetic.keep
    mean = keep(arithmetic.total(keep(x * x)) / x.shape[-1])
    return keep(x / np.sqrt(mean + eps)[..., None])


def head_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Rows `[R, H, K]`, as the network has them `[H, R, K]`."""
    norm = load(HeadNorm(*weight.shape), (weight[:, None],))
    return norm(x.transpose(0, 1)).transpose(0, 1).contiguous()


def head_norm_truth(arithmetic: Arithmetic, x: Array, weight: Array) -> Truth:
    value = arithmetic.keep(rms(arithmetic, x, 1e-6) * weight)
    return Truth(value=value, inner=np.abs(value))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return load(RMSNorm(len(weight), 1e-6), (weight,))(x)


def rms_norm_truth(arithmetic: Arithmetic, x: Array, weight: Array) -> Truth:
    value = arithmetic.keep(rms(arithmetic, x, 1e-6) * weight)
    return Truth(value=value, inner=np.abs(value))


def norm_cases(width: int, *weight: int) -> list[Case]:
    """Rows of several sizes, of one sign, of almost nothing and of nothing."""
    gain = normals(*weight, seed=1) + 1
    x = normals(33, *weight, seed=2) * torch.logspace(-4, 4, 33).view(33, *(1 for _ in weight))
    x[16] = 0
    x[17] = 1e-6
    cases = [Case(name=f"{width} wide", inputs=(x, gain))]
    return [*cases, Case(name=f"{width} wide, one sign", inputs=(uniforms(5, *weight, seed=3), gain))]


def in_bf16(cases: list[Case]) -> list[Case]:
    """The same inputs in bfloat16."""
    return [
        Case(name=f"{c.name}, bf16", inputs=tuple(x.to(BF16) for x in c.inputs), options=c.options)
        for c in cases
    ]


# -- modulations --------------------------------------------------------------------------------------------------
def modulation(eps: float) -> Callable[..., Truth]:
    """LayerNorm without gain, times 1 + scale, plus shift."""

    def truth(arithmetic: Arithmetic, x: Array, shift: Array, scale: Array) -> Truth:
        keep, width = arithmetic.keep, x.shape[-1]
        mean = keep(arithmetic.total(x) / width)[..., None]
        centred = keep(x - mean)
        deviation = np.sqrt(keep(arithmetic.total(keep(centred * centred)) / width) + eps)[..., None]
        gain = keep(1 + scale)
        value = keep(keep(centred / deviation * gain) + shift)
        reach = (np.abs(x) + np.abs(x).mean(-1, keepdims=True)) / deviation
        # A mean that is off moves every number of the row, and their deviation with it.
        inner = reach * np.abs(gain) * (1 + np.abs(centred) / deviation) + np.abs(shift)
        outer = np.abs(centred / deviation) * (np.abs(gain) + 1 + np.abs(scale)) + np.abs(shift)
        return Truth(value=value, inner=inner, outer=outer)

    return truth


def modulation_cases(width: int) -> list[Case]:
    """Rows around 0, and rows far from 0 beside their deviation; each row with its own shift and scale."""
    shift, scale = normals(9, width, seed=5), normals(9, width, seed=6)
    x = normals(9, width, seed=7) * torch.logspace(-2, 3, 9)[:, None]
    away = normals(9, width, seed=8) + 30
    cases = [
        Case(name=f"{width} wide", inputs=(x, shift, scale)),
        Case(name="far off", inputs=(away, shift, scale)),
    ]
    return [*cases, *in_bf16(cases[:1])]


# -- feed-forwards ------------------------------------------------------------------------------------------------
def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def steepness(x: Array) -> Array:
    """Largest slope of silu and of gelu, neither of which is monotone: below 1.13 everywhere."""
    return np.full_like(x, 1.13)


def swiglu(x: Tensor, proj: Tensor, out: Tensor) -> Tensor:
    return load(SwiGLU(x.shape[-1], out.shape[1]), (proj, out))(x)


def swiglu_truth(arithmetic: Arithmetic, x: Array, proj: Array, out: Array) -> Truth:
    keep = arithmetic.keep
    value, gate = np.split(arithmetic.dot(x, proj), 2, axis=-1)
    value_size, gate_size = np.split(np.abs(x) @ np.abs(proj).T, 2, axis=-1)
    hidden = keep(keep(silu(gate)) * value)
    size = steepness(gate) * gate_size * np.abs(value) + np.abs(silu(gate)) * value_size + np.abs(hidden)
    outer = steepness(gate) * np.abs(gate * value) + 3 * np.abs(hidden)
    result = arithmetic.dot(hidden, out)
    return Truth(value=result, inner=size @ np.abs(out).T, outer=outer @ np.abs(out).T + np.abs(result))


def feed_forward(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, last: Tensor) -> Tensor:
    """The video network's: linear, tanh-GELU, linear."""
    layers = nn.Sequential(
        nn.Linear(first.shape[1], first.shape[0]), nn.GELU(approximate="tanh"), nn.Linear(*second.shape[::-1])
    )
    return load(layers, (first, bias, second, last))(x)


def feed_forward_truth(
    arithmetic: Arithmetic, x: Array, first: Array, bias: Array, second: Array, last: Array
) -> Truth:
    keep = arithmetic.keep
    before = keep(arithmetic.dot(x, first) + bias)
    size = np.abs(x) @ np.abs(first).T + np.abs(bias)
    hidden = keep(gelu_tanh(before))
    value = keep(arithmetic.dot(hidden, second) + last)
    inner = (steepness(before) * size + np.abs(hidden)) @ np.abs(second).T + np.abs(last)
    outer = (
        (steepness(before) * np.abs(before) + np.abs(hidden)) @ np.abs(second).T
        + np.abs(value)
        + np.abs(last)
    )
    return Truth(value=value, inner=inner, outer=outer)


def swiglu_cases() -> list[Case]:
    """The shipped width, rows near the knee of silu, and sums of one sign."""
    proj, out = normals(2 * 704, 256, seed=11) / 16, normals(256, 704, seed=12) / 26
    x = normals(7, 256, seed=13)
    one_sign = (
        uniforms(3, 32, seed=14),
        uniforms(2 * 3456, 32, seed=15) / 8,
        uniforms(32, 3456, seed=16) / 59,
    )
    cases = [
        Case(name="256 to 704", inputs=(x, proj, out)),
        Case(name="near the knee", inputs=(x * 0.01 - 0.08, proj.abs(), out)),
        Case(name="one sign", inputs=one_sign),
    ]
    return [*cases, *in_bf16(cases)]


def feed_forward_cases() -> list[Case]:
    width, hidden = 256, 512
    inputs = (
        normals(7, width, seed=21), normals(hidden, width, seed=22) / 16, normals(hidden, seed=23),
        normals(48, hidden, seed=24) / 22, normals(48, seed=25),
    )  # fmt: skip
    one_sign = (
        uniforms(3, 32, seed=26), uniforms(8960, 32, seed=27) / 8, uniforms(8960, seed=28),
        uniforms(8, 8960, seed=29) / 95, uniforms(8, seed=30),
    )  # fmt: skip
    cases = [Case(name="256 to 512", inputs=inputs), Case(name="one sign", inputs=one_sign)]
    return [*cases, *in_bf16(cases)]


# -- embeddings ---------------------------------------------------------------------------------------------------
def embedding(value: Tensor, hidden: Tensor, bias: Tensor, out: Tensor, last: Tensor) -> Tensor:
    return load(NumberEmbedding(len(last), period=10_000.0), (hidden, bias, out, last))(value)


def embedding_truth(
    arithmetic: Arithmetic, value: Array, hidden: Array, bias: Array, out: Array, last: Array
) -> Truth:
    """Frequencies are 10,000^(-i / 64) to 8 bits, as trained."""
    keep = arithmetic.keep
    frequency = torch.tensor([10_000.0 ** (-i / 64) for i in range(64)]).to(BF16).double().numpy()
    angle = keep(value[:, None] * frequency)
    waves = keep(np.concatenate((np.cos(angle), np.sin(angle)), -1))
    off = np.concatenate((np.abs(angle), np.abs(angle)), -1) + np.abs(waves)
    before = keep(arithmetic.dot(waves, hidden) + bias)
    size = off @ np.abs(hidden).T + np.abs(bias)
    activated = keep(silu(before))
    size = (steepness(before) * size + np.abs(activated)) @ np.abs(out).T + np.abs(last)
    return Truth(value=keep(arithmetic.dot(activated, out) + last), inner=size)


def embedding_cases() -> list[Case]:
    """Every timestep that is served, frames a second, and nothing."""
    weights = (
        normals(96, 128, seed=31) / 11,
        normals(96, seed=32),
        normals(96, 96, seed=33) / 10,
        normals(96, seed=34),
    )
    return [Case(name="0 to 999", inputs=(torch.tensor([0.0, 1, 8, 24, 548, 669, 878, 999]), *weights))]


def sinusoids_truth(arithmetic: Arithmetic, values: Array, *, width: int) -> Truth:
    angle = arithmetic.keep(values[:, None] / 10_000.0 ** (np.arange(width // 2) / (width // 2)))
    value = arithmetic.keep(np.concatenate((np.cos(angle), np.sin(angle)), -1))
    return Truth(value=value, inner=np.concatenate((np.abs(angle), np.abs(angle)), -1))


ENTRIES = [
    Entry(
        name="norm/head RMS",
        run=head_norm,
        truth=head_norm_truth,
        cases=lambda: [*norm_cases(64, 20, 64), *norm_cases(96, 1, 96)],
        rows=(True, False),
        inner_roundings=7,
        why="mean of squares: 8 of a sum, half of it in the root; root 1, two products",
    ),
    Entry(
        name="norm/RMS",
        run=rms_norm,
        truth=rms_norm_truth,
        cases=lambda: [*in_bf16(norm_cases(1536, 1536)), *norm_cases(1536, 1536), *norm_cases(24, 24)],
        rows=(True, False),
        inner_roundings=7,
        outer_roundings=2,
        why="mean of squares: 8 of a sum, half of it in the root; root 1, two products; normed and weighed are rounded",
    ),
    Entry(
        name="norm/FiLM",
        run=film,
        truth=modulation(1e-5),
        cases=lambda: modulation_cases(1280),
        rows=(True, True, True),
        inner_roundings=DOT,
        outer_roundings=2,
        why="mean and deviation: 8 of a sum; normed, 1 + scale, product and sum are rounded, half a step each",
    ),
    Entry(
        name="norm/video modulation",
        run=lambda x, shift, scale: modulated(x, shift, scale, 1e-6),
        truth=modulation(1e-6),
        cases=lambda: modulation_cases(1536),
        rows=(True, True, True),
        inner_roundings=DOT,
        outer_roundings=2,
        why="mean and deviation: 8 of a sum; normed, 1 + scale, product and sum are rounded, half a step each",
    ),
    Entry(
        name="feed-forward/SwiGLU",
        run=swiglu,
        truth=swiglu_truth,
        cases=swiglu_cases,
        rows=(True, False, False),
        inner_roundings=DOT,
        why="a sum of products at each end: 8 each of their own terms",
        alone="bound",
    ),
    Entry(
        name="feed-forward/tanh GELU",
        run=feed_forward,
        truth=feed_forward_truth,
        cases=feed_forward_cases,
        rows=(True, False, False, False, False),
        inner_roundings=DOT,
        why="a sum of products at each end: 8 each of their own terms",
        alone="bound",
    ),
    Entry(
        name="embedding/number",
        run=embedding,
        truth=embedding_truth,
        cases=embedding_cases,
        rows=(True, False, False, False, False),
        inner_roundings=DOT,
        why="the angle is rounded, and the cosine passes that on; two sums of products, 8 each",
        alone="bound",
    ),
    Entry(
        name="embedding/sinusoids",
        run=sinusoids,
        truth=sinusoids_truth,
        cases=lambda: [
            Case(
                name=f"width {width}",
                inputs=(torch.tensor([0.0, 1, 24.5, 833.3, 1000]).double(),),
                options={"width": width},
            )
            for width in (256, 12)
        ],
        rows=(True,),
        inner=torch.float64,
        inner_roundings=4,
        why="float64: power, quotient, product, cosine",
    ),
]
