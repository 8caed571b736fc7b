"""MOSS-Image's denoising transformer: one stream of picture rows and text rows.

Shapes: P picture rows (h * w of them, row by row), T text rows, R = P + T, C packed channels, D width, H heads, K head
width, F feed-forward width, E encoder width.

    text    rows [T, E] -> linear -> text-only blocks, once a picture and branch
    trunk   [picture rows | text rows] -> blocks with full attention, all under one modulation table
    head    picture rows -> velocity [P, C], float32

Owns the network and its bytes. Does not own its files (`files`), the steps (`schedule`) or guidance (`loops`). What
the description of the model leaves open is listed in docs/reference/moss.md.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldloop.models.causal import RMSNorm, sinusoids
from worldloop.models.flow import latent_dtype
from worldloop.models.moss.config import TransformerConfig

GATE_CAP, VALUE_CAP = 4.0, 25.0
"""Where the two factors of the feed-forward level off."""

ISLANDS = ("time_hidden", "time_out", "modulation", "head_norm", "head_modulation", "head_out")
"""Parts that stay in float32: the timestep's and the head."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Cosines and sines of every row, `[R, K / 2]`, float32 at least: kept out of any change of the network's dtype."""

    cos: Tensor
    sin: Tensor

    def __getitem__(self, rows: slice) -> Rope:
        return Rope(self.cos[rows], self.sin[rows])

    def rotate(self, x: Tensor) -> Tensor:
        """Turn neighbouring numbers of `x [H, R, K]` as pairs."""
        a, b = x.to(self.cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
        turned = (a * self.cos - b * self.sin, a * self.sin + b * self.cos)
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Condition:
    """What does not depend on the timestep: refined text rows `[T, D]` and the phases of all R rows."""

    text: Tensor
    rope: Rope


@dataclass(frozen=True, slots=True)
class Modulation:
    """Shift, scale and gate of one half of a block, `[D]` each."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


def positions(text_rows: int, grid: tuple[int, int]) -> Tensor:
    """Where rows are on the four axes, float64 `[R, 4]`.

    A picture row (h, w) is at (0, T, h - (H - 1) / 2, w - (W - 1) / 2), text row j at (0, j, 0, 0): phases
    of the picture depend on the length of the text.
    """
    height, width = grid
    h = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
    w = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    place = torch.zeros(height * width + text_rows, 4, dtype=torch.float64)
    place[: height * width, 1] = text_rows
    place[: height * width, 2] = h.repeat_interleave(width)
    place[: height * width, 3] = w.repeat(height)
    place[height * width :, 1] = torch.arange(text_rows, dtype=torch.float64)
    return place


def rope(config: TransformerConfig, text_rows: int, grid: tuple[int, int]) -> Rope:
    """Phases of `[picture rows | text rows]` on the CPU: float32 bands, angles in float64, tables in float32."""
    angles = []
    for axis, size in zip(positions(text_rows, grid).unbind(-1), config.rope_axes, strict=True):
        bands = config.rope_base ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles.append(axis[:, None] * bands.float().double())
    angle = torch.cat(angles, dim=-1)
    return Rope(angle.cos().float(), angle.sin().float())


def squashed(value: Tensor, gate: Tensor) -> Tensor:
    """The activation, `4 tanh(g / 4) sigmoid(g) * 25 tanh(h / 25)`, in float32 at least."""
    h, g = (x.to(latent_dtype(x.dtype)) for x in (value, gate))
    made = GATE_CAP * torch.tanh(g / GATE_CAP) * torch.sigmoid(g) * (VALUE_CAP * torch.tanh(h / VALUE_CAP))
    return made.to(value.dtype)


