"""Pieces that are broken on purpose. Each is an entry with one thing changed, and the gate that must be red for it.

accuracy  another formula: what a slip of the pen makes of the piece
repeat    a result that is not all written, or that remembers the call before
rows      a scale, a mean or a neighbour that the whole batch shares
narrow    a bound too wide, or cases too easy, to see a sum that is kept in too few bits
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldloop.models import causal, fp8, layers
from worldloop.models.autoencoder import normalise
from worldloop.models.causal_memory import turn
from worldloop.models.flow import guide
from worldloop.models.fp8 import Fp8Linear
from worldloop.models.moss.transformer import squashed
from worldloop.models.noise import normal
from worldloop.models.rope import RopeConfig, RopeTables, rotate
from worldloop.models.sampling import add_noise, predict_x0
from worldloop.models.summaryformer import attend

from .entries import ENTRIES, attention, moss, networks, noise, pictures, positions, quantised, sampling
from .registry import Entry, load

Run = Callable[..., Tensor]


@dataclass(frozen=True)
class Control:
    """A broken entry and the gate that it must not pass."""

    entry: Entry
    gate: str


CONTROLS: dict[str, Control] = {}


def plant(gate: str, name: str, fault: str, run: Run | None = None, **changes: Any) -> None:
    """One control: the entry `name` with another piece, or with something else about it changed."""
    entry = ENTRIES[name]
    CONTROLS[f"{gate}: {name}, {fault}"] = Control(replace(entry, run=run or entry.run, **changes), gate)


def swapped(run: Run, one: int, other: int) -> Run:
    """The piece with two of its inputs in each other's place."""

    def broken(*inputs: Tensor, **options: Any) -> Tensor:
        order = list(inputs)
        order[one], order[other] = order[other], order[one]
        return run(*order, **options)

    return broken


def told(run: Run, **changes: Any) -> Run:
    """The piece told other options."""
    return lambda *inputs, **options: run(*inputs, **{**options, **changes})


# -- accuracy -----------------------------------------------------------------------------------------------------
def layer_norm_of_heads(x: Tensor, weight: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * x.var(-1, keepdim=True).add(1e-6).rsqrt() * weight


def rms_added_after(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6) * weight


def sample_deviation(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    wide = x.float()
    normed = (wide - wide.mean(-1, keepdim=True)) / (wide.var(-1, keepdim=True) + 1e-5).sqrt()
    return (normed * (1 + scale) + shift).to(x.dtype)


def exact_gelu(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, last: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, first, bias)), second, last)


def gate_first(x: Tensor, proj: Tensor, out: Tensor) -> Tensor:
    gate, value = F.linear(x, proj).chunk(2, -1)
    return F.linear(F.silu(gate) * value, out)


def turned_again(keys: Tensor, *, frames: int, dtype: torch.dtype) -> Tensor:
    """The start picture's keys in their format, turned from where they stand at every move."""
    table = RopeTables(RopeConfig(head_dim=keys.shape[1], grid=(len(keys), 1), summary_tokens=0))
    held, sink = keys.to(dtype), 0
    for frame in range(1, frames + 1):
        oldest = max(1, frame - 5)
        if oldest - sink >= 3:
            held = rotate(held.float(), *table.forward_in_time(oldest - 1 - sink)).to(dtype)
            sink = oldest - 1
    return held


def single_angles(ids: Tensor, *, head_dim: int, grid: tuple[int, int], summaries: int) -> Tensor:
    """The table of time with angles made in float32."""
    found = positions.level_table(ids, head_dim=head_dim, grid=grid, summaries=summaries)
    time = head_dim * 3 // 16
    angle = ids.float()[:, None] * 10_000.0 ** -(torch.arange(time - 2) / time)
    found[..., : time - 2] = angle.cos()[:, None]
    return found


