"""Weight files of causal video models: reading, writing, and refusing by name. Never runs code from a file.

    own         safetensors with the published names; config as JSON in the metadata under "config", format
                "causal-video-1"
    published   a .pt in the layout of Self-Forcing, {"generator_ema" or "generator": {"model.blocks.0.…": …}}, read
                with weights_only=True; without a config the architecture is read off the shapes

Owns the two formats and what a config must hold. Does not own the network (`causal`) or files of text encoders and
autoencoders. A refusal is a `CheckpointError` with the file, the fact, what was found and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.models import stored
from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.models.causal_memory import CausalMemoryConfig
from worldloop.models.config import grid, integer, number
from worldloop.models.flow import check_solver, sigma_grid

FORMAT = "causal-video-1"
BRANCHES = ("generator_ema", "generator")
"""Where a published file keeps its weights; the moving average first."""

WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module")
PUBLISHED_HEAD_DIM = 128
"""Of every published size; a .pt without a config does not say it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoConfig:
    """Facts of a checkpoint: architecture, memory, and how it was trained to sample.

    Attributes:
        model: architecture.
        latent_hw: (y, x) cells of a latent frame.
        chunk_frames, window_frames, sink_frames: F, W and S of `causal_memory`.
        steps, shift, solver: of the sampler, see `flow`.
        guidance: scale of classifier-free guidance; 1 asks the network once a step.
        fps: pictures a second that it was trained at.
        step: training step, or None.
        facts: what else the file says: autoencoder, license, trained_on, picture.
    """

    model: CausalConfig
    latent_hw: tuple[int, int] = (60, 104)
    chunk_frames: int = 3
    window_frames: int = 21
    sink_frames: int = 0
    steps: int = 4
    shift: float = 5.0
    solver: str = "renoise"
    guidance: float = 1.0
    fps: int = 16
    step: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sigma_grid(self.steps, self.shift)
        check_solver(self.solver)
        check_guidance(self.guidance)
        if self.fps < 1:
            raise ValueError(f"fps={self.fps} must be at least 1")
        _ = self.memory  # refuses a geometry that cannot work

    @property
    def memory(self) -> CausalMemoryConfig:
        return CausalMemoryConfig(
            layers=self.model.num_layers,
            heads=self.model.num_heads,
            head_dim=self.model.head_dim,
            grid=self.model.token_grid(self.latent_hw),
            chunk=self.chunk_frames,
            window=self.window_frames,
            sink=self.sink_frames,
        )

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """(C, y, x) of one latent frame."""
        return self.model.channels, *self.latent_hw


OWN = tuple(f.name for f in fields(VideoConfig) if f.name not in ("model", "step", "facts"))
ARCHITECTURE = tuple(f.name for f in fields(CausalConfig))
REQUIRED = ("format", *OWN, *ARCHITECTURE)
"""Keys of a config that are never defaulted."""

MAY_BE_ZERO = ("sink_frames", "text_context", "places")

FACTS = ("autoencoder", "license", "trained_on", "grids", "picture")


def check_guidance(scale: float) -> None:
    """ValueError unless it is a finite number of at least 0."""
    if isinstance(scale, bool) or not 0 <= scale < math.inf:
        raise ValueError(f"guidance={scale!r} must be a finite number of at least 0")


def read_video_config(path: Path, **changes: Any) -> VideoConfig:
    """The checked config of a checkpoint, without copying its weights.

    Args:
        path: a .safetensors or .pt file.
        changes: fields of `VideoConfig` that replace the file's, such as `window_frames` or `latent_hw`; for a
            published file without a config also those of `CausalConfig`, such as `num_heads`.

    Raises:
        CheckpointError: anything about the file that is not as it must be.
    """
    if path.suffix == ".pt":
        saved, tensors = _read_pt(path)
        if saved is None:
            return _published(path, tensors, changes)
    else:
        saved = stored.json_config(path, "a video checkpoint")
    try:
        return parse_video_config({**saved, **changes})
    except (ValueError, TypeError) as error:
        raise CheckpointError(path.name, str(error)) from error


def parse_video_config(saved: Mapping[str, Any]) -> VideoConfig:
    """Check a config's keys and values; ValueError says which one is wrong and what is allowed."""
    if saved.get("format") != FORMAT:
        raise ValueError(f"config format={saved.get('format')!r}; a video model's is {FORMAT!r}")
    missing = [key for key in REQUIRED if key not in saved]
    if missing:
        raise ValueError(f"config lacks {missing[0]!r}" + (f" (also {missing[1:]})" if missing[1:] else ""))
    unknown = sorted(set(saved) - {*REQUIRED, *FACTS, "step"})
    if unknown:
        raise ValueError(f"config has an unknown key {unknown[0]!r}")
    values = {key: _value(key, saved) for key in (*OWN, *ARCHITECTURE)}
    model = CausalConfig(**{key: values[key] for key in ARCHITECTURE})
    return VideoConfig(
        model=model,
        **{key: values[key] for key in OWN},
        step=saved.get("step"),
        facts={key: saved[key] for key in FACTS if saved.get(key) is not None},
    )


