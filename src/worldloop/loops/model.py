"""One world model, loaded and ready to run: network, autoencoder, statistics, rotary tables, and its config.

Owns loading and swapping of weights. Does not own a session's state (`world`). Called by `host` and `api`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.models.autoencoder import Autoencoder, LatentStats
from worldloop.models.rope import RopeTables
from worldloop.models.summaryformer import Summaryformer
from worldloop.models.weights import CheckpointConfig, load_autoencoder, load_weights, read_config


@dataclass(kw_only=True, slots=True)
class WorldModel:
    """Everything that sessions of one checkpoint share. Read-only while sessions run.

    Attributes:
        config: facts of the checkpoint.
        network, autoencoder, stats, tables: on `device`, trunk in `dtype`.
        focus: whether the weights hold a focus embedding; without one a custom region is refused.
    """

    config: CheckpointConfig
    network: Summaryformer
    autoencoder: Autoencoder
    stats: LatentStats
    tables: RopeTables
    device: torch.device
    dtype: torch.dtype
    focus: bool

    @property
    def picture_hw(self) -> tuple[int, int]:
        """(height, width) of the pictures."""
        return self.autoencoder.config.picture_hw

    @property
    def latent_shape(self) -> tuple[int, int]:
        """(N, C) of one latent."""
        return self.config.model.raw_tokens, self.config.model.latent_channels

    @classmethod
    def load(
        cls,
        path: Path,
        autoencoder: Path,
        *,
        device: torch.device,
        dtype: torch.dtype,
        rope_table_len: int = 4096,
        window: int | None = None,
    ) -> WorldModel:
        """Load a checkpoint and its autoencoder.

        Raises:
            CheckpointError: a file is refused, or the two do not fit each other.
        """
        config = read_config(path, rope_table_len=rope_table_len, window=window)
        network = Summaryformer(config.model)
        focus = load_weights(path, network)
        network.to_serving(dtype, device)
        decoder, stats = load_autoencoder(autoencoder, dtype)
        if (decoder.config.channels, decoder.config.latent_hw) != (
            config.model.latent_channels,
            config.model.latent_hw,
        ):
            raise CheckpointError(
                path.name,
                f"latents are {config.model.latent_channels} x {config.model.latent_hw}, those of {autoencoder.name} "
                f"{decoder.config.channels} x {decoder.config.latent_hw}",
            )
        model = cls.assemble(config, network, decoder.to(device), stats, device=device, dtype=dtype)
        model.focus = focus
        return model

    @classmethod
    def assemble(
        cls,
        config: CheckpointConfig,
        network: Summaryformer,
        autoencoder: Autoencoder,
        stats: LatentStats,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> WorldModel:
        """A model from parts that are already on the device."""
        on_device = LatentStats(
            first_mean=stats.first_mean.to(device), first_std=stats.first_std.to(device),
            rest_mean=stats.rest_mean.to(device), rest_std=stats.rest_std.to(device),
        )  # fmt: skip
        return cls(
            config=config, network=network, autoencoder=autoencoder, stats=on_device, tables=network.tables(),
            device=device, dtype=dtype, focus=config.model.focus_region,
        )  # fmt: skip

    @torch.inference_mode()
    def encode(self, picture: Tensor) -> Tensor:
        """A start picture, bytes `[H, W, 3]`, to its gaussianised latent, float32 `[1, N, C]`.

        Raises:
            ValueError: another size than `picture_hw`.
        """
        if tuple(picture.shape) != (*self.picture_hw, 3) or picture.dtype != torch.uint8:
            raise ValueError(
                f"a start picture is bytes {(*self.picture_hw, 3)}; got {picture.dtype} {tuple(picture.shape)}"
            )
        latent, _ = self.autoencoder.encode_first(picture.to(self.device)[None])
        return self.stats.gaussianise(latent, first=True)
