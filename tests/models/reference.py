"""The model from its specification in float64 numpy: positions, conditioning, network, memory, noise. Nothing imported.

Everything is recomputed for every frame from records that are kept whole and unrotated: no buffer, no slots, no
rotation in place. Shapes: N raw tokens, X summaries, R = N + X, D width, H heads, K head width, P = K / 2 planes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes of one model, and the rules of its memory."""

    layers: int
    heads: int
    head_dim: int
    grid: tuple[int, int]
    summary_tokens: int
    raw_window: int
    window: int
    sink_gap_max: int
    spatial_base: float = 10_000.0
    recency: tuple[int, int, float, float] | None = None

    @property
    def raw_tokens(self) -> int:
        return self.grid[0] * self.grid[1]


def angles(geometry: Geometry, frame_id: float) -> Array:
    """Angle of every plane of every row of a record, `[R, P]`: 3/8 time with two planes of level, row, column."""
    planes = geometry.head_dim // 2
    time = geometry.head_dim * 3 // 16
    each = (planes - time) // 2
    height, width = geometry.grid
    result = np.zeros((geometry.raw_tokens + geometry.summary_tokens, planes))
    for plane in range(time - 2):
        result[:, plane] = frame_id / 10_000.0 ** (plane / time)
    result[geometry.raw_tokens :, time - 2 : time] = math.pi / 2
    for row in range(height):
        for column in range(width):
            for plane in range(each):
                turn = geometry.spatial_base ** (-plane / each)
                result[row * width + column, time + plane] = row * turn
                result[row * width + column, time + each + plane] = column * turn
    return result


def turn(x: Array, angle: Array) -> Array:
    """Rotate pairs (x[p], x[P + p]) of `[H, R, K]` as complex numbers."""
    half = x.shape[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate((turned.real, turned.imag), axis=-1)


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def layer_norm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))


def softmax(x: Array) -> Array:
    grown = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(grown / grown.sum(-1, keepdims=True))


def recency_bias(law: tuple[int, int, float, float], age: int) -> float:
    """0 to `flat_until`, minus beta from `decay_end`, smoothstep to the power gamma between them."""
    flat, end, beta, gamma = law
    part = float(np.clip((age - flat) / (end - flat), 0, 1))
    return float(-beta * (3 * part**2 - 2 * part**3) ** gamma)


@dataclass(frozen=True)
class Record:
    """Unrotated keys and values of one committed frame, by layer, `[H, R, K]` each."""

    keys: list[Array]
    values: list[Array]


@dataclass
class Stream:
    """A world from its start picture on; keeps every record for ever and reads what the rules allow."""

    geometry: Geometry
    weights: Weights
    records: list[Record] = field(default_factory=list)
    sink: int = 0

    def run(self, latent: Array, blocks: Array, head: Array, focus: NDArray[np.bool_] | None = None) -> Array:
        """v `[N, C]` of one pass of the frame in the making, which stays pending until `commit`."""
        w, g, frame = self.weights, self.geometry, len(self.records)
        raw = latent @ w["latent_in.weight"].T + w["latent_in.bias"]
        raw = raw + w.get("grid_embed", np.zeros(1))
        if focus is not None:
            raw = raw + focus[:, None] * w["z0_focus_region_embed"]
        x = np.concatenate((raw, w["summary_tokens"]))
        self._pending = Record([], [])
        for layer in range(g.layers):
            shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = blocks[layer]
            part = f"blocks.{layer}."
            h = layer_norm(x) * (1 + scale_a) + shift_a
            x = x + (1 + gate_a) * self._attention(h, part + "visual_self_attention.", layer, frame)
            h = layer_norm(x) * (1 + scale_f) + shift_f
            value, gate = np.split(h @ w[part + "visual_feed_forward.proj.weight"].T, 2, axis=-1)
            x = x + (1 + gate_f) * ((silu(gate) * value) @ w[part + "visual_feed_forward.out.weight"].T)
        h = layer_norm(x[: g.raw_tokens]) * (1 + head[1]) + head[0]
        return np.asarray(h @ w["head.out.weight"].T + w["head.out.bias"])

    def commit(self) -> None:
        """The latest pass is the frame's record; the next frame begins and the start picture follows if it must."""
        self.records.append(self._pending)
        oldest = max(1, len(self.records) - self.geometry.window)
        if oldest - self.sink >= self.geometry.sink_gap_max:
            self.sink = oldest - 1

    def _attention(self, h: Array, part: str, layer: int, frame: int) -> Array:
        w, g = self.weights, self.geometry
        q, k, v = (
            block.reshape(len(h), g.heads, g.head_dim).swapaxes(0, 1)
            for block in np.split(h @ w[part + "visual_qkv.weight"].T, 3, axis=-1)
        )
        q = q / np.sqrt((q**2).mean(-1, keepdims=True) + 1e-6) * w[part + "query_norm.weight"]
        k = k / np.sqrt((k**2).mean(-1, keepdims=True) + 1e-6) * w[part + "key_norm.weight"]
        self._pending.keys.append(k)
        self._pending.values.append(v)
        own = angles(g, frame)
        keys, values, bias = [turn(k, own)], [v], [np.zeros(len(h))]
        for past in range(frame):
            age, stored = frame - past, self.records[past]
            if past > 0 and age > g.window:
                continue
            rows = slice(0, None) if past == 0 or age <= g.raw_window else slice(g.raw_tokens, None)
            place = angles(g, self.sink if past == 0 else past)[rows]
            keys.append(turn(stored.keys[layer][:, rows], place))
            values.append(stored.values[layer][:, rows])
            plain = g.recency is None or past == 0 or age <= g.raw_window
            bias.append(np.full(len(place), 0.0 if plain else recency_bias(g.recency or (0, 1, 1, 1), age)))
        logits = turn(q, own) @ np.concatenate(keys, 1).swapaxes(1, 2) / math.sqrt(g.head_dim)
        out = softmax(logits + np.concatenate(bias)) @ np.concatenate(values, 1)
        return np.asarray(out.swapaxes(0, 1).reshape(len(h), -1) @ w[part + "visual_out.weight"].T)


