"""One world model, loaded and ready to run: network, autoencoder, statistics, rotary tables, and its config.

Owns loading, and whether a pass or a decode runs as written or compiled. Does not own a session's state (`world`) or
other weights in the same places (`switch`). Called by `host` and `api`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.models import fp8
from worldloop.models.autoencoder import Autoencoder, LatentStats, to_bytes
from worldloop.models.compiled import Compile, decode_body, keep_in_place
from worldloop.models.config import CheckpointConfig
from worldloop.models.memory import Buffers, Memory
from worldloop.models.precision import Precision
from worldloop.models.rope import RopeTables
from worldloop.models.summaryformer import Film, Summaryformer
from worldloop.models.weights import load_autoencoder, load_weights, read_config


@dataclass(kw_only=True, slots=True)
class WorldModel:
    """Everything that sessions of one checkpoint share. Read-only while sessions run.

    Attributes:
        config: facts of the checkpoint.
        network, autoencoder, stats, tables: on `device`, in the formats of `precision`.
        compile: what is compiled. It is compiled once, at the first body frame, and stays when weights change in place.
        focus: whether the weights hold a focus embedding; without one a custom region is refused.
    """

    config: CheckpointConfig
    network: Summaryformer
    autoencoder: Autoencoder
    stats: LatentStats
    tables: RopeTables
    device: torch.device
    precision: Precision
    compile: Compile
    focus: bool
    _compiled_pass: Callable[..., Tensor] | None = field(init=False, default=None)
    _decode_body: Callable[..., tuple[Tensor, Tensor]] = field(init=False, default=decode_body)
    _spare: list[Buffers] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.compile.check(self.device)
        if self.compile.network != "off":
            self._compiled_pass = self.compile.network_pass()
        if self.compile.decoder != "off":
            self._decode_body = self.compile.decode()

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values, which is what the trunk multiplies in."""
        return self.precision.memory

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
        precision: Precision,
        compile: Compile = Compile(),  # noqa: B008 (frozen)
        rope_table_len: int = 4096,
        window: int | None = None,
    ) -> WorldModel:
        """Load a checkpoint and its autoencoder.

        Raises:
            InvalidInputError: the device cannot compile that way, or the network does not fit fp8.
            CheckpointError: a file is refused, or the two do not fit each other.
        """
        compile.check(device)
        config = read_config(path, rope_table_len=rope_table_len, window=window)
        # Always with a focus embedding, so that weights with and without one fit the same network.
        network = Summaryformer(replace(config.model, focus_region=True))
        focus = load_weights(path, network) and config.model.focus_region
        precision.cast(network, device)
        decoder, stats = load_autoencoder(autoencoder, precision.decoder)
        if (decoder.config.channels, decoder.config.latent_hw) != (
            config.model.latent_channels,
            config.model.latent_hw,
        ):
            raise CheckpointError(
                path.name,
                f"latents are {config.model.latent_channels} x {config.model.latent_hw}, those of {autoencoder.name} "
                f"{decoder.config.channels} x {decoder.config.latent_hw}",
            )
        model = cls.assemble(
            config, network, decoder.to(device), stats, device=device, precision=precision, compile=compile
        )
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
        precision: Precision,
        compile: Compile = Compile(),  # noqa: B008 (frozen)
    ) -> WorldModel:
        """A model from parts that are already on the device."""
        return cls(
            config=config, network=network, autoencoder=autoencoder, stats=stats.to(device), tables=network.tables(),
            device=device, precision=precision, compile=compile, focus=config.model.focus_region,
        )  # fmt: skip

    def after_load(self) -> None:
        """To be called when the network's weights have changed in place: what is made from them is made anew."""
        fp8.requantise(self.network)

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

    def new_memory(self) -> Memory:
        """An empty memory for one session.

        Recorded graphs know a memory by its address: for them, the buffers of a session that is over are used again.
        """
        config = self.config.model.memory
        buffers = self._spare.pop() if self._spare else None
        memory = Memory(
            config,
            self.tables,
            recency=self.config.recency,
            dtype=self.dtype,
            device=self.device,
            buffers=buffers,
        )
        if self.compile.records:
            keep_in_place(memory.buffers)
            weakref.finalize(memory, self._spare.append, memory.buffers).atexit = False
        return memory

    def run_pass(self, latent: Tensor, film: Film, memory: Memory, *, focus: Tensor | None = None) -> Tensor:
        """One pass of the frame that is in the making in `memory`, whose record is written there.

        Args:
            latent: x_t, `[1, N, C]`.
            film: condition of this pass.
            focus: booleans `[N]`, for the start picture.

        Returns:
            v, float32 `[1, N, C]`, the caller's own.
        """
        with self.precision.running(self.device):
            if self._compiled_pass is None or memory.frame == 0:
                return self.network.pass_record(latent, film, memory.rope, memory, focus_N=focus)
            if self.compile.records:
                torch.compiler.cudagraph_mark_step_begin()
            b = memory.buffers
            v = self._compiled_pass(
                self.network, latent, film.blocks, film.head, b.cos, b.sin, *b.layers, b.rows, b.bias
            )
            return v.clone() if self.compile.records else v  # a replay writes over the last one's result

    def run_passes(
        self, latents: Sequence[Tensor], films: Sequence[Film], memories: Sequence[Memory]
    ) -> Sequence[Tensor]:
        """`run_pass` for body frames of several sessions at once, in their order; equal to it up to rounding."""
        if len(latents) == 1:
            return [self.run_pass(latents[0], films[0], memories[0])]
        with self.precision.running(self.device):
            together = self.network.pass_records(torch.cat(tuple(latents)), films, memories)
            return [together[row : row + 1] for row in range(len(latents))]

    def decode(self, latent: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        """A gaussianised latent `[1, N, C]` to (bytes on the device, the cache for the next).

        Without a cache it is the start picture's: one picture `[1, H, W, 3]`, else four.
        """
        if cache is None:
            restored = self.stats.restore(latent, first=True).to(self.autoencoder.dtype)
            rgb, after = self.autoencoder.decode_first(restored)
            return to_bytes(rgb[0]), after
        return self._decode_body(self.autoencoder, self.stats.rest_mean, self.stats.rest_std, latent, cache)
