"""The causal video transformer: Wan 2.1's text-to-video network, one chunk of latent frames at a time.

Shapes: B batch, F latent frames of a chunk, C latent channels, y x x latent cells, p patch, h w tokens of a frame
(y / p, x / p), N = h w, R = F N rows of a chunk, D width, H heads, K head width, L blocks, E text length.

    latents [B, F, C, y, x] -> rows [B, R, D] -> L blocks (attend the memory's window, then the text) -> velocity

Owns the network in its streaming form (`pass_chunk`). Its parallel form over whole clips is `causal_clip`, under an
equality test with this one. Does not own noise, steps or the order of chunks (`flow`, `loops.video`) or files
(`causal_weights`). Names of weights are those of the published files. Sources: Wan 2.1 (arXiv:2503.20314), its causal
form in CausVid (arXiv:2412.07772) and Self-Forcing (arXiv:2506.08009).

A model with a `vocabulary` reads words by a learned table instead of a text encoder's vectors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from worldloop.models.causal_memory import CausalMemory

ISLANDS = ("time_embedding", "time_projection")
"""Conditioning modules that stay float32 when the trunk is narrower; so do the learned modulations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CausalConfig:
    """Architecture of one network.

    Attributes:
        dim, ffn_dim, num_heads, num_layers: D, the width of the feed-forward, H and L.
        channels: C, in and out.
        patch: p, latent cells a side of one token.
        text_dim, text_len: width and number E of the text's vectors; shorter texts are padded with zeros.
        freq_dim: sinusoids of the timestep.
        eps: of every norm.
        vocabulary: words that the learned table knows, lower case; empty when the text comes as vectors.
        text_context: neighbours on each side that a word of the vocabulary is read with, so that "lake" and "east" of
            one phrase belong together; 0 reads each word alone, and vectors always are.
        places: rows and columns, counted from the middle token, that have learned vectors; no grid may have more. 0
            leaves places to the rotary angles, which only know distances.
    """

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    channels: int = 16
    patch: int = 2
    text_dim: int = 4096
    text_len: int = 512
    freq_dim: int = 256
    eps: float = 1e-6
    vocabulary: tuple[str, ...] = ()
    text_context: int = 0
    places: int = 0

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ValueError(f"dim={self.dim} must be a multiple of num_heads={self.num_heads}")
        for name, value in (("freq_dim", self.freq_dim), ("dim / num_heads", self.head_dim)):
            if value % 2:
                raise ValueError(f"{name}={value} must be even")
        if self.vocabulary and self.text_dim % 2:
            raise ValueError(f"text_dim={self.text_dim} must be even: words are told apart by sinusoids too")

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    def token_grid(self, latent_hw: tuple[int, int]) -> tuple[int, int]:
        """(h, w) tokens of a frame of latent cells; ValueError when patches do not cover it."""
        if latent_hw[0] % self.patch or latent_hw[1] % self.patch:
            raise ValueError(f"latent_hw={latent_hw} must be multiples of patch={self.patch}")
        h, w = latent_hw[0] // self.patch, latent_hw[1] // self.patch
        if self.places and max(h, w) > self.places:
            raise ValueError(f"latent_hw={latent_hw} must be at most {self.places} tokens a side")
        return h, w

    def pass_operations(self, rows: int, keys: int) -> int:
        """Multiply-adds of one pass over `rows` rows that read `keys` keys: trunk, attention, text and head."""
        weights = 6 * self.dim**2 + 2 * self.dim * self.ffn_dim
        attention = 2 * self.dim * (keys + self.text_len)
        ends = 2 * self.dim * self.channels * self.patch**2
        return rows * (self.num_layers * (weights + attention) + ends)

    def token_ids(self, prompt: str) -> Tensor:
        """Numbers of the prompt's words, int64 `[at most E]`, 0 when it has none. Unknown words are left out."""
        number = {word: i for i, word in enumerate(self.vocabulary, start=1)}
        known = [number[word] for word in words_of(prompt) if word in number]
        return torch.tensor(known[: self.text_len] or [0])

    @classmethod
    def named(cls, name: str, **changes: Any) -> CausalConfig:
        """A named size, with changes. KeyError lists the names."""
        if name not in SIZES:
            raise KeyError(f"unknown size {name!r}; have {sorted(SIZES)}")
        return replace(SIZES[name], **changes)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "vocabulary": list(self.vocabulary)}


