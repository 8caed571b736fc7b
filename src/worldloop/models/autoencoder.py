"""Causal autoencoder: pictures to latents at 1/16 scale, 4 RGB frames a latent, streaming equal to parallel.

Shapes: B batch, T latent frames, F RGB frames (1 + 4 (T - 1)), H x W pixels, N = (H / 16) (W / 16) cells, C channels.
The first RGB frame makes one latent, every further group of 4 makes one. A cell's encoder sees its 4 frames and the
frame before them; the first frame counts as five equal ones, so both kinds of latent share one space. The decoder is a
linear map plus a small convolution over the grid that also sees the latent before. What came before is an explicit
cache, so a session can be stopped anywhere and a step repeated.

Owns normalisation (ImageNet mean and deviation) and packing to bytes. Does not own gaussianisation of latents
(`LatentStats`, applied by `loops` and `trainer`) or training (`trainer.autoencoder`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

PATCH = 16
GROUP = 4
"""RGB frames of one latent frame."""
RGB_MEAN = (0.485, 0.456, 0.406)
RGB_STD = (0.229, 0.224, 0.225)
FRAME_VALUES = PATCH * PATCH * 3


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoencoderConfig:
    """Sizes of the autoencoder.

    Attributes:
        channels: C.
        latent_hw: (h, w) of the grid; pictures are 16 times as large.
        encoder_hidden, decoder_hidden: widths of the non-linear parts.
    """

    channels: int = 48
    latent_hw: tuple[int, int] = (24, 42)
    encoder_hidden: int = 64
    decoder_hidden: int = 192

    @property
    def picture_hw(self) -> tuple[int, int]:
        """(H, W) of the pictures."""
        return self.latent_hw[0] * PATCH, self.latent_hw[1] * PATCH

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Encoder(nn.Module):
    """Five frames of one cell to its latent: linear, plus a small two-layer correction."""

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        size = (GROUP + 1) * FRAME_VALUES
        self.linear = nn.Linear(size, config.channels)
        self.hidden = nn.Linear(size, config.encoder_hidden)
        self.out = nn.Linear(config.encoder_hidden, config.channels, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, cells: Tensor) -> Tensor:
        """`[..., 5 * 768]` to `[..., C]`."""
        result: Tensor = self.linear(cells) + self.out(F.gelu(self.hidden(cells)))
        return result


class Decoder(nn.Module):
    """This latent and the one before to four frames of every cell."""

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.grid = config.latent_hw
        width = config.decoder_hidden
        self.linear = nn.Linear(config.channels, GROUP * FRAME_VALUES)
        self.first = nn.Conv2d(2 * config.channels, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Linear(width, GROUP * FRAME_VALUES, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, latent_BNC: Tensor, previous_BNC: Tensor) -> Tensor:
        """`[B, N, C]` twice to `[B, N, 4 * 768]`."""
        both = torch.cat((latent_BNC, previous_BNC), dim=-1)
        grid = rearrange(both, "b (h w) c -> b c h w", h=self.grid[0])
        hidden = F.gelu(self.first(grid))
        hidden = hidden + F.gelu(self.second(hidden))
        result: Tensor = self.linear(latent_BNC) + self.out(rearrange(hidden, "b c h w -> b (h w) c"))
        return result


class Autoencoder(nn.Module):
    """Encoder and decoder with their streaming forms.

    Args:
        config: sizes.
    """

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        self.enc = Encoder(config)
        self.dec = Decoder(config)

    @property
    def dtype(self) -> torch.dtype:
        return self.dec.linear.weight.dtype

    def at(self, latent_hw: tuple[int, int]) -> Autoencoder:
        """The same weights, not copied, for pictures of another size; nothing in them knows the grid."""
        with torch.device("meta"):
            other = Autoencoder(replace(self.config, latent_hw=latent_hw))
        other.load_state_dict(self.state_dict(), assign=True)
        return other.eval().requires_grad_(False)

    # -- streaming ------------------------------------------------------------------------------------------------
    def encode_first(self, rgb: Tensor) -> tuple[Tensor, Tensor]:
        """Start picture, bytes or normalised floats `[B, H, W, 3]`, to (latent `[B, N, C]`, cache)."""
        frame = self._cells(rgb[:, None])
        latent: Tensor = self.enc(frame.expand(-1, GROUP + 1, -1, -1).transpose(1, 2).flatten(2))
        return latent, frame

    def encode_next(self, rgb: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """The next four frames `[B, 4, H, W, 3]` to (latent `[B, N, C]`, cache)."""
        frames = self._cells(rgb)
        five = torch.cat((cache, frames), dim=1)
        latent: Tensor = self.enc(five.transpose(1, 2).flatten(2))
        return latent, frames[:, -1:]

    def decode_first(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """The first latent `[B, N, C]` to (one frame `[B, 1, H, W, 3]`, cache), normalised floats."""
        return self._frames(self.dec(latent, latent))[:, -1:], latent

    def decode_next(self, latent: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """A further latent to (four frames `[B, 4, H, W, 3]`, cache), normalised floats."""
        return self._frames(self.dec(latent, cache)), latent

    # -- parallel -------------------------------------------------------------------------------------------------
    def encode(self, rgb: Tensor) -> Tensor:
        """A clip of F = 1 + 4 (T - 1) frames `[B, F, H, W, 3]` to latents `[B, T, N, C]`."""
        cells = self._cells(rgb)
        first = cells[:, :1]
        groups = rearrange(cells[:, 1:], "b (t g) n v -> b t g n v", g=GROUP)
        last = torch.cat((first, groups[:, :-1, -1]), dim=1) if groups.shape[1] else first[:, :0]
        five = torch.cat((last[:, :, None], groups), dim=2)
        five = torch.cat((first[:, :, None].expand(-1, -1, GROUP + 1, -1, -1), five), dim=1)
        result: Tensor = self.enc(rearrange(five, "b t g n v -> b t n (g v)"))
        return result

    def decode(self, latents: Tensor) -> Tensor:
        """Latents `[B, T, N, C]` to the clip `[B, 1 + 4 (T - 1), H, W, 3]`, normalised floats."""
        batch, frames = latents.shape[:2]
        previous = torch.cat((latents[:, :1], latents[:, :-1]), dim=1)
        cells = self.dec(latents.flatten(0, 1), previous.flatten(0, 1))
        pictures = self._frames(cells).unflatten(0, (batch, frames))
        return torch.cat((pictures[:, 0, -1:], pictures[:, 1:].flatten(1, 2)), dim=1)

    # -- pixels ---------------------------------------------------------------------------------------------------
    def _cells(self, rgb: Tensor) -> Tensor:
        """`[B, T, H, W, 3]` to `[B, T, N, 768]` in the weights' dtype; bytes are normalised first."""
        values = normalise(rgb) if rgb.dtype == torch.uint8 else rgb
        cells = rearrange(values, "b t (h p) (w q) c -> b t (h w) (p q c)", p=PATCH, q=PATCH)
        return cells.to(self.dtype)

    def _frames(self, cells: Tensor) -> Tensor:
        """`[B, N, 4 * 768]` to `[B, 4, H, W, 3]`, float32."""
        return rearrange(
            cells.float(),
            "b (h w) (t p q c) -> b t (h p) (w q) c",
            h=self.config.latent_hw[0],
            t=GROUP,
            p=PATCH,
            q=PATCH,
        )