class Attention(nn.Module):
    """Full attention with norms on queries and keys, over each head."""

    def __init__(self, config: TransformerConfig, *, bias: bool) -> None:
        super().__init__()
        self.heads, dim = config.heads, config.dim
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=bias) for _ in range(4))
        self.q_norm, self.k_norm = (RMSNorm(config.head_dim, config.eps) for _ in range(2))

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """`[R, D]` to `[R, D]`."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(0, 1) for part in (self.q, self.k, self.v)
        )
        q, k = rope.rotate(self.q_norm(q)), rope.rotate(self.k_norm(k))
        seen = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        result: Tensor = self.out(seen.transpose(0, 1).flatten(1))
        return result


class FeedForward(nn.Module):
    """Gated feed-forward: one linear layer gives `[value | gate]`."""

    def __init__(self, config: TransformerConfig, *, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(config.dim, 2 * config.ffn_dim, bias=bias)
        self.out = nn.Linear(config.ffn_dim, config.dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        result: Tensor = self.out(squashed(value, gate))
        return result


class Block(nn.Module):
    """Attention, then feed-forward, each behind a norm; modulated in the trunk, plain for the text alone."""

    def __init__(self, config: TransformerConfig, *, bias: bool) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = (RMSNorm(config.dim, config.eps) for _ in range(2))
        self.attention = Attention(config, bias=bias)
        self.ffn = FeedForward(config, bias=bias)

    def forward(
        self, x: Tensor, rope: Rope, modulations: tuple[Modulation, Modulation] | None = None
    ) -> Tensor:
        """`[R, D]` to `[R, D]`."""
        if modulations is None:
            x = x + self.attention(self.attention_norm(x), rope)
            x = x + self.ffn(self.ffn_norm(x))
        else:
            first, second = modulations
            x = x + first.gate * self.attention(modulated(self.attention_norm(x), first), rope)
            x = x + second.gate * self.ffn(modulated(self.ffn_norm(x), second))
        return x


def modulated(normed: Tensor, by: Modulation) -> Tensor:
    """Scale and shift."""
    return normed * (1 + by.scale) + by.shift


class MossTransformer(nn.Module):
    """The network. Weights are random until loaded.

    Args:
        config: architecture.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.image_in = nn.Linear(config.channels, dim)
        self.text_in = nn.Linear(config.text_dim, dim)
        self.text_blocks = nn.ModuleList(Block(config, bias=True) for _ in range(config.text_layers))
        self.blocks = nn.ModuleList(Block(config, bias=config.bias) for _ in range(config.layers))
        self.time_hidden = nn.Linear(config.time_dim, dim)
        self.time_out = nn.Linear(dim, dim)
        self.modulation = nn.Linear(dim, 6 * dim)
        self.head_norm = RMSNorm(dim, config.eps)
        self.head_modulation = nn.Linear(dim, 2 * dim)
        self.head_out = nn.Linear(dim, config.channels)

    @property
    def dtype(self) -> torch.dtype:
        """Of the trunk."""
        return self.image_in.weight.dtype

    def to_serving(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> MossTransformer:
        """In place: the trunk in `dtype`, `ISLANDS` in float32 at least; evaluation mode, no gradients."""
        for name, part in self.named_children():
            part.to(device=device, dtype=latent_dtype(dtype) if name in ISLANDS else dtype)
        return self.eval().requires_grad_(False)

    def condition(self, text: Tensor, grid: tuple[int, int]) -> Condition:
        """Refine encoded tokens `[T, E]` for pictures of `grid` (h, w) rows."""
        weight = self.text_in.weight
        table = rope(self.config, len(text), grid)
        table = Rope(table.cos.to(weight.device), table.sin.to(weight.device))
        rows = self.text_in(text.to(weight))
        for block in self.text_blocks:
            rows = block(rows, table[grid[0] * grid[1] :])
        return Condition(rows, table)

    def forward(
        self, x: Tensor, timestep: float, condition: Condition, skipped: Set[int] = frozenset()
    ) -> Tensor:
        """Velocity of picture rows `[P, C]` at a timestep in [0, T], float32 at least.

        Args:
            skipped: blocks that are left out.
        """
        signal = self.time_signal(timestep)
        tables = self.modulation(signal).to(self.dtype).unflatten(-1, (6, -1)).unbind(0)
        modulations = Modulation(*tables[:3]), Modulation(*tables[3:])
        rows = torch.cat((self.image_in(x.to(self.dtype)), condition.text))
        for index, block in enumerate(self.blocks):
            if index not in skipped:
                rows = block(rows, condition.rope, modulations)
        shift, scale = self.head_modulation(signal).unflatten(-1, (2, -1)).unbind(0)
        normed = self.head_norm(rows[: len(x)].to(signal.dtype))
        result: Tensor = self.head_out(normed * (1 + scale) + shift)
        return result

    def time_signal(self, timestep: float) -> Tensor:
        """What the two modulation tables are made from, `[D]`; phases in float64."""
        weight = self.time_hidden.weight
        waves = sinusoids(torch.tensor(timestep, dtype=torch.float64), self.config.time_dim)
        return F.silu(self.time_out(F.silu(self.time_hidden(waves.to(weight)))))


def scratch_bytes(config: TransformerConfig, rows: int, dtype: torch.dtype) -> int:
    """Bytes beside weights and condition while a pass over `rows` rows runs: a feed-forward is its widest moment.

    A row then has the stream and its normed and modulated copies, the pair `[value | gate]` in `dtype`, and five
    numbers of each hidden channel in float32.
    """
    wide = latent_dtype(dtype).itemsize
    row = 4 * config.dim * dtype.itemsize + config.ffn_dim * (2 * dtype.itemsize + 5 * wide)
    return rows * max(row, config.dim * (8 * dtype.itemsize + 4 * wide))


def condition_bytes(config: TransformerConfig, text_rows: int, picture_rows: int, dtype: torch.dtype) -> int:
    """Bytes of one `Condition`."""
    phases = (text_rows + picture_rows) * config.head_dim * torch.float32.itemsize
    return text_rows * config.dim * dtype.itemsize + phases
