"""One video model, loaded and ready to run: network, latents to pictures and back, words to numbers.

Owns loading and how the parts fit. Does not own a rollout's state (`video`). The seams `Pictures` and `Texts` are what
a checkpoint of the published size needs from other files (its autoencoder and text encoder); the package's own
autoencoder and the network's own words fill them for a small model. Called by hosts and `testing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.models.autoencoder import GROUP, Autoencoder, LatentStats, to_bytes
from worldloop.models.causal import CausalConfig, CausalTransformer, Cross, check_text
from worldloop.models.causal_memory import CausalMemory, GridRope
from worldloop.models.causal_weights import VideoConfig, load_video_weights, read_video_config
from worldloop.models.flow import latent_dtype
from worldloop.models.weights import load_autoencoder


class Texts(Protocol):
    """Turns a prompt into what the network reads, see `causal.check_text`."""

    def encode_text(self, prompt: str) -> Tensor: ...


class Pictures(Protocol):
    """A causal autoencoder: the first latent is one picture, every further one is four.

    Attributes:
        picture_hw: (height, width) of the pictures.
        cache_bytes: of one rollout's cache.
    """

    @property
    def picture_hw(self) -> tuple[int, int]: ...

    @property
    def cache_bytes(self) -> int: ...

    def encode(self, picture: Tensor) -> Tensor:
        """A first picture, bytes `[H, W, 3]`, to its latent `[C, y, x]`; ValueError when it has another size."""
        ...

    def decode(self, latents: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """The next latents `[F, C, y, x]` to (bytes `[T, H, W, 3]`, cache); cache None is the beginning.

        Changes no cache that it was given, so that it may be called twice.
        """
        ...

    def resume(self, latents: Tensor) -> Any:
        """The cache after `latents [T, C, y, x]` from the beginning."""
        ...


def pictures_before(latent: int) -> int:
    """Pictures that come before latent frame `latent`."""
    return 0 if latent == 0 else 1 + GROUP * (latent - 1)


class OwnPictures:
    """The package's autoencoder as `Pictures`; latents are gaussianised. Its cache is the latent before.

    Args:
        autoencoder, stats: of one file, on one device.
    """

    def __init__(self, autoencoder: Autoencoder, stats: LatentStats) -> None:
        self.autoencoder = autoencoder
        self.stats = stats.to(autoencoder.dec.linear.weight.device)

    @property
    def picture_hw(self) -> tuple[int, int]:
        return self.autoencoder.config.picture_hw

    @property
    def cache_bytes(self) -> int:
        config = self.autoencoder.config
        height, width = config.latent_hw
        return config.channels * height * width * self.autoencoder.dtype.itemsize

    @torch.inference_mode()
    def encode(self, picture: Tensor) -> Tensor:
        if tuple(picture.shape) != (*self.picture_hw, 3) or picture.dtype != torch.uint8:
            raise ValueError(
                f"a first picture is bytes {(*self.picture_hw, 3)}; got {picture.dtype} {tuple(picture.shape)}"
            )
        rgb = picture.to(self.stats.first_mean.device)[None]
        latent = self.stats.gaussianise(self.autoencoder.encode_first(rgb)[0], first=True)
        grid: Tensor = latent[0].T.unflatten(1, self.autoencoder.config.latent_hw)
        return grid

    def decode(self, latents: Tensor, cache: Any) -> tuple[Tensor, Any]:
        parts, restored = [], self._restored(latents, first=cache is None)
        if cache is None:
            picture, cache = self.autoencoder.decode_first(restored[:1])
            parts, restored = [picture[:, 0]], restored[1:]
        if len(restored):
            before = torch.cat((cache, restored[:-1]))
            parts.append(self.autoencoder.decode_next(restored, before)[0].flatten(0, 1))
            cache = restored[-1:]
        return to_bytes(torch.cat(parts)), cache

    def resume(self, latents: Tensor) -> Any:
        return self._restored(latents, first=True)[-1:]

    def _restored(self, latents: Tensor, *, first: bool) -> Tensor:
        """Latents `[F, C, y, x]` to the autoencoder's, `[F, N, C]`; `first` says that the first one is a rollout's."""
        cells = latents.flatten(2).transpose(1, 2)
        rest = self.stats.restore(cells, first=False)
        if first:
            rest = torch.cat((self.stats.restore(cells[:1], first=True), rest[1:]))
        return rest.to(self.autoencoder.dtype)


@dataclass(frozen=True, slots=True)
class OwnWords:
    """The words of a network with a vocabulary as `Texts`: unknown ones are left out."""

    config: CausalConfig

    def encode_text(self, prompt: str) -> Tensor:
        return self.config.token_ids(prompt)


@dataclass(kw_only=True, slots=True)
class VideoModel:
    """Everything that rollouts of one checkpoint share. Read-only while they run.

    Attributes:
        config: facts of the checkpoint.
        network: on `device`, its trunk in `dtype`.
        pictures, texts: see `Pictures` and `Texts`.
        dtype: of the trunk and of keys and values.
    """

    config: VideoConfig
    network: CausalTransformer
    pictures: Pictures
    texts: Texts
    device: torch.device
    dtype: torch.dtype
    rope: GridRope = field(init=False)

    def __post_init__(self) -> None:
        memory = self.config.memory
        self.rope = GridRope(memory.head_dim, memory.grid, dtype=self.latent_dtype, device=self.device)

    @property
    def latent_dtype(self) -> torch.dtype:
        """Of latents, noise and velocities."""
        return latent_dtype(self.dtype)

    @property
    def empty_text(self) -> Tensor:
        """The text that says nothing, for the branch without a prompt."""
        model = self.config.model
        return torch.zeros(1, dtype=torch.int64) if model.vocabulary else torch.zeros(1, model.text_dim)

    @classmethod
    def load(
        cls,
        path: Path,
        pictures: Path | Pictures,
        *,
        device: torch.device,
        dtype: torch.dtype,
        texts: Texts | None = None,
        **changes: Any,
    ) -> VideoModel:
        """Load a checkpoint.

        Args:
            path: see `causal_weights`.
            pictures: an autoencoder file of this package, or another autoencoder.
            texts: a text encoder; None when the network has its own words.
            changes: of `causal_weights.read_video_config`.

        Raises:
            CheckpointError: a file is refused, or the parts do not fit each other.
        """
        config = read_video_config(path, **changes)
        if texts is None and not config.model.vocabulary:
            raise CheckpointError(path.name, "has no words of its own: it needs a text encoder")
        if isinstance(pictures, Path):
            autoencoder, stats = load_autoencoder(pictures, dtype)
            fits = autoencoder.config.channels, *autoencoder.config.latent_hw
            if fits != config.latent_shape:
                raise CheckpointError(
                    path.name, f"latents are {config.latent_shape}, those of {pictures.name} {fits}"
                )
            pictures = OwnPictures(autoencoder.to(device), stats)
        network = CausalTransformer(config.model)
        load_video_weights(path, network)
        network.to_serving(dtype, device)
        texts = texts or OwnWords(config.model)
        return cls(config=config, network=network, pictures=pictures, texts=texts, device=device, dtype=dtype)

    def encode_text(self, prompt: str) -> Tensor:
        """A prompt as a rollout takes it."""
        return self.texts.encode_text(prompt)

    def check_text(self, text: Tensor) -> None:
        """ValueError unless it is what `encode_text` makes."""
        check_text(self.config.model, text)

    def cross(self, text: Tensor) -> Cross:
        """Keys and values of one text in every block."""
        return self.network.cross(text.to(self.device)[None])

    def new_memory(self) -> CausalMemory:
        """An empty memory for one branch of a rollout."""
        return CausalMemory(self.config.memory, self.rope, dtype=self.dtype, device=self.device)

    def run_pass(self, latents: Tensor, timestep: float, cross: Cross, memory: CausalMemory) -> Tensor:
        """One pass of the chunk after what `memory` holds: written there, velocity `[F, C, y, x]` comes back."""
        memory.begin(len(latents))
        return self.network.pass_chunk(latents[None], timestep, cross, memory)[0]