def normalise(rgb: Tensor) -> Tensor:
    """Bytes `[..., 3]` to float32 with ImageNet mean 0 and deviation 1."""
    return (rgb.float() / 255.0 - rgb.new_tensor(RGB_MEAN, dtype=torch.float32)) / rgb.new_tensor(
        RGB_STD, dtype=torch.float32
    )


def to_bytes(rgb: Tensor) -> Tensor:
    """Normalised floats `[..., 3]` to bytes, rounded and clipped."""
    scaled = (rgb * rgb.new_tensor(RGB_STD) + rgb.new_tensor(RGB_MEAN)) * 255.0
    return scaled.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentStats:
    """Per-channel mean and deviation of latents, one pair for start pictures and one for all others, `[C]` each."""

    first_mean: Tensor
    first_std: Tensor
    rest_mean: Tensor
    rest_std: Tensor

    def to(self, device: torch.device) -> LatentStats:
        """The same numbers on a device."""
        return LatentStats(**{name: getattr(self, name).to(device) for name in self.__slots__})

    def gaussianise(self, latent: Tensor, *, first: bool) -> Tensor:
        """Latents `[..., C]` to mean 0 and deviation 1, float32."""
        mean, std = (self.first_mean, self.first_std) if first else (self.rest_mean, self.rest_std)
        return (latent.float() - mean) / std

    def restore(self, latent: Tensor, *, first: bool) -> Tensor:
        """The inverse of `gaussianise`."""
        mean, std = (self.first_mean, self.first_std) if first else (self.rest_mean, self.rest_std)
        return latent * std + mean
