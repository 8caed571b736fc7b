"""MOSS-Image as a picture model: text encoder, transformer and decoder of one checkpoint.

Shapes: x is packed rows `[h * w, C]` of a picture of H x W pixels, h = H / 16, w = W / 16.

Implements `picture_model.PictureModel`. Does not own a picture's state, guidance or the cache of negative prompts
(`picture`), nor any of the parts (`models.moss`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from worldloop.loops.picture_model import Phase, PhaseBytes, PictureDefaults, Size
from worldloop.models.device import free_cache
from worldloop.models.moss import decode, prompt, schedule, transformer
from worldloop.models.moss.decode import Decoder
from worldloop.models.moss.files import Checkpoint, checkpoint_hash, load_transformer, read_checkpoint
from worldloop.models.moss.prompt import MAX_TOKENS, Encoder, Prompts
from worldloop.models.moss.transformer import Condition, MossTransformer
from worldloop.models.portable_noise import portable_rows

STEPS, GUIDANCE = 50, 3.0


@dataclass(kw_only=True)
class MossPictures:
    """One checkpoint, ready to make pictures.

    Attributes:
        checkpoint: its configs.
        prompts, encoder, network, decoder: its parts.
        device: where parts run.
        dtype: of the encoder and the transformer's trunk; the decoder is float32.
    """

    checkpoint: Checkpoint
    prompts: Prompts
    encoder: Encoder
    network: MossTransformer
    decoder: Decoder
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def load(cls, folder: Path, *, device: torch.device, dtype: torch.dtype) -> MossPictures:
        """Load a checkpoint into main memory, from where `place` takes its parts. Needs the extra `moss`.

        Args:
            device: where parts run.
            dtype: of the encoder and the transformer.

        Raises:
            CheckpointError: a file is refused, or the parts do not fit each other.
        """
        checkpoint = read_checkpoint(folder)
        return cls(
            checkpoint=checkpoint,
            prompts=Prompts.load(folder),
            network=load_transformer(checkpoint, dtype=dtype),
            encoder=Encoder.load(folder, dtype=dtype),
            decoder=Decoder.load(folder, checkpoint.decoder),
            device=device,
            dtype=dtype,
        )

    # -- facts ----------------------------------------------------------------------------------------------------
    @property
    def defaults(self) -> PictureDefaults:
        side = self.checkpoint.decoder.sample_size // self.multiple * self.multiple
        return PictureDefaults(
            size=(side, side), steps=STEPS, guidance=GUIDANCE, shift=self.checkpoint.schedule.shift
        )

    @property
    def multiple(self) -> int:
        return self.checkpoint.decoder.scale

    @property
    def sizes(self) -> tuple[Size, ...] | None:
        return None

    @property
    def max_pixels(self) -> int:
        """Half as many again as the square that the autoencoder was made for: 1536 x 1024 for 1024."""
        return 3 * self.checkpoint.decoder.sample_size**2 // 2

    @cached_property
    def file_hash(self) -> str:
        """Reads every file of the checkpoint when it is first asked for."""
        return checkpoint_hash(self.checkpoint.folder)

    @property
    def machine(self) -> Mapping[str, str]:
        from importlib.metadata import version

        libraries = {name: version(name) for name in ("transformers", "diffusers")}
        return {"dtype": str(self.dtype).removeprefix("torch."), "decoder": "float32", **libraries}

    @cached_property
    def _weights(self) -> Mapping[Phase, int]:
        """Bytes of each phase's part; counted once, for there are thousands of tensors."""
        return {
            "encode": _bytes(self.encoder.model), "denoise": _bytes(self.network), "decode": _bytes(self.decoder.vae),
        }  # fmt: skip

    def bytes_of(self, size: Size) -> Mapping[Phase, PhaseBytes]:
        """For the longest prompts that there may be."""
        config, rows = self.checkpoint.transformer, self._rows(size)
        latents = 6 * rows * config.channels * torch.float32.itemsize
        texts = 2 * MAX_TOKENS * config.text_dim * self.dtype.itemsize
        conditions = 2 * transformer.condition_bytes(config, MAX_TOKENS, rows, self.dtype)
        reading = prompt.scratch_bytes(self.encoder.model.config, self.dtype)
        passing = transformer.scratch_bytes(config, rows + MAX_TOKENS, self.dtype)
        decoding = decode.scratch_bytes(self.checkpoint.decoder, size)
        scratch: dict[Phase, int] = {
            "encode": texts + reading,
            "denoise": texts + conditions + latents + passing,
            "decode": conditions + latents + decoding,
        }
        return {
            phase: PhaseBytes(weights=self._weights[phase], scratch=each) for phase, each in scratch.items()
        }

    # -- phases ---------------------------------------------------------------------------------------------------
    def place(self, phases: frozenset[Phase]) -> None:
        parts: dict[Phase, nn.Module] = {
            "encode": self.encoder.model, "denoise": self.network, "decode": self.decoder.vae,
        }  # fmt: skip
        away = [part for phase, part in parts.items() if phase not in phases and _moves(part, "cpu")]
        for part in away:
            part.to("cpu")
        if away:
            free_cache(self.device)
        for phase, part in parts.items():
            if phase in phases and _moves(part, self.device.type):
                part.to(self.device)

    def check_text(self, prompt: str) -> None:
        """ValueError when the prompt has too many tokens."""
        self.prompts.token_ids(prompt)

    def encode_text(self, prompt: str) -> Tensor:
        """Rows `[T, E]`; ValueError when the prompt has too many tokens."""
        return self.encoder.encode(self.prompts.token_ids(prompt))

    def noise(self, seed: int, size: Size) -> Tensor:
        """Rows `[h * w, C]`: those of a machine on which the published model was sampled."""
        return portable_rows(self._grid(size), self.checkpoint.transformer.channels, seed=seed)

    def schedule(self, steps: int, shift: float) -> tuple[float, ...]:
        return schedule.sigmas(steps, shift, self.checkpoint.schedule.train_steps)

    def timestep(self, sigma: float) -> float:
        return schedule.timestep(sigma, self.checkpoint.schedule.train_steps)

    def condition(self, text: Tensor, size: Size) -> Condition:
        return self.network.condition(text, self._grid(size))

    def predict(
        self, x: Tensor, sigma: float, condition: Condition, *, step: int, steps: int, negative: bool
    ) -> Tensor:
        skipped = self.checkpoint.skip.at(step, steps) if negative else frozenset[int]()
        velocity: Tensor = self.network(x, self.timestep(sigma), condition, skipped)
        return velocity

    def advance(
        self,
        x: Tensor,
        velocity: Tensor,
        sigma: float,
        after: float,
        *,
        seed: int,  # noqa: ARG002 (an Euler step takes no fresh noise)
        step: int,  # noqa: ARG002
    ) -> Tensor:
        return schedule.euler(x, velocity, sigma, after)

    def clean(self, x: Tensor, velocity: Tensor, sigma: float) -> Tensor:
        return schedule.euler(x, velocity, sigma, 0.0)

    def pieces(self, size: Size) -> int:  # noqa: ARG002 (as many for every size)
        return self.decoder.pieces

    def decode(self, value: Tensor, piece: int, size: Size) -> Tensor:
        return self.decoder.piece(value, piece, self._grid(size))

    def start_latent(self, x: Tensor, size: Size) -> None:  # noqa: ARG002
        """No world has this autoencoder."""
        return

    # -- shapes ---------------------------------------------------------------------------------------------------
    def _grid(self, size: Size) -> tuple[int, int]:
        """(h, w) packed rows of a picture."""
        return size[0] // self.multiple, size[1] // self.multiple

    def _rows(self, size: Size) -> int:
        height, width = self._grid(size)
        return height * width


def _moves(part: nn.Module, kind: str) -> bool:
    return next(part.parameters()).device.type != kind


def _bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
