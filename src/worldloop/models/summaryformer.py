"""Summaryformer: a causal diffusion transformer whose every frame is one record, raw tokens and summary tokens.

Shapes: B batch, T frames, N raw tokens (h * w cells, row-major), X summary tokens, R = N + X, C latent channels,
D width, H heads, K head width, L blocks, P passes, S conditioning width.

    latent [B, N, C] -> record [B, R, D] -> L blocks (attend own record + memory) -> head over raw tokens -> v [B, N, C]

Owns the network in its streaming form (`pass_record`). Its parallel form over whole clips is `clip`, under an equality
test with this one. Does not own noise, passes or the order of frames (`loops.world`). Source: the Summaryformer model
card; the timestep prediction is v (`sampling`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from worldloop.core.types import NO_ACTION
from worldloop.models.layers import HeadNorm, NumberEmbedding, SwiGLU, film
from worldloop.models.memory import Memory, MemoryConfig, Rows
from worldloop.models.rope import RopeConfig, RopeTables, rotate

ISLANDS = (
    "timestep_mlp",
    "timestep_to_film",
    "aspect_ratio_proj",
    "aspect_ratio_proj_z0",
    "action_proj",
    "fps_embedder_mlp",
    "fps_embedder_outs",
)
"""Conditioning modules that stay float32 whatever the bulk dtype."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryformerConfig:
    """Architecture of one Summaryformer.

    Attributes:
        dim, ffn_dim, num_heads, num_layers: of the trunk; dim = num_heads * head_dim.
        summary_tokens, raw_window_frames, summary_window_frames: X, Y and W.
        latent_channels, latent_hw: C and (h, w).
        sink_gap_max: see `memory.MemoryConfig`.
        focus_region: whether the start picture has a learned focus marker.
        cond_dim: S; 0 means dim.
        rope_spatial_base: wavelength base of the row and column axes.
        grid_embedding: whether raw tokens get a learned vector a cell.
        rope_table_len: frame ids that have a rotary row (capacity, no weights).
    """

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    summary_tokens: int
    raw_window_frames: int
    summary_window_frames: int
    latent_channels: int = 48
    latent_hw: tuple[int, int] = (24, 42)
    sink_gap_max: int = 5
    focus_region: bool = True
    cond_dim: int = 0
    rope_spatial_base: float = 10_000.0
    grid_embedding: bool = False
    rope_table_len: int = 4096

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ValueError(f"dim={self.dim} must be a multiple of num_heads={self.num_heads}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def raw_tokens(self) -> int:
        """N."""
        return self.latent_hw[0] * self.latent_hw[1]

    @property
    def record(self) -> int:
        """R."""
        return self.raw_tokens + self.summary_tokens

    @property
    def conditioning(self) -> int:
        """S."""
        return self.cond_dim or self.dim

    @property
    def rope(self) -> RopeConfig:
        return RopeConfig(
            head_dim=self.head_dim,
            grid=self.latent_hw,
            summary_tokens=self.summary_tokens,
            spatial_base=self.rope_spatial_base,
            table_len=self.rope_table_len,
        )

    @property
    def memory(self) -> MemoryConfig:
        return MemoryConfig(
            layers=self.num_layers,
            heads=self.num_heads,
            head_dim=self.head_dim,
            raw_tokens=self.raw_tokens,
            summary_tokens=self.summary_tokens,
            raw_window=self.raw_window_frames,
            window=self.summary_window_frames,
            sink_gap_max=self.sink_gap_max,
        )

    def pass_operations(self, keys: int) -> int:
        """Multiply-adds of one pass over one record that reads `keys` rows: trunk, attention and head."""
        weights = 4 * self.dim**2 + 3 * self.dim * self.ffn_dim
        attention = 2 * self.dim * keys
        ends = 2 * self.dim * self.latent_channels * self.raw_tokens
        return self.num_layers * self.record * (weights + attention) + ends

    @classmethod
    def named(cls, name: str, **changes: Any) -> SummaryformerConfig:
        """A named size, with changes. KeyError lists the names."""
        if name not in SIZES:
            raise KeyError(f"unknown size {name!r}; have {sorted(SIZES)}")
        return replace(SIZES[name], **changes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


SIZES = {
    "tiny": SummaryformerConfig(
        dim=128, ffn_dim=192, num_heads=2, num_layers=2, summary_tokens=4, raw_window_frames=2,
        summary_window_frames=5, latent_channels=8, latent_hw=(3, 4), sink_gap_max=3,
    ),
    "embedded": SummaryformerConfig(
        dim=256, ffn_dim=704, num_heads=4, num_layers=6, summary_tokens=8, raw_window_frames=2,
        summary_window_frames=16, latent_channels=48, latent_hw=(6, 10), cond_dim=128,
        rope_spatial_base=100.0, grid_embedding=True, focus_region=False,
    ),
    "gta": SummaryformerConfig(
        dim=1280, ffn_dim=3456, num_heads=20, num_layers=28, summary_tokens=96, raw_window_frames=2,
        summary_window_frames=24, cond_dim=256,
    ),
}  # fmt: skip
"""`tiny` is for tests, `embedded` what the package ships, `gta` the published size (dim, heads and ffn are ours)."""


class SelfAttention(nn.Module):
    """Joint query, key and value projection with head norms and rotary positions."""

    def __init__(self, config: SummaryformerConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_heads, config.head_dim
        self.visual_qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.visual_out = nn.Linear(config.dim, config.dim, bias=False)
        self.query_norm = HeadNorm(config.num_heads, config.head_dim, gain=1.2)
        self.key_norm = HeadNorm(config.num_heads, config.head_dim)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[..., R, D]` to rotated queries and keys and values, each `[..., H, R, K]` in the trunk's dtype."""
        qkv = (
            self.visual_qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).movedim(-3, 0).transpose(-2, -3)
        )
        q = rotate(self.query_norm(qkv[0].float()), cos, sin)
        k = rotate(self.key_norm(qkv[1].float()), cos, sin)
        return q.to(x.dtype), k.to(x.dtype), qkv[2]

    def merge(self, heads: Tensor) -> Tensor:
        """`[..., H, R, K]` to `[..., R, D]`."""
        result: Tensor = self.visual_out(heads.transpose(-2, -3).flatten(-2))
        return result


class Block(nn.Module):
    """Attention and feed-forward, each with shift, scale and gate from the condition."""

    def __init__(self, config: SummaryformerConfig) -> None:
        super().__init__()
        self.visual_self_attention = SelfAttention(config)
        self.visual_feed_forward = SwiGLU(config.dim, config.ffn_dim)

    def forward(
        self, x: Tensor, film_6D: Tensor, rope: tuple[Tensor, Tensor], memory: Rows, layer: int
    ) -> Tensor:
        """One record `[1, R, D]`: write its keys and values, read the memory, feed forward."""
        q, k, v = self.ask(x, film_6D, rope)
        memory.write(layer, k, v)
        return self.answer(x, film_6D, attend(q, *memory.read(layer)))

    def ask(self, x: Tensor, film_6D: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of records `[B, R, D]`, each `[B, H, R, K]`."""
        shift, scale, *_ = film_6D
        return self.visual_self_attention.project(film(x, shift, scale), *rope)

    def answer(self, x: Tensor, film_6D: Tensor, heads: Tensor) -> Tensor:
        """Records `[B, R, D]` after what attention `[B, H, R, K]` found and the feed-forward."""
        _, _, gate_a, shift, scale, gate_f = film_6D
        x = x + (1 + gate_a) * self.visual_self_attention.merge(heads)
        result: Tensor = x + (1 + gate_f) * self.visual_feed_forward(film(x, shift, scale))
        return result


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Dense attention `[B, H, R, K]` over every key given; `bias` `[keys]` is added to the logits."""
    if bias is not None and q.is_cuda and torch.compiler.is_compiling():
        return attend_flex(q, k, v, bias)
    mask = None if bias is None else bias.to(q.dtype).expand(q.shape[-2], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attend_flex(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """`attend` as a kernel that is generated when it is compiled (FlexAttention, Dong et al. 2024, arXiv:2412.05496).

    A CUDA kernel that takes a mask reads one number a query and key; this one reads one a key, and does not round it.
    """
    result: Any = flex_attention(
        q.to(k.dtype), k, v, score_mod=lambda score, _b, _h, _query, key: score + bias[key]
    )
    return cast(Tensor, result)


@dataclass(frozen=True, kw_only=True, slots=True)
class Film:
    """Shift, scale and gate of every block and of the head for P passes.

    Attributes:
        blocks: `[P, L, 6, D]`.
        head: `[P, 2, D]`.
    """

    blocks: Tensor
    head: Tensor

    def at(self, index: int) -> Film:
        """The pass `index` alone: `[L, 6, D]` and `[2, D]`."""
        return Film(blocks=self.blocks[index], head=self.head[index])


class Head(nn.Module):
    """Raw tokens `[..., N, D]` to `[..., N, C]`."""

    def __init__(self, config: SummaryformerConfig) -> None:
        super().__init__()
        self.out = nn.Linear(config.dim, config.latent_channels)

    def forward(self, x: Tensor, film_2D: Tensor) -> Tensor:
        shift, scale = film_2D.unbind(-2)
        result: Tensor = self.out(film(x, shift, scale))
        return result


class Summaryformer(nn.Module):
    """The network. Weights are random until loaded; `weights` reads and writes them.

    Args:
        config: architecture.
    """

    def __init__(self, config: SummaryformerConfig) -> None:
        super().__init__()
        self.config = config
        dim, cond = config.dim, config.conditioning
        self.latent_in = nn.Linear(config.latent_channels, dim)
        self.summary_tokens = nn.Parameter(torch.randn(config.summary_tokens, dim) * 0.5)
        if config.grid_embedding:
            self.grid_embed = nn.Parameter(torch.randn(config.raw_tokens, dim) * 0.3)
        if config.focus_region:
            self.z0_focus_region_embed = nn.Parameter(torch.zeros(dim))
        self.timestep_mlp = NumberEmbedding(cond, period=10_000.0)
        self.action_proj = nn.Sequential(nn.Linear(5, cond), nn.SiLU(), nn.Linear(cond, cond))
        self.aspect_ratio_proj = nn.Linear(1, cond)
        self.aspect_ratio_proj_z0 = nn.Linear(1, cond)
        self.timestep_to_film = _film_layers(config)
        self.fps_embedder_mlp = NumberEmbedding(cond, period=1_000.0)
        self.fps_embedder_outs = _film_layers(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.head = Head(config)
        self._init_weights()

    def _init_weights(self) -> None:
        nn.init.zeros_(self.head.out.weight)
        nn.init.zeros_(self.head.out.bias)
        for block in self.blocks:
            assert isinstance(block, Block)
            nn.init.normal_(
                block.visual_self_attention.visual_out.weight, std=0.3 / math.sqrt(self.config.dim)
            )
            nn.init.normal_(block.visual_feed_forward.out.weight, std=0.3 / math.sqrt(self.config.ffn_dim))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the trunk."""
        return self.latent_in.weight.dtype

    def to_serving(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Summaryformer:
        """Bulk weights in `dtype`, conditioning modules in float32; evaluation mode, no gradients."""
        self.to(device=device)
        for name, child in self.named_children():
            child.to(dtype=torch.float32 if name in ISLANDS else dtype)
        for value in self.parameters(recurse=False):
            value.data = value.data.to(dtype)
        return self.eval().requires_grad_(False)

    def tables(self) -> RopeTables:
        """Rotary tables on the weights' device."""
        return RopeTables(self.config.rope, self.latent_in.weight.device)

    def condition(
        self, timesteps: Tensor, actions: Tensor | None, fps: Tensor, *, start: bool = False
    ) -> Film:
        """FiLM numbers of P conditions, computed in float32, whatever runs around it.

        Args:
            timesteps: `[P]`; 0 means a clean frame.
            actions: `[P, 5]`, or None for "no action"; rows of `NO_ACTION` count as none.
            fps: `[P]` frames a second; 0 means none.
            start: the start picture's condition: no action.
        """
        with torch.autocast(self.latent_in.weight.device.type, enabled=False):
            return self._condition(timesteps, actions, fps, start=start)

    def _condition(self, timesteps: Tensor, actions: Tensor | None, fps: Tensor, *, start: bool) -> Film:
        height, width = self.config.latent_hw
        ratio = timesteps.new_full((1,), math.log(width / height), dtype=torch.float32)
        cond = self.timestep_mlp(timesteps) + (
            self.aspect_ratio_proj_z0 if start else self.aspect_ratio_proj
        )(ratio)
        if actions is not None and not start:
            given = (actions != NO_ACTION).any(dim=-1, keepdim=True)
            cond = cond + torch.where(given, self.action_proj(actions.float()), 0.0)
        cond = F.silu(cond)
        rate = F.silu(self.fps_embedder_mlp(fps))
        told = (fps > 0)[:, None]
        outs = [
            layer(cond) + torch.where(told, rate_layer(rate), 0.0)
            for layer, rate_layer in zip(self.timestep_to_film, self.fps_embedder_outs, strict=True)
        ]
        blocks = torch.stack(outs[:-1], dim=-2).unflatten(-1, (6, self.config.dim))
        return Film(
            blocks=blocks.to(self.dtype), head=outs[-1].unflatten(-1, (2, self.config.dim)).to(self.dtype)
        )

    def tokens(self, latent_BNC: Tensor, focus_N: Tensor | None = None) -> Tensor:
        """Records `[B, R, D]` from latents; `focus_N` (booleans) marks cells of the start picture."""
        raw = self.latent_in(latent_BNC.to(self.dtype))
        if self.config.grid_embedding:
            raw = raw + self.grid_embed
        if focus_N is not None:
            if not self.config.focus_region:
                raise ValueError("this checkpoint was trained without a focus region")
            raw = raw + focus_N.to(self.dtype)[:, None] * self.z0_focus_region_embed
        summary = self.summary_tokens.to(self.dtype).expand(*raw.shape[:-2], -1, -1)
        return torch.cat((raw, summary), dim=-2)

    def pass_record(
        self,
        latent_1NC: Tensor,
        film: Film,
        rope: tuple[Tensor, Tensor],
        memory: Rows,
        *,
        focus_N: Tensor | None = None,
    ) -> Tensor:
        """One pass of one frame: its record is written to memory, v comes back, float32 `[1, N, C]`."""
        x = self.tokens(latent_1NC, focus_N)
        for layer, block in enumerate(self.blocks):
            x = block(x, film.blocks[layer], rope, memory, layer)
        v: Tensor = self.head(x[..., : self.config.raw_tokens, :], film.head)
        return v.float()

    def pass_records(self, latents_BNC: Tensor, films: Sequence[Film], memories: Sequence[Memory]) -> Tensor:
        """One pass of a body frame of B sessions at once, each with its own memory; v, float32 `[B, N, C]`.

        Matrices are multiplied together, attention is each session's own: memories may be filled differently.
        """
        x = self.tokens(latents_BNC)
        cos, sin = (torch.stack(part)[:, None] for part in zip(*(m.rope for m in memories), strict=True))
        conditions = torch.stack([each.blocks for each in films], dim=2)[..., None, :]  # [L, 6, B, 1, D]
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            q, k, v = block.ask(x, conditions[layer], (cos, sin))
            heads = []
            for row, memory in enumerate(memories):
                one = slice(row, row + 1)
                memory.write(layer, k[one], v[one])
                heads.append(attend(q[one], *memory.read(layer)))
            x = block.answer(x, conditions[layer], torch.cat(heads))
        head = torch.stack([each.head for each in films])[:, None]  # [B, 1, 2, D]
        result: Tensor = self.head(x[..., : self.config.raw_tokens, :], head)
        return result.float()


def _film_layers(config: SummaryformerConfig) -> nn.ModuleList:
    sizes: Sequence[int] = [6 * config.dim] * config.num_layers + [2 * config.dim]
    layers = nn.ModuleList(nn.Linear(config.conditioning, size) for size in sizes)
    for layer in layers:
        assert isinstance(layer, nn.Linear)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return layers
