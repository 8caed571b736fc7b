"""Finished latent rows to pixels: diffusers' AutoencoderKLFlux2, in float32 and in pieces.

Shapes: P = h * w packed rows, C packed channels, c unpacked channels, p = patch, H x W pixels.

    rows [P, C] -> rows * sqrt(var + eps) + mean -> unpack [1, c, p h, p w] -> decoder -> bytes [H, W, 3]

A piece is one stage of the decoder, so a picture that is cancelled stops between stages. Owns the order above and the
decoder's bytes. diffusers runs the stages; it is imported when a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.models.moss.config import DecoderConfig
from worldloop.models.moss.prompt import check_report, short


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """The autoencoder's way back to pixels.

    Attributes:
        config: facts of it.
        vae: diffusers' AutoencoderKLFlux2, float32, without its encoder.
    """

    config: DecoderConfig
    vae: Any

    @classmethod
    def load(cls, folder: Path, config: DecoderConfig) -> Decoder:
        """Read vae/ of a checkpoint into main memory; what it has to look at pictures with is let go.

        Raises:
            CheckpointError: a file is refused, or a tensor is missing, unexpected or of another shape.
        """
        from diffusers import AutoencoderKLFlux2

        try:
            vae, report = AutoencoderKLFlux2.from_pretrained(
                folder / "vae", torch_dtype=torch.float32, local_files_only=True, use_safetensors=True,
                low_cpu_mem_usage=False, output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
        except Exception as error:
            raise CheckpointError("vae", f"cannot be loaded: {short(error)}") from error
        check_report("vae", report)
        vae.encoder, vae.quant_conv = None, None
        return cls(config=config, vae=vae.eval().requires_grad_(False))

    @property
    def pieces(self) -> int:
        """Stages: the lowest resolution, each block upwards, and the last convolution."""
        return len(self.vae.decoder.up_blocks) + 2

    def piece(self, value: Tensor, index: int, grid: tuple[int, int]) -> Tensor:
        """One stage: rows for the first, bytes from the last, else what the one before gave.

        Args:
            value: rows `[P, C]`, or the result of piece `index - 1`.
            index: from 0.
            grid: (h, w) of the packed rows.
        """
        stage = self._stages()[index]
        # Convolutions in full float32 and the same on every run, whatever the process allows elsewhere.
        with (
            torch.inference_mode(),
            torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False),
        ):
            if index == 0:
                value = unpack(self.restored(value), grid, self.config.patch)
            made: Tensor = stage(value)
            return to_bytes(made[0]) if index == self.pieces - 1 else made

    def restored(self, rows: Tensor) -> Tensor:
        """Rows as the autoencoder had them before they were normalised, float32."""
        norm = self.vae.bn
        spread = (norm.running_var + self.config.eps).sqrt()
        made: Tensor = rows.float() * spread + norm.running_mean
        return made

    def _stages(self) -> list[Callable[[Tensor], Tensor]]:
        decoder, before = self.vae.decoder, self.vae.post_quant_conv

        def lowest(z: Tensor) -> Tensor:
            made: Tensor = decoder.mid_block(decoder.conv_in(z if before is None else before(z)))
            return made

        def last(x: Tensor) -> Tensor:
            made: Tensor = decoder.conv_out(decoder.conv_act(decoder.conv_norm_out(x)))
            return made

        return [lowest, *decoder.up_blocks, last]


def unpack(rows: Tensor, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Packed rows `[P, C]` to `[1, c, p h, p w]`: a row's channels are numbered (c, y, x)."""
    (height, width), (down, right) = grid, patch
    cells = rows.reshape(height, width, -1, down, right)
    latent = cells.permute(2, 0, 3, 1, 4)  # c, h, y, w, x
    return latent.reshape(1, -1, height * down, width * right)


def to_bytes(picture: Tensor) -> Tensor:
    """Numbers in [-1, 1], `[3, H, W]`, to bytes `[H, W, 3]`, rounded to the nearest, ties to even, and clipped."""
    scaled = (picture / 2 + 0.5).clamp(0, 1) * 255
    return scaled.round().to(torch.uint8).permute(1, 2, 0).contiguous()


def scratch_bytes(config: DecoderConfig, size: tuple[int, int]) -> int:
    """Bytes beside the weights while a picture of `size` (height, width) is decoded; what a convolution takes to work
    in is not in it.

    A residual block holds its input, the normed copy, the activated copy and what comes out, all as wide as the wider
    side; the wide side of a block is what the stage before it upsampled.
    """
    most = 0
    pixels = size[0] * size[1]
    widths = config.widths
    for level, width in enumerate(widths):
        wider = widths[min(level + 1, len(widths) - 1)]
        most = max(most, (pixels >> (2 * level)) * 4 * max(width, wider))
    return most * torch.float32.itemsize