def load_video_weights(path: Path, network: CausalTransformer) -> None:
    """Copy a checkpoint's weights into `network` in place.

    Raises:
        CheckpointError: a key is missing, unexpected, or of another shape.
    """
    tensors = _read_pt(path)[1] if path.suffix == ".pt" else stored.tensors(path)
    own = network.state_dict()
    missing, unexpected = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    if missing or unexpected:
        raise CheckpointError(
            path.name, f"weights do not fit: missing {missing[:5]}, unexpected {unexpected[:5]}"
        )
    for key, value in tensors.items():
        if own[key].shape != value.shape:
            needed = tuple(own[key].shape)
            raise CheckpointError(path.name, f"{key!r} is {tuple(value.shape)}, {needed} is needed")
    with torch.no_grad():
        for key, value in tensors.items():
            own[key].copy_(value)


def save_video(
    path: Path, network: CausalTransformer, config: VideoConfig, *, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write a checkpoint, weights in `dtype`, config in the metadata. The file appears whole or not at all."""
    saved = {
        "format": FORMAT,
        **{key: getattr(config, key) for key in OWN},
        **config.model.to_dict(),
        **config.facts,
        "step": config.step,
    }
    tensors = {key: value.detach().to(dtype).contiguous() for key, value in network.state_dict().items()}
    stored.save(path, tensors, saved)


def plain_name(key: str) -> str:
    """A weight's name without what wraps it: `model.` in front, and parts that training tools put in between."""
    return ".".join(part for part in key.split(".") if part not in WRAPPERS).removeprefix("model.")


def architecture_of(tensors: Mapping[str, Tensor], **changes: Any) -> CausalConfig:
    """The architecture that weights of the published names belong to; heads are 128 wide unless `changes` say.

    Raises:
        ValueError: they are of another kind of network.
    """
    patch = _shape(tensors, "patch_embedding.weight", 5)
    dim, channels, frames, side, other = patch
    out = _shape(tensors, "head.head.weight", 2)[0]
    if frames != 1 or side != other:
        raise ValueError(f"patches are {frames} x {side} x {other}; 1 x p x p is needed")
    if out != side * side * channels:
        raise ValueError(
            f"reads {channels} channels and writes {out} / {side * side}: text to video needs the same"
        )
    if dim % PUBLISHED_HEAD_DIM and "num_heads" not in changes:
        raise ValueError(
            f"width {dim} is not a multiple of {PUBLISHED_HEAD_DIM}, the published width of a head"
        )
    blocks = {int(key.split(".")[1]) for key in tensors if key.startswith("blocks.")}
    facts = {
        "dim": dim,
        "channels": channels,
        "patch": side,
        "num_heads": dim // PUBLISHED_HEAD_DIM,
        "num_layers": len(blocks),
        "ffn_dim": _shape(tensors, "blocks.0.ffn.0.weight", 2)[0],
        "text_dim": _shape(tensors, "text_embedding.0.weight", 2)[1],
        "freq_dim": _shape(tensors, "time_embedding.0.weight", 2)[1],
    }
    return CausalConfig(**{**facts, **changes})


def _published(path: Path, tensors: Mapping[str, Tensor], changes: Mapping[str, Any]) -> VideoConfig:
    shapes = {key: value for key, value in changes.items() if key in ARCHITECTURE}
    rest = {key: value for key, value in changes.items() if key not in ARCHITECTURE}
    try:
        return VideoConfig(model=architecture_of(tensors, **shapes), **rest)
    except (ValueError, TypeError) as error:
        raise CheckpointError(path.name, str(error)) from error


def _shape(tensors: Mapping[str, Tensor], key: str, axes: int) -> tuple[int, ...]:
    if key not in tensors:
        raise ValueError(f"lacks {key!r}: these are no weights of a Wan text-to-video network")
    if tensors[key].ndim != axes:
        raise ValueError(f"{key!r} has {tensors[key].ndim} axes, {axes} are needed")
    return tuple(tensors[key].shape)


def _value(key: str, saved: Mapping[str, Any]) -> Any:
    value = saved[key]
    if key == "vocabulary":
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            raise ValueError(f"vocabulary={value!r} must be a list of words")
        return tuple(value)
    if key == "latent_hw":
        return grid(value)
    if key == "solver":
        return value
    if key in ("shift", "guidance", "eps"):
        return number(saved, key)
    return integer(saved, key, least=0 if key in MAY_BE_ZERO else 1)


def _read_pt(path: Path) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """(config or None, weights by their plain names)."""
    whole = stored.torch_file(path)
    found = [name for name in BRANCHES if isinstance(whole, dict) and isinstance(whole.get(name), dict)]
    if not found:
        raise CheckpointError(
            path.name, f"must hold {' or '.join(map(repr, BRANCHES))} with a video model's weights"
        )
    weights = whole[found[0]]
    odd = [key for key, value in weights.items() if not isinstance(key, str) or not isinstance(value, Tensor)]
    if odd:
        raise CheckpointError(path.name, f"{found[0]}[{odd[0]!r}] is not a tensor")
    config = whole.get("config")
    if config is not None and not isinstance(config, dict):
        raise CheckpointError(path.name, f"config must be an object; got {type(config).__name__}")
    return config, {plain_name(key): value for key, value in weights.items()}