def without_level(ids: Tensor, *, head_dim: int, grid: tuple[int, int], summaries: int) -> Tensor:
    """Summary tokens at the level of raw ones."""
    found = positions.level_table(ids, head_dim=head_dim, grid=grid, summaries=summaries)
    time = head_dim * 3 // 16
    found[:, :, time - 2 : time], found[:, :, head_dim // 2 + time - 2 : head_dim // 2 + time] = 1, 0
    return found


def with_bias_on(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.zeros(k.shape[1], device=k.device)
    bias[-1] = -1 if k.shape[1] > 1 else math.nan
    return attend(q.transpose(0, 1)[None], k[None], v[None], bias)[0].transpose(0, 1).contiguous()


def linear_ramp(ages: Tensor) -> Tensor:
    flat, end, beta, gamma = attention.LAW
    return -beta * ((ages - flat) / (end - flat)).clamp(0, 1).double() ** gamma


def unshifted(timesteps: Tensor, *, ratio: float) -> Tensor:
    """The cosine without its offset."""
    signal = (timesteps.double() / 1000 * math.pi / 2).cos() ** 2
    share = signal * ratio**2 / (signal * ratio**2 + 1 - signal)
    return torch.stack((share.sqrt(), (1 - share).sqrt()), -1)


def philox_in_single(keys: Tensor, *, count: int) -> Tensor:
    """The same words through float32 logarithms and cosines."""
    result = []
    for seed, frame, step in keys.tolist():
        words = np.array(noise.philox(seed, frame, step, (count + 1) // 2), dtype=np.uint64)
        radius = np.sqrt(-2 * np.log((((words >> 32) + 1) / 2**32).astype(np.float32)))
        angle = ((words & 0xFFFFFFFF) / 2**32).astype(np.float32) * np.float32(2 * math.pi)
        result.append(np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count])
    return torch.from_numpy(np.stack(result))


def whole_groups_only(seeds: Tensor, *, count: int) -> Tensor:
    """The last 16 numbers are not drawn anew."""
    return noise.portable(seeds, count=count + -count % 16)[:, :count]


def one_bit_less(x: Tensor) -> Tensor:
    return fp8.to_e4m3(x.clamp(-448, 448).to(torch.float8_e5m2).float())


def without_saturation(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 464, fp8.to_e4m3(x).float(), math.inf).to(torch.float32)


def cut_to_bytes(rgb: Tensor) -> Tensor:
    mean, std = (
        torch.tensor(each, dtype=torch.float32, device=rgb.device) for each in (pictures.MEAN, pictures.STD)
    )
    return ((rgb * std + mean) * 255).clamp(0, 255).to(torch.uint8)


def corner_chroma(rgb: Tensor) -> Tensor:
    """Chroma of a block's first pixel."""
    return pictures.planes(rgb[:, ::2, ::2].repeat_interleave(2, 1).repeat_interleave(2, 2))


def across(cells: Tensor) -> Tensor:
    """Rows and columns of a cell in each other's place."""
    turned = cells.unflatten(-1, (4, 16, 16, 3)).transpose(-3, -2).flatten(-4)
    return pictures.packed(turned.contiguous())


plant("accuracy", "rope/rotate", "neighbours as pairs", turn)
plant("accuracy", "rope/rotate", "the other way round", lambda x, cos, sin: rotate(x, cos, -sin))
plant("accuracy", "rope/turn", "halves as pairs", lambda x, cos, sin: rotate(x.float(), cos, sin).to(x.dtype))
plant(
    "accuracy",
    "rope/turn",
    "angles in bfloat16",
    lambda x, cos, sin: turn(x, cos.bfloat16(), sin.bfloat16()).to(x.dtype),
)
plant("accuracy", "rope/level table", "angles in float32", single_angles)
plant("accuracy", "rope/level table", "no level", without_level)
plant(
    "accuracy",
    "rope/level table",
    "a frame late",
    lambda ids, **kw: positions.level_table((ids - 1).clamp(0), **kw),
)
plant("accuracy", "rope/grid table", "a frame late", lambda at, **kw: positions.grid_table(at - 1, **kw))
plant("accuracy", "rope/sink rotation", "turned in place", turned_again)
plant(
    "accuracy",
    "rope/sink rotation",
    "a frame too far",
    lambda keys, *, frames, dtype: positions.moved_sink(keys, frames=frames + 1, dtype=dtype),
)
plant("accuracy", "norm/head RMS", "mean removed", layer_norm_of_heads)
plant("accuracy", "norm/head RMS", "eps beside the root", rms_added_after)
plant("accuracy", "norm/RMS", "another eps", lambda x, w: load(causal.RMSNorm(len(w), 1e-5), (w,))(x))
plant("accuracy", "norm/FiLM", "deviation of a sample", sample_deviation)
plant("accuracy", "norm/FiLM", "shift and scale swapped", swapped(layers.film, 1, 2))
plant("accuracy", "norm/video modulation", "another eps", layers.film)
plant("accuracy", "feed-forward/SwiGLU", "gate and value swapped", gate_first)
plant("accuracy", "feed-forward/tanh GELU", "the exact GELU", exact_gelu)
plant("accuracy", "embedding/number", "a tenth more", lambda v, *w: networks.embedding(v + 0.1, *w))
plant(
    "accuracy",
    "embedding/sinusoids",
    "in float32",
    lambda v, *, width: causal.sinusoids(v, width).float().double(),
)
plant("accuracy", "attention/dense", "a bias on one key", with_bias_on)
plant(
    "accuracy",
    "attention/generated",
    "no bias",
    lambda q, k, v, b: attention.generated(q, k, v, b.clamp(max=0) * (b < -9)),
)
plant("accuracy", "attention/recency", "no bias", told(attention.recent, beta=1e-9))
plant("accuracy", "attention/recency", "the start picture stays", told(attention.recent, gap=64))
plant("accuracy", "attention/recency law", "a straight ramp", linear_ramp)
plant("accuracy", "attention/video window", "no sink", told(attention.window, sink=0))
plant("accuracy", "attention/video window", "a frame more", told(attention.window, size=8))
plant("accuracy", "schedule/world scales", "no offset", unshifted)
plant("accuracy", "schedule/world timesteps", "another shift", told(sampling.grid, shift=3.1))
plant("accuracy", "schedule/flow sigmas", "another shift", told(sampling.sigmas, shift=5.0001))
plant("accuracy", "solver/world x0", "the other sign", lambda x, v, **kw: predict_x0(x, -v, **kw))
plant("accuracy", "solver/world noise", "signal and noise swapped", swapped(add_noise, 0, 1))
plant("accuracy", "solver/sphere", "radius 1", lambda x: F.normalize(x, dim=-1))
plant("accuracy", "solver/flow x0", "in float32", lambda x, v, *, sigma: x - sigma * v)
plant("accuracy", "solver/flow mix", "in float32", lambda x, n, *, sigma: (1 - sigma) * x + sigma * n)
plant("accuracy", "solver/euler", "in float32", lambda x, v, *, sigma, after: x + (after - sigma) * v)
plant(
    "accuracy",
    "solver/renoise",
    "the noise of before",
    lambda x, v, fresh, **kw: ENTRIES["solver/renoise"].run(x, v, x, **kw),
)
plant("accuracy", "solver/guidance", "branches swapped", swapped(guide, 0, 1))
plant(
    "accuracy",
    "noise/counter",
    "frame and step swapped",
    lambda keys, **kw: noise.counted(keys[:, [0, 2, 1]], **kw),
)
plant("accuracy", "noise/counter", "in float32", philox_in_single)
plant("accuracy", "noise/portable", "the last group kept", whole_groups_only)
plant("accuracy", "fp8/e4m3", "a bit less", one_bit_less)
plant("accuracy", "fp8/e4m3", "no saturation", without_saturation)
plant(
    "accuracy",
    "fp8/scales",
    "scaled to 240",
    lambda x: quantised.values_and_scales(x) * torch.tensor(448 / 240),
)
plant("accuracy", "fp8/layer by row", "not quantised", lambda x, w: F.linear(x, w))
plant(
    "accuracy",
    "latents/gaussianise",
    "those of first frames",
    lambda x, m, s: pictures.stats(m, s).gaussianise(x, first=True),
)
plant(
    "accuracy",
    "latents/restore",
    "those of first frames",
    lambda x, m, s: pictures.stats(m, s).restore(x, first=True),
)
plant("accuracy", "autoencoder/encoder", "no correction", lambda x, w, b, *_: F.linear(x, w, b))
plant("accuracy", "autoencoder/decoder", "latents swapped", swapped(pictures.decoded, 0, 1))
plant("accuracy", "pixels/normalise", "of 256", lambda rgb: normalise(rgb.float() * (255 / 256)))
plant("accuracy", "pixels/to bytes", "cut, not rounded", cut_to_bytes)
plant("accuracy", "pixels/pack", "rows and columns swapped", across)
plant("accuracy", "pixels/split", "upside down", lambda rgb: pictures.split(rgb.flip(2)))
plant("accuracy", "pixels/4:2:0 planes", "chroma of one pixel", corner_chroma)
plant("accuracy", "pixels/4:2:0 planes", "blue first", lambda rgb: pictures.planes(rgb.flip(-1).contiguous()))
plant(
    "accuracy", "moss/rotate", "halves as pairs", lambda x, cos, sin: rotate(x.float(), cos, sin).to(x.dtype)
)
plant(
    "accuracy",
    "moss/table",
    "a text that is a row longer",
    lambda rows, *, text, grid: moss.table(rows + (rows >= grid[0] * grid[1]), text=text + 1, grid=grid),
)
plant("accuracy", "moss/activation", "gate and value swapped", swapped(squashed, 0, 1))
plant("accuracy", "moss/timesteps", "another shift", told(moss.timesteps, shift=5.5))
plant("accuracy", "moss/euler", "the step before", told(ENTRIES["moss/euler"].run, after=1.0))
plant("accuracy", "moss/restore", "no eps", lambda rows, var, mean: rows * var.sqrt() + mean)
plant(
    "accuracy",
    "moss/unpack",
    "rows and columns swapped",
    lambda x, **kw: moss.unpacked(x[:, [0, 2, 1, 3]], **kw),
)
plant(
    "accuracy",
    "moss/to bytes",
    "cut, not rounded",
    lambda x: ((x / 2 + 0.5).clamp(0, 1) * 255).to(torch.uint8).movedim(1, -1),
)


# -- repeat -------------------------------------------------------------------------------------------------------
def half_written(run: Run) -> Run:
    """The last number of a result is whatever lay in memory."""

    def broken(*inputs: Tensor, **options: Any) -> Tensor:
        found = run(*inputs, **options)
        result = torch.empty(found.shape, dtype=found.dtype, device=found.device)
        result.view(-1)[:-1] = found.reshape(-1)[:-1]
        return result

    return broken


def remembering(run: Run) -> Run:
    """The first number of a result counts the calls."""
    calls = count()

    def broken(*inputs: Tensor, **options: Any) -> Tensor:
        found = run(*inputs, **options).clone()
        found.view(-1)[0] += next(calls)
        return found

    return broken


def weightless(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows that were never written are read with no weight: nothing times NaN is NaN."""
    more = torch.empty_like(k)
    bias = torch.cat((torch.zeros(k.shape[1]), torch.full((k.shape[1],), -math.inf))).to(k.device)
    both = (torch.cat((each, more), 1)[None] for each in (k, v))
    return attend(q.transpose(0, 1)[None], *both, bias)[0].transpose(0, 1).contiguous()


for each in ("rope/rotate", "norm/FiLM", "solver/euler", "fp8/layer by row", "pixels/pack", "noise/portable"):
    plant("repeat", each, "not all written", half_written(ENTRIES[each].run))
for each in ("noise/counter", "rope/grid table", "solver/world noise", "attention/recency"):
    plant("repeat", each, "remembers", remembering(ENTRIES[each].run))
plant("repeat", "attention/dense", "unwritten keys of no weight", weightless)


# -- rows ---------------------------------------------------------------------------------------------------------
def one_scale(x: Tensor, weight: Tensor) -> Tensor:
    plain = load(nn.Linear(*weight.shape[::-1], bias=False), (weight,))
    return Fp8Linear(plain, "tensor")(x)


def neighbourly(run: Run) -> Run:
    """A trace of the next row in every row."""

    def broken(*inputs: Tensor, **options: Any) -> Tensor:
        found = run(*inputs, **options)
        return found + (found.roll(-1, 0) * 0.01).to(found.dtype)

    return broken


def numbered(run: Run) -> Run:
    """A row's place in its batch shows in it."""

    def broken(*inputs: Tensor, **options: Any) -> Tensor:
        found = run(*inputs, **options)
        place = torch.arange(len(found), device=found.device).view(-1, *(1,) * (found.ndim - 1))
        return found * (1 + place / 100).to(found.dtype)

    return broken


def one_stream(keys: Tensor, *, count: int) -> Tensor:
    """Rows drawn one after the other from the first row's generator."""
    seed, frame, step = keys[0].tolist()
    return normal((len(keys), count), seed=seed, frame=frame, step=step)


plant("rows", "fp8/layer by row", "one scale for all", one_scale)
plant(
    "rows", "norm/RMS", "one mean for all", lambda x, w: x * x.float().square().mean().rsqrt().to(x.dtype) * w
)
plant("rows", "noise/counter", "one stream for all", one_stream)
plant("rows", "latents/gaussianise", "the batch's own mean", lambda x, m, s: (x - x.mean(0)) / s)
for each in ("feed-forward/SwiGLU", "attention/dense", "attention/video window", "autoencoder/encoder"):
    plant("rows", each, "a trace of a neighbour", neighbourly(ENTRIES[each].run))
for each in ("rope/turn", "solver/sphere", "norm/head RMS", "embedding/number", "moss/activation"):
    plant("rows", each, "its place shows", numbered(ENTRIES[each].run))


# -- narrow -------------------------------------------------------------------------------------------------------
def only(name: str, *words: str) -> Callable[[], list[Any]]:
    """The entry's cases that have one of these words in their names."""
    return lambda: [case for case in ENTRIES[name].cases() if any(word in case.name for word in words)]


for each, roundings in (
    ("norm/head RMS", 1e5), ("feed-forward/SwiGLU", 1e6), ("attention/dense", 1e7), ("autoencoder/encoder", 1e8),
    ("solver/guidance", 1e5), ("embedding/number", 1e5), ("solver/flow x0", 1e14), ("moss/activation", 1e5),
):  # fmt: skip
    plant("narrow", each, "a bound too wide", inner_roundings=roundings)
plant("narrow", "fp8/layer by row", "a result of a few bits", outer_roundings=300)
plant("narrow", "moss/activation", "bfloat16 alone hides it", cases=only("moss/activation", "bfloat16"))
plant(
    "narrow",
    "attention/recency",
    "bfloat16 and few keys hide it",
    cases=only("attention/recency", "bfloat16"),
)
plant("narrow", "pixels/4:2:0 planes", "flat colours hide it", cases=only("pixels/4:2:0 planes", "flat"))
plant(
    "narrow",
    "pixels/to bytes",
    "a level off is allowed",
    truth=lambda *args: replace(pictures.bytes_truth(*args), slack=1.0),
)
plant("narrow", "schedule/world timesteps", "single precision", fewer=24)
