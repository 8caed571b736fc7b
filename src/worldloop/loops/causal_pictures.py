"""The package's own text-to-picture model: the causal video network, asked for one latent frame.

Shapes: C channels, y x cells, N tokens; a picture of H x W pixels has H / 16 x W / 16 cells.

A picture is the first frame of a rollout, so its latent is a world's start latent as it is. Nothing in the weights
knows the grid; the sizes are those that the checkpoint was trained on. Implements `picture_model.PictureModel`. Does
not own a picture's state (`picture`), the network (`models.causal`) or its file (`models.causal_weights`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.core.files import file_hash
from worldloop.loops.picture_model import Phase, PhaseBytes, PictureDefaults, Size, StartLatent
from worldloop.loops.video_model import OwnPictures
from worldloop.models.autoencoder import GROUP, PATCH, Autoencoder, LatentStats
from worldloop.models.causal import CausalTransformer, Cross, cross_bytes, words_of
from worldloop.models.causal_memory import CausalMemory, CausalMemoryConfig, GridRope, causal_memory_bytes
from worldloop.models.causal_weights import VideoConfig, load_video_weights, read_video_config
from worldloop.models.config import grid
from worldloop.models.flow import latent_dtype, predict_clean, sigma_grid, solve, timestep
from worldloop.models.noise import normal
from worldloop.models.weights import load_autoencoder


@dataclass(frozen=True, slots=True)
class Reading:
    """What passes of one picture and branch read: a text, and room for the keys and values of one frame."""

    cross: Cross
    memory: CausalMemory


@dataclass(kw_only=True, slots=True)
class CausalPictures:
    """One checkpoint, ready to make pictures.

    Attributes:
        config: facts of the checkpoint; its chunks are single frames, and it has words of its own.
        network: on `device`, its trunk in `dtype`.
        autoencoder, stats: of one file.
        grids: (y, x) latent cells of what it makes.
        file_hash: of the checkpoint and the autoencoder together.
        autoencoder_hash: of the autoencoder alone.
    """

    config: VideoConfig
    network: CausalTransformer
    autoencoder: Autoencoder
    stats: LatentStats
    grids: tuple[tuple[int, int], ...]
    device: torch.device
    dtype: torch.dtype
    file_hash: str
    autoencoder_hash: str
    _ropes: dict[Size, GridRope] = field(init=False, default_factory=dict)

    @classmethod
    def load(
        cls, path: Path, autoencoder: Path, *, device: torch.device, dtype: torch.dtype, decoder: torch.dtype
    ) -> CausalPictures:
        """Load a checkpoint and its autoencoder.

        Args:
            dtype: of the trunk.
            decoder: of the autoencoder.

        Raises:
            CheckpointError: a file is refused, or the parts do not fit each other.
        """
        config = read_video_config(path)
        if config.chunk_frames != 1 or not config.model.vocabulary:
            raise CheckpointError(
                path.name,
                "a picture model makes single frames and has words: chunk_frames=1 and a vocabulary",
            )
        coder, stats = load_autoencoder(autoencoder, decoder)
        if coder.config.channels != config.model.channels:
            raise CheckpointError(
                path.name,
                f"latents have {config.model.channels} channels, those of {autoencoder.name} {coder.config.channels}",
            )
        coder_hash = file_hash(autoencoder)
        made_for = config.facts.get("autoencoder")
        if isinstance(made_for, dict) and made_for.get("sha256", coder_hash) != coder_hash:
            raise CheckpointError(path.name, f"was trained on another autoencoder than {autoencoder.name}")
        grids = _grids(path, config)
        network = CausalTransformer(config.model)
        load_video_weights(path, network)
        whole = hashlib.sha256(f"{file_hash(path)} {coder_hash}".encode()).hexdigest()
        return cls(
            config=config, network=network.to_serving(dtype, device), autoencoder=coder.to(device),
            stats=stats.to(device), grids=grids, device=device, dtype=dtype, file_hash=whole,
            autoencoder_hash=coder_hash,
        )  # fmt: skip

    # -- facts ----------------------------------------------------------------------------------------------------
    @property
    def defaults(self) -> PictureDefaults:
        config = self.config
        return PictureDefaults(
            size=self._pixels(config.latent_hw),
            steps=config.steps,
            guidance=config.guidance,
            shift=config.shift,
        )

    @property
    def multiple(self) -> int:
        return PATCH * self.config.model.patch

    @property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(self._pixels(hw) for hw in self.grids)

    @property
    def max_pixels(self) -> int:
        return max(height * width for height, width in self.sizes)

    @property
    def machine(self) -> Mapping[str, str]:
        return {"dtype": _name(self.dtype), "decoder": _name(self.autoencoder.dtype)}

    def bytes_of(self, size: Size) -> Mapping[Phase, PhaseBytes]:
        model, memory = self.config.model, self._memory_config(size)
        height, width = size
        wide = latent_dtype(self.dtype).itemsize
        x = math.prod(self._shape(size)) * wide
        reading = causal_memory_bytes(memory, self.dtype) + cross_bytes(model, self.dtype)
        rows = memory.tokens * (2 * model.ffn_dim + 10 * model.dim) * wide
        pictures = GROUP * height * width * 3 * torch.float32.itemsize
        hidden = 3 * self.autoencoder.config.decoder_hidden * x // model.channels
        return {
            "encode": PhaseBytes(weights=0, scratch=0),
            "denoise": PhaseBytes(weights=_bytes(self.network), scratch=2 * reading + rows + 8 * x),
            "decode": PhaseBytes(weights=_bytes(self.autoencoder), scratch=3 * pictures + hidden + 8 * x),
        }

    # -- phases ---------------------------------------------------------------------------------------------------
    def place(self, phases: frozenset[Phase]) -> None:
        for phase, part in (("denoise", self.network), ("decode", self.autoencoder)):
            part.to(self.device if phase in phases else "cpu")

    def check_text(self, prompt: str) -> None:
        model = self.config.model
        known = sum(word in model.vocabulary for word in words_of(prompt))
        if known > model.text_len:
            raise ValueError(f"prompt has {known} words that this model knows; it reads {model.text_len}")

    def encode_text(self, prompt: str) -> Tensor:
        return self.config.model.token_ids(prompt)

    def noise(self, seed: int, size: Size) -> Tensor:
        """That of a rollout's first latent frame."""
        return normal(self._shape(size), seed=seed, frame=0, step=0)

    def schedule(self, steps: int, shift: float) -> tuple[float, ...]:
        return sigma_grid(steps, shift)

    def timestep(self, sigma: float) -> float:
        return timestep(sigma)

    def condition(self, text: Tensor, size: Size) -> Reading:
        memory = CausalMemory(
            self._memory_config(size), self._rope(size), dtype=self.dtype, device=self.device
        )
        memory.begin(1)
        return Reading(self.network.cross(text.to(self.device)[None]), memory)

    def predict(
        self,
        x: Tensor,
        sigma: float,
        condition: Reading,
        *,
        step: int,  # noqa: ARG002 (every pass is alike)
        steps: int,  # noqa: ARG002
        negative: bool,  # noqa: ARG002
    ) -> Tensor:
        # Each pass writes all of the one frame's keys and values before it reads them, so nothing is carried over.
        return self.network.pass_chunk(x[None, None], timestep(sigma), condition.cross, condition.memory)[
            0, 0
        ]

    def advance(
        self, x: Tensor, velocity: Tensor, sigma: float, after: float, *, seed: int, step: int
    ) -> Tensor:
        def fresh() -> Tensor:
            return normal(tuple(x.shape), seed=seed, frame=0, step=step + 1).to(x)

        return solve(self.config.solver, x, velocity, sigma, after, fresh)

    def clean(self, x: Tensor, velocity: Tensor, sigma: float) -> Tensor:
        return predict_clean(x, velocity, sigma)

    def pieces(self, size: Size) -> int:  # noqa: ARG002
        return 1

    def decode(self, value: Tensor, piece: int, size: Size) -> Tensor:  # noqa: ARG002 (there is one)
        pictures = OwnPictures(self.autoencoder.at(self._cells(size)), self.stats)
        return pictures.decode(value[None], None)[0][0]

    def start_latent(self, x: Tensor, size: Size) -> StartLatent:  # noqa: ARG002
        return StartLatent(latent=x.float().cpu(), autoencoder=self.autoencoder_hash)

    # -- shapes ---------------------------------------------------------------------------------------------------
    def _cells(self, size: Size) -> tuple[int, int]:
        return size[0] // PATCH, size[1] // PATCH

    def _pixels(self, cells: tuple[int, int]) -> Size:
        return cells[0] * PATCH, cells[1] * PATCH

    def _shape(self, size: Size) -> tuple[int, int, int]:
        """Of x, `(C, y, x)`."""
        return self.config.model.channels, *self._cells(size)

    def _memory_config(self, size: Size) -> CausalMemoryConfig:
        model = self.config.model
        return CausalMemoryConfig(
            layers=model.num_layers, heads=model.num_heads, head_dim=model.head_dim,
            grid=model.token_grid(self._cells(size)), chunk=1, window=1, sink=0,
        )  # fmt: skip

    def _rope(self, size: Size) -> GridRope:
        if size not in self._ropes:
            memory = self._memory_config(size)
            self._ropes[size] = GridRope(
                memory.head_dim, memory.grid, dtype=latent_dtype(self.dtype), device=self.device
            )
        return self._ropes[size]


def _grids(path: Path, config: VideoConfig) -> tuple[tuple[int, int], ...]:
    """What the checkpoint was trained on, its own size first."""
    found = config.facts.get("grids", [])
    try:
        grids = [grid(each) for each in found]
        for each in grids:
            config.model.token_grid(each)
    except (ValueError, TypeError) as error:
        raise CheckpointError(path.name, f"grids={found!r}: {error}") from error
    return tuple(dict.fromkeys((config.latent_hw, *grids)))


def _bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
