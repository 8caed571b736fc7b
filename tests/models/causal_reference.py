"""Causal video from its specification in float64 numpy: network, window, guidance, solvers, prompt changes.

Every frame's keys and values are kept for ever, unrotated, in a list; what a chunk may see of the list is a mask over
all of it, and positions are ranks among what is seen. No buffer, no slots, no code shared with the package. Shapes: F
frames of a chunk, C channels, y x x cells, N tokens a frame, R = F N rows, D width, H heads, K head width, E words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reference import silu, softmax

Array = NDArray[Any]
Weights = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Sizes that weights don't say, and the rules of the window."""

    heads: int
    layers: int
    patch: int
    freq_dim: int
    text_len: int
    chunk: int
    window: int
    sink: int
    eps: float = 1e-6


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def waves(value: float, width: int) -> Array:
    """Cosines, then sines, of a number at wavelengths from 1 to 10,000."""
    angle = [value / 10_000 ** (i / (width // 2)) for i in range(width // 2)]
    return np.array([math.cos(a) for a in angle] + [math.sin(a) for a in angle])


def linear(w: Weights, name: str, x: Array) -> Array:
    return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])


def layer_norm(x: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps))


def rms_norm(w: Weights, name: str, x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"])


def heads_of(x: Array, heads: int) -> Array:
    """`[R, D]` to `[H, R, K]`."""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def turns(positions: Sequence[int], grid: tuple[int, int], head_dim: int) -> Array:
    """Unit complex numbers `[T * N, K / 2]`: pairs for time, then row, then column, each with its own wavelengths."""
    side = head_dim // 6
    parts = (head_dim // 2 - 2 * side, side, side)
    rows = []
    for t in positions:
        for i in range(grid[0]):
            for j in range(grid[1]):
                angle = [
                    place / 10_000 ** (2 * p / (2 * count))
                    for place, count in zip((t, i, j), parts, strict=True)
                    for p in range(count)
                ]
                rows.append(np.exp(1j * np.array(angle)))
    return np.array(rows)


def turn(x: Array, by: Array) -> Array:
    """Neighbouring channels of `[H, R, K]` are the real and imaginary part of one number."""
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * by
    result = np.empty_like(x)
    result[..., 0::2], result[..., 1::2] = turned.real, turned.imag
    return result


def text_vectors(w: Weights, spec: Spec, text: Array) -> Array:
    """Word numbers `[e]` or vectors `[e, text_dim]` to `[E, D]`; what is missing is zeros."""
    if text.ndim == 1:
        table = w["words.weight"]
        rows = [
            table[n] + waves(i, table.shape[1]) if n else np.zeros(table.shape[1]) for i, n in enumerate(text)
        ]
        text = np.array(rows)
    padded = np.zeros((spec.text_len, text.shape[1]))
    padded[: len(text)] = text
    return linear(w, "text_embedding.2", gelu(linear(w, "text_embedding.0", padded)))


@dataclass
class Frame:
    """Unrotated keys and values of one frame, by layer, `[H, N, K]` each."""

    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)


@dataclass
class Branch:
    """One prompt's memory: every frame that was ever committed, and the text."""

    text: Array
    frames: list[Frame] = field(default_factory=list)


def velocity(w: Weights, spec: Spec, x: Array, timestep: float, branch: Branch) -> tuple[Array, list[Frame]]:
    """v `[F, C, y, x]` of a chunk after the branch's frames, and what the chunk's frames would be remembered by."""
    count, channels, height, width = x.shape
    p = spec.patch
    grid = height // p, width // p
    tokens = grid[0] * grid[1]
    kernel = w["patch_embedding.weight"].reshape(-1, channels * p * p)
    cells = x.reshape(count, channels, grid[0], p, grid[1], p).transpose(0, 2, 4, 1, 3, 5)
    h = cells.reshape(count * tokens, -1) @ kernel.T + w["patch_embedding.bias"]
    embedded = silu(linear(w, "time_embedding.0", waves(timestep, spec.freq_dim)))
    embedded = linear(w, "time_embedding.2", embedded)
    six = linear(w, "time_projection.1", silu(embedded)).reshape(6, -1)
    text = text_vectors(w, spec, branch.text)

    begin, end = len(branch.frames), len(branch.frames) + count
    seen = [n for n in range(end) if n < spec.sink or n >= end - (spec.window - spec.sink)]
    position = [seen.index(n) if n in seen else 0 for n in range(end)]
    visible = np.repeat([n in seen for n in range(end)], tokens)
    head_dim = h.shape[1] // spec.heads
    rotation = turns(position, grid, head_dim)
    fresh = [Frame() for _ in range(count)]

    for layer in range(spec.layers):
        part = f"blocks.{layer}"
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = six + w[f"{part}.modulation"][0]
        y = layer_norm(h, spec.eps) * (1 + scale_a) + shift_a
        name = f"{part}.self_attn"
        q = heads_of(rms_norm(w, f"{name}.norm_q", linear(w, f"{name}.q", y), spec.eps), spec.heads)
        k = heads_of(rms_norm(w, f"{name}.norm_k", linear(w, f"{name}.k", y), spec.eps), spec.heads)
        v = heads_of(linear(w, f"{name}.v", y), spec.heads)
        for i, frame in enumerate(fresh):
            frame.keys.append(k[:, i * tokens : (i + 1) * tokens])
            frame.values.append(v[:, i * tokens : (i + 1) * tokens])
        everything = branch.frames + fresh
        keys = turn(np.concatenate([frame.keys[layer] for frame in everything], 1), rotation)
        values = np.concatenate([frame.values[layer] for frame in everything], 1)
        logits = turn(q, rotation[begin * tokens :]) @ keys.swapaxes(1, 2) / math.sqrt(head_dim)
        out = softmax(np.where(visible, logits, -np.inf)) @ values
        h = h + gate_a * linear(w, f"{name}.o", out.swapaxes(0, 1).reshape(len(h), -1))

        name = f"{part}.cross_attn"
        y = layer_norm(h, spec.eps) * w[f"{part}.norm3.weight"] + w[f"{part}.norm3.bias"]
        q = heads_of(rms_norm(w, f"{name}.norm_q", linear(w, f"{name}.q", y), spec.eps), spec.heads)
        k = heads_of(rms_norm(w, f"{name}.norm_k", linear(w, f"{name}.k", text), spec.eps), spec.heads)
        v = heads_of(linear(w, f"{name}.v", text), spec.heads)
        out = softmax(q @ k.swapaxes(1, 2) / math.sqrt(head_dim)) @ v
        h = h + linear(w, f"{name}.o", out.swapaxes(0, 1).reshape(len(h), -1))

        y = layer_norm(h, spec.eps) * (1 + scale_f) + shift_f
        h = h + gate_f * linear(w, f"{part}.ffn.2", gelu(linear(w, f"{part}.ffn.0", y)))

    shift, scale = w["head.modulation"][0] + embedded
    out = linear(w, "head.head", layer_norm(h, spec.eps) * (1 + scale) + shift)
    out = out.reshape(count, grid[0], grid[1], p, p, channels).transpose(0, 5, 1, 3, 2, 4)
    return out.reshape(x.shape), fresh


@dataclass(kw_only=True)
class Rollout:
    """A whole rollout, one chunk after another.

    Attributes:
        prompts: text by number of the chunk from which on it counts; 0 must be there.
        noise: of a latent frame and step, `[C, y, x]`.
        sigmas: high to low, then 0.
        first: latent of frame 0, a chunk of its own.
        rewrites: whether a prompt change writes the window again.
    """

    w: Weights
    spec: Spec
    prompts: Mapping[int, Array]
    negative: Array
    guidance: float
    noise: Callable[[int, int], Array]
    sigmas: Sequence[float]
    solver: str
    first: Array | None = None
    rewrites: bool = True

    def run(self, chunks: int) -> Array:
        """Latents `[T, C, y, x]` of the first frame, if there is one, and `chunks` chunks."""
        self.latents: list[Array] = []
        self.groups: list[list[int]] = []
        self.cond, self.uncond = Branch(self.prompts[0]), Branch(self.negative)
        branches = [self.cond] if self.guidance == 1 else [self.cond, self.uncond]
        if self.first is not None:
            self._commit(branches, self.first[None])
        for chunk in range(chunks):
            if chunk and chunk in self.prompts:
                self._change(self.prompts[chunk])
            begin = len(self.latents)
            frames = range(begin, begin + self.spec.chunk)
            self._commit(branches, self._denoise(branches, frames))
        return np.stack(self.latents)

    def _denoise(self, branches: list[Branch], frames: range) -> Array:
        def noise(step: int) -> Array:
            return np.stack([self.noise(frame, step) for frame in frames])

        x = noise(0)
        for step, (sigma, after) in enumerate(zip(self.sigmas[:-1], self.sigmas[1:], strict=True)):
            v = velocity(self.w, self.spec, x, 1000 * sigma, branches[0])[0]
            if len(branches) == 2:
                without = velocity(self.w, self.spec, x, 1000 * sigma, branches[1])[0]
                v = without + self.guidance * (v - without)
            if self.solver == "euler":
                x = x + (after - sigma) * v
            else:
                x0 = x - sigma * v
                x = (1 - after) * x0 + after * noise(step + 1) if after else x0
        return x

    def _commit(self, branches: list[Branch], x: Array) -> None:
        for branch in branches:
            branch.frames += velocity(self.w, self.spec, x, 0.0, branch)[1]
        self.groups.append(list(range(len(self.latents), len(self.latents) + len(x))))
        self.latents += list(x)

    def _change(self, text: Array) -> None:
        """The memory begins anew with what the next chunk would see, under the new text."""
        self.cond.text = text
        if not self.rewrites:
            return
        end = len(self.latents)
        spec = self.spec
        recent = end - (spec.window - spec.sink - spec.chunk)
        self.cond.frames = []
        for group in self.groups:
            kept = [n for n in group if n < spec.sink or n >= recent]
            if kept:
                x = np.stack([self.latents[n] for n in kept])
                self.cond.frames += velocity(self.w, spec, x, 0.0, self.cond)[1]
