"""MOSS-Image's transformer, schedule and unpacking from their formulas in float64 numpy; no code of the package.

Weights go by their names in the file. Shapes: P picture rows, T text rows, R = P + T, C channels, D width, H heads.
Every function that may be got wrong takes `fault`, the name of a mistake to make: the planted controls of the tests.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float64]
Weights = Mapping[str, Array]

FAULTS = (
    "text_len", "corner", "base", "halves", "gate_first", "cap", "silu", "text_first", "no_refine", "no_rope_in_text",
    "shift_scale", "gates", "ffn_table", "head_table", "time_waves", "norm_eps", "scaled_attention", "skip",
)  # fmt: skip
"""Mistakes that `Network` can make; each must show."""


def weights_of(folder: Path) -> dict[str, Array]:
    """Every tensor of transformer/, by its name there."""
    found: dict[str, Array] = {}
    for path in sorted((folder / "transformer").glob("*.safetensors")):
        found |= {name: value.astype(np.float64) for name, value in load_file(path).items()}
    return found


def activation(h: Array, g: Array, fault: str = "") -> Array:
    gate_cap, value_cap = (25.0, 4.0) if fault == "cap" else (4.0, 25.0)
    squeezed = g if fault == "silu" else gate_cap * np.tanh(g / gate_cap)
    return np.asarray(squeezed / (1 + np.exp(-g)) * value_cap * np.tanh(h / value_cap))


def phases(
    text_len: int, grid: tuple[int, int], axes: tuple[int, ...], base: float, fault: str = ""
) -> NDArray[np.complex128]:
    """One unit complex number for each row and pair, picture rows first."""
    height, width = grid
    moved = text_len + (fault == "text_len")
    middle = (0.0, 0.0) if fault == "corner" else ((height - 1) / 2, (width - 1) / 2)
    places = [(0.0, moved, h - middle[0], w - middle[1]) for h in range(height) for w in range(width)]
    places += [(0.0, j, 0.0, 0.0) for j in range(text_len)]
    base = base * 0.9 if fault == "base" else base
    turns = [
        [
            cmath.exp(1j * place[axis] * base ** (-2 * band / size))
            for axis, size in enumerate(axes)
            for band in range(size // 2)
        ]
        for place in places
    ]  # fmt: skip
    return np.array(turns)


@dataclass(frozen=True, kw_only=True)
class Network:
    """The whole transformer.

    Attributes:
        w: weights.
        heads, layers, text_layers, axes, base, eps, time_dim: what weights don't say.
        fault: a mistake to make, see `FAULTS`.
    """

    w: Weights
    heads: int
    layers: int
    text_layers: int
    axes: tuple[int, ...]
    base: float
    eps: float
    time_dim: int
    fault: str = ""

    def velocity(
        self, x: Array, timestep: float, text: Array, grid: tuple[int, int], skipped: tuple[int, ...] = ()
    ) -> Array:
        turn = phases(len(text), grid, self.axes, self.base, self.fault)
        pictures = len(x)
        rows = self.linear("context_embedder", text)
        in_text = np.ones_like(turn) if self.fault == "no_rope_in_text" else turn
        for i in range(0 if self.fault == "no_refine" else self.text_layers):
            rows = self.block(f"context_refiner.{i}", rows, in_text[pictures:], None)
        signal = self.signal(timestep)
        table = self.linear("modulation.linear", signal).reshape(6, -1)
        table = {
            "shift_scale": table[[1, 0, 2, 4, 3, 5]],
            "gates": table[[0, 1, 5, 3, 4, 2]],
            "ffn_table": table[[0, 1, 2, 0, 1, 2]],
        }.get(self.fault, table)
        image = self.linear("x_embedder", x)
        if self.fault == "text_first":  # rows and their phases no longer belong together
            turn = np.concatenate((turn[pictures:], turn[:pictures]))
        stream = np.concatenate((image, rows))
        skipped = (0,) if self.fault == "skip" else skipped
        for i in range(self.layers):
            if i not in skipped:
                stream = self.block(f"transformer_blocks.{i}", stream, turn, table)
        shift, scale = self.linear("norm_out.linear", signal).reshape(2, -1)
        if self.fault == "head_table":
            shift, scale = scale, shift
        normed = self.norm("norm_out.norm", stream[:pictures])
        return self.linear("proj_out", normed * (1 + scale) + shift)

    def signal(self, timestep: float) -> Array:
        half = self.time_dim // 2
        angles = [timestep * 10_000 ** (-i / half) for i in range(half)]
        waves = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        if self.fault == "time_waves":
            waves = waves[half:] + waves[:half]
        return silu(
            self.linear("time_embed.linear_2", silu(self.linear("time_embed.linear_1", np.array(waves))))
        )

    def block(self, name: str, x: Array, turn: NDArray[np.complex128], table: Array | None) -> Array:
        one = np.zeros(x.shape[1])
        shift, scale, gate, shift_f, scale_f, gate_f = (one, one, one + 1) * 2 if table is None else table
        normed = self.norm(f"{name}.norm1", x) * (1 + scale) + shift
        q, k, v = (self.linear(f"{name}.attn.to_{part}", normed) for part in "qkv")
        q, k = (self.turned(f"{name}.attn.norm_{p}", value, turn) for p, value in (("q", q), ("k", k)))
        width = x.shape[1] // self.heads
        seen = []
        for head in range(self.heads):
            part = slice(head * width, (head + 1) * width)
            scores = q[:, part] @ k[:, part].T
            if self.fault != "scaled_attention":
                scores /= math.sqrt(width)
            shares = np.exp(scores - scores.max(1, keepdims=True))
            seen.append(shares / shares.sum(1, keepdims=True) @ v[:, part])
        x = x + gate * self.linear(f"{name}.attn.to_out.0", np.concatenate(seen, axis=1))
        normed = self.norm(f"{name}.norm2", x) * (1 + scale_f) + shift_f
        h, g = np.split(self.linear(f"{name}.ff.linear_in", normed), 2, axis=1)
        if self.fault == "gate_first":
            h, g = g, h
        return x + gate_f * self.linear(f"{name}.ff.linear_out", activation(h, g, self.fault))

    def turned(self, norm: str, x: Array, turn: NDArray[np.complex128]) -> Array:
        """Norm of each head, then its pairs as complex numbers times their phases."""
        heads = x.reshape(len(x), self.heads, -1)
        heads = np.stack([self.norm(norm, heads[:, i]) for i in range(self.heads)], axis=1)
        if self.fault == "halves":
            pairs = (heads[..., : heads.shape[-1] // 2] + 1j * heads[..., heads.shape[-1] // 2 :]) * turn[
                :, None
            ]
            return np.concatenate((pairs.real, pairs.imag), axis=-1).reshape(x.shape)
        pairs = (heads[..., 0::2] + 1j * heads[..., 1::2]) * turn[:, None]
        out = np.empty_like(heads)
        out[..., 0::2], out[..., 1::2] = pairs.real, pairs.imag
        return out.reshape(x.shape)

    def norm(self, name: str, x: Array) -> Array:
        eps = 1e-2 if self.fault == "norm_eps" else self.eps
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * self.w[f"{name}.weight"])

    def linear(self, name: str, x: Array) -> Array:
        made = x @ self.w[f"{name}.weight"].T
        return np.asarray(made + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else made)


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def timesteps(steps: int, shift: float, *, high: bool = False) -> list[int]:
    """The grid searched for the nearest thousandth, the lower one of two that are as near (`high`: the higher one)."""
    last = shift / (1000 + shift - 1)
    made: list[int] = []
    for v in np.linspace(1, last, steps):
        sigma = shift * v / (1 + (shift - 1) * v)
        far = np.round(np.abs(np.arange(1001) / 1000 - sigma), 12)
        nearest = np.flatnonzero(far == far.min())
        k = int(nearest[-1 if high else 0])
        if k not in made:
            made.append(k)
    return made


def unpacked(rows: Array, grid: tuple[int, int], channels: int, fault: str = "") -> Array:
    """Rows `[P, 4 c]` to `[c, 2 h, 2 w]`, number by number."""
    height, width = grid
    out = np.empty((channels, 2 * height, 2 * width))
    for h in range(height):
        for w in range(width):
            for c in range(channels):
                for y in range(2):
                    for x in range(2):
                        at = (y * 2 + x) * channels + c if fault == "pixel_major" else c * 4 + y * 2 + x
                        if fault == "columns_first":
                            at = c * 4 + x * 2 + y
                        out[c, 2 * h + y, 2 * w + x] = rows[h * width + w, at]
    return out
