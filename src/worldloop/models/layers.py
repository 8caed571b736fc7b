"""Building blocks that more than one network uses: head norm, gated feed-forward, FiLM, number embedding.

Shapes: B batch, R rows of a record, D model width, H heads, K head width, S conditioning width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SINUSOIDS = 64
"""Waves that a number is told by; each gives a cosine and a sine."""


class HeadNorm(nn.Module):
    """RMS norm over each head (Zhang & Sennrich 2019, arXiv:1910.07467) with one gain a head and channel."""

    def __init__(self, heads: int, head_dim: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((heads, 1, head_dim), gain))

    def forward(self, x_BHRK: Tensor) -> Tensor:
        """Float32 in and out, `[..., H, R, K]`."""
        scale = x_BHRK.square().mean(dim=-1, keepdim=True).add(1e-6).rsqrt()
        return x_BHRK * scale * self.weight.float()


class SwiGLU(nn.Module):
    """Gated feed-forward (Shazeer 2020, arXiv:2002.05202): `out(silu(gate) * value)`, no biases."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x_BRD: Tensor) -> Tensor:
        value, gate = self.proj(x_BRD).chunk(2, dim=-1)
        hidden: Tensor = self.out(F.silu(gate) * value)
        return hidden


def film(x_BRD: Tensor, shift_D: Tensor, scale_D: Tensor) -> Tensor:
    """LayerNorm without gain, then the condition's scale and shift (FiLM, Perez et al. 2018)."""
    return F.layer_norm(x_BRD, x_BRD.shape[-1:]) * (1 + scale_D) + shift_D


class NumberEmbedding(nn.Module):
    """A number to S channels: sinusoids of wavelengths 1 to `period`, then two linear layers."""

    def __init__(self, out: int, *, period: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * SINUSOIDS, out)
        self.out = nn.Linear(out, out)
        frequencies = torch.exp(-math.log(period) * torch.arange(SINUSOIDS) / SINUSOIDS)
        # Numbers that bfloat16 holds exactly: no cast on the way to serving changes what a timestep looks like.
        frequencies = frequencies.bfloat16().float()
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: Tensor

    def forward(self, value: Tensor) -> Tensor:
        """`[...]` to `[..., S]`, float32."""
        angle = value.float()[..., None] * self.frequencies
        hidden = F.silu(self.hidden(torch.cat((angle.cos(), angle.sin()), dim=-1)))
        result: Tensor = self.out(hidden)
        return result