SIZES = {
    "tiny": CausalConfig(
        dim=128, ffn_dim=160, num_heads=2, num_layers=2, channels=8, patch=1, text_dim=12, text_len=6, freq_dim=32,
        vocabulary=("a", "walk", "in", "the", "meadow", "lake"),
    ),
    "embedded": CausalConfig(
        dim=256, ffn_dim=1024, num_heads=4, num_layers=6, channels=48, patch=1, text_dim=128, text_len=48,
        text_context=4, places=16,
    ),
    "wan-1.3b": CausalConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30),
}  # fmt: skip
"""`tiny` is for tests, `embedded` for a model that the package can ship (its vocabulary is the data's)."""


def words_of(prompt: str) -> list[str]:
    """Lower-case words and numbers of a text, in order."""
    return re.findall(r"[^\W_]+", prompt.lower())


def sinusoids(values: Tensor, width: int) -> Tensor:
    """Cosines, then sines, of `[...]` at wavelengths 1 to 10,000, float64 `[..., width]`."""
    turns = 10_000.0 ** -(torch.arange(width // 2, dtype=torch.float64, device=values.device) / (width // 2))
    angle = values.double()[..., None] * turns
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class RMSNorm(nn.Module):
    """RMS norm over the whole width (Zhang & Sennrich 2019, arXiv:1910.07467), in float32 at least."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * wide.square().mean(dim=-1, keepdim=True).add(self.eps).rsqrt()
        return normed.to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    """Query, key, value and output projections, with norms on queries and keys."""

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(config.dim, config.dim) for _ in range(4))
        self.norm_q, self.norm_k = (RMSNorm(config.dim, config.eps) for _ in range(2))

    def queries(self, x: Tensor) -> Tensor:
        """`[..., R, D]` to `[..., H, R, K]`."""
        return self._split(self.norm_q(self.q(x)))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[..., R, D]` to keys and values, `[..., H, R, K]`."""
        return self._split(self.norm_k(self.k(x))), self._split(self.v(x))

    def merge(self, heads: Tensor) -> Tensor:
        """`[..., H, R, K]` to `[..., R, D]`."""
        result: Tensor = self.o(heads.transpose(-2, -3).flatten(-2))
        return result

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        return heads


@dataclass(frozen=True, slots=True)
class Cross:
    """A text's keys and values in every block, `[L, B, H, E, K]`."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Condition:
    """What a timestep says: `blocks [..., 6, D]` and `head [..., D]`, each before learned modulations are added."""

    blocks: Tensor
    head: Tensor


def modulated(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """LayerNorm without gain, then scale and shift."""
    return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift


class Block(nn.Module):
    """Self-attention, attention to the text, feed-forward; the first and last with shift, scale and gate."""

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.randn(1, 6, config.dim) / config.dim**0.5)
        self.self_attn = Attention(config)
        self.norm3 = nn.LayerNorm(config.dim, config.eps)
        self.cross_attn = Attention(config)
        self.ffn = nn.Sequential(
            nn.Linear(config.dim, config.ffn_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.ffn_dim, config.dim),
        )

    def forward(self, x: Tensor, condition: Tensor, cross: Cross, memory: CausalMemory, layer: int) -> Tensor:
        """One chunk `[1, R, D]` under `condition [6, D]`: write its keys and values, read the memory and the text."""
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulations(condition, x.dtype)
        h = modulated(x, shift_a, scale_a, self.eps)
        memory.write(layer, *self.self_attn.keys_values(h))
        queries = memory.turn_queries(self.self_attn.queries(h))
        seen = F.scaled_dot_product_attention(queries, *memory.read(layer))
        x = x + gate_a * self.self_attn.merge(seen.to(x.dtype))
        x = self.read_text(x, cross.keys[layer], cross.values[layer])
        result: Tensor = x + gate_f * self.ffn(modulated(x, shift_f, scale_f, self.eps))
        return result

    def modulations(self, condition: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """Six of `[..., 1, D]`, from `condition [..., 6, D]`."""
        both = (self.modulation[0] + condition).to(dtype)
        return list(both.unsqueeze(-2).unbind(-3))

    def read_text(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`x [B, R, D]` plus what it reads in `[B, H, E, K]`."""
        attention = self.cross_attn
        queries = attention.queries(self.norm3(x))
        return x + attention.merge(F.scaled_dot_product_attention(queries, keys, values))


class Head(nn.Module):
    """Rows `[..., R, D]` to patches `[..., R, p * p * C]`."""

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / config.dim**0.5)
        self.head = nn.Linear(config.dim, config.patch**2 * config.channels)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """`condition` is `[..., D]`."""
        shift, scale = (self.modulation[0] + condition.unsqueeze(-2)).to(x.dtype).unsqueeze(-2).unbind(-3)
        result: Tensor = self.head(modulated(x, shift, scale, self.eps))
        return result


class CausalTransformer(nn.Module):
    """The network. Weights are random until loaded; `causal_weights` reads and writes them.

    Args:
        config: architecture.
    """

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.config = config
        dim, side = config.dim, (1, config.patch, config.patch)
        self.patch_embedding = nn.Conv3d(config.channels, dim, kernel_size=side, stride=side)
        if config.vocabulary:
            self.words = nn.Embedding(1 + len(config.vocabulary), config.text_dim, padding_idx=0)
        if reach := config.text_context:
            self.neighbours = nn.Conv1d(config.text_dim, config.text_dim, 2 * reach + 1, padding=reach)
        if config.places:
            self.places = nn.Parameter(torch.empty(2, config.places, dim))
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.head = Head(config)
        self._init_weights()

    def _init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.patch_embedding.weight.flatten(1))
        for module in (*self.text_embedding, *self.time_embedding):
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.head.head.weight)
        if self.config.places:
            # As large as what they are added to; from zero they stay too small to be looked for.
            nn.init.normal_(self.places, std=0.5)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the trunk."""
        return self.patch_embedding.weight.dtype

    def to_serving(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> CausalTransformer:
        """Bulk weights in `dtype`, conditioning in float32 at least; evaluation mode, no gradients."""
        self.to(device=device, dtype=dtype)
        wide = torch.promote_types(dtype, torch.float32)
        for name in ISLANDS:
            self.get_submodule(name).to(wide)
        for module in (*self.blocks, self.head):
            assert isinstance(module, Block | Head)
            module.modulation.data = module.modulation.data.to(wide)
        return self.eval().requires_grad_(False)

    def condition(self, timesteps: Tensor) -> Condition:
        """What timesteps `[...]` say; 0 means a clean frame."""
        waves = sinusoids(timesteps, self.config.freq_dim)
        head = self.time_embedding(waves.to(next(self.time_embedding.parameters()).dtype))
        return Condition(self.time_projection(head).unflatten(-1, (6, self.config.dim)), head)

    def text(self, text: Tensor) -> Tensor:
        """Vectors `[B, e, text_dim]`, or word numbers `[B, e]` (0 is padding), to `[B, E, D]`.

        Raises:
            ValueError: longer than E.
        """
        config = self.config
        if text.shape[1] > config.text_len:
            raise ValueError(f"a text of {text.shape[1]} is longer than the {config.text_len} that are read")
        if config.vocabulary:
            order = sinusoids(torch.arange(text.shape[1], device=text.device), config.text_dim)
            known = (text > 0)[..., None]
            text = known * (self.words(text) + order.to(self.dtype))
            if config.text_context:
                text = known * (text + self.neighbours(text.transpose(1, 2)).transpose(1, 2))
        padded = F.pad(text.to(self.dtype), (0, 0, 0, config.text_len - text.shape[1]))
        result: Tensor = self.text_embedding(padded)
        return result

    def cross(self, text: Tensor) -> Cross:
        """Keys and values of a text, which is as for `text`; the same for every chunk and pass."""
        vectors = self.text(text)
        pairs = [block.cross_attn.keys_values(vectors) for block in self.blocks if isinstance(block, Block)]
        return Cross(torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs]))

    def rows(self, latents: Tensor) -> Tensor:
        """Latents `[B, F, C, y, x]` to rows `[B, F * N, D]`, with their places."""
        grid: Tensor = self.patch_embedding(latents.to(self.dtype).transpose(1, 2))
        if self.config.places:
            rows, columns = (
                table[self.config.places // 2 - size // 2 :][:size]
                for table, size in zip(self.places, grid.shape[-2:], strict=True)
            )
            grid = grid + (rows[:, None] + columns).permute(2, 0, 1)[:, None]
        return grid.flatten(2).transpose(1, 2)

    def latents(self, patches: Tensor, latent_hw: tuple[int, int]) -> Tensor:
        """Patches `[B, F * N, p * p * C]` to latents `[B, F, C, y, x]`, float32 at least."""
        h, w = self.config.token_grid(latent_hw)
        p = self.config.patch
        cells = rearrange(patches, "b (f h w) (p q c) -> b f c (h p) (w q)", h=h, w=w, p=p, q=p)
        return cells.to(torch.promote_types(cells.dtype, torch.float32))

    def pass_chunk(self, latents: Tensor, timestep: float, cross: Cross, memory: CausalMemory) -> Tensor:
        """One pass of the chunk that has begun in `memory`: it is written there, its velocity comes back.

        Args:
            latents: `[1, F, C, y, x]`.
            timestep: of the whole chunk; 0 is clean.
            cross: the text.
            memory: of this branch.
        """
        condition = self.condition(torch.tensor(timestep, dtype=torch.float64, device=latents.device))
        x = self.rows(latents)
        for layer, block in enumerate(self.blocks):
            x = block(x, condition.blocks, cross, memory, layer)
        height, width = latents.shape[-2:]
        return self.latents(self.head(x, condition.head), (height, width))


def check_text(config: CausalConfig, text: Tensor) -> None:
    """ValueError unless `text` is one text: word numbers `[e]`, or vectors `[e, text_dim]`, 1 <= e <= E."""
    if config.vocabulary:
        fits = text.ndim == 1 and text.dtype == torch.int64
        what = f"word numbers [1..{config.text_len}], int64"
    else:
        fits = text.ndim == 2 and text.is_floating_point() and text.shape[1] == config.text_dim
        what = f"vectors [1..{config.text_len}, {config.text_dim}]"
    if not fits or not 1 <= len(text) <= config.text_len:
        raise ValueError(f"a text is {what}; got {text.dtype} {tuple(text.shape)}")
    if config.vocabulary and not 0 <= int(text.min()) <= int(text.max()) <= len(config.vocabulary):
        raise ValueError(f"word numbers must be in 0..{len(config.vocabulary)}")


def cross_bytes(config: CausalConfig, dtype: torch.dtype) -> int:
    """Bytes of one text's `Cross`."""
    return 2 * config.num_layers * config.dim * config.text_len * dtype.itemsize


def vocabulary_of(captions: Sequence[str]) -> tuple[str, ...]:
    """Every word of some captions, sorted."""
    return tuple(sorted({word for caption in captions for word in words_of(caption)}))