def number_embedding(w: Weights, name: str, value: float) -> Array:
    """Cosines and sines of a value times the model's frequencies, then two linear layers."""
    waves = value * w[f"{name}.frequencies"]
    hidden = silu(
        w[f"{name}.hidden.weight"] @ np.concatenate((np.cos(waves), np.sin(waves))) + w[f"{name}.hidden.bias"]
    )
    return w[f"{name}.out.weight"] @ hidden + w[f"{name}.out.bias"]


def condition(
    w: Weights,
    grid: tuple[int, int],
    timestep: float,
    action: Sequence[float] | None,
    fps: float,
    *,
    start: bool,
) -> list[Array]:
    """FiLM numbers of every block and, last, of the head: flat vectors."""
    aspect = "aspect_ratio_proj_z0" if start else "aspect_ratio_proj"
    cond = number_embedding(w, "timestep_mlp", timestep)
    cond = cond + w[f"{aspect}.weight"][:, 0] * math.log(grid[1] / grid[0]) + w[f"{aspect}.bias"]
    if action is not None and not start:
        hidden = silu(w["action_proj.0.weight"] @ np.array(action) + w["action_proj.0.bias"])
        cond = cond + w["action_proj.2.weight"] @ hidden + w["action_proj.2.bias"]
    count = sum(key.startswith("timestep_to_film.") and key.endswith(".bias") for key in w)
    outs = [
        w[f"timestep_to_film.{i}.weight"] @ silu(cond) + w[f"timestep_to_film.{i}.bias"] for i in range(count)
    ]
    if fps > 0:
        rate = silu(number_embedding(w, "fps_embedder_mlp", fps))
        told = [
            w[f"fps_embedder_outs.{i}.weight"] @ rate + w[f"fps_embedder_outs.{i}.bias"] for i in range(count)
        ]
        outs = [a + b for a, b in zip(outs, told, strict=True)]
    return outs


def philox(seed: int, counter: Sequence[int], words: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011) in whole numbers: `words` outputs from the counter after `counter`."""
    mask = 2**64 - 1
    result: list[int] = []
    number = sum(part << (64 * i) for i, part in enumerate(counter))
    while len(result) < words:
        number += 1
        c = [(number >> (64 * i)) & mask for i in range(4)]
        key = [seed, 0]
        for _ in range(10):
            low, high = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
            c = [(high >> 64) ^ c[1] ^ key[0], high & mask, (low >> 64) ^ c[3] ^ key[1], low & mask]
            key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
        result += c
    return result[:words]
