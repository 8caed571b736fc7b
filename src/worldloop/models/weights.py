"""Weight files: reading, writing, and refusing by name. Never runs code from a file.

    checkpoint   safetensors, config as JSON in the metadata under "config"; or the published layout
                 {"model", "config", "step"} in a .pt, read with weights_only=True
    autoencoder  safetensors with keys enc.*, dec.* and stats.*, config in the metadata

Owns the two formats and what a config must hold. Does not own file names and folders (`registry`). A refusal is a
`CheckpointError` with the file, the fact, what was found and what is allowed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from worldloop.core.errors import CheckpointError
from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig, LatentStats
from worldloop.models.memory import Recency
from worldloop.models.sampling import Schedule, timestep_grid
from worldloop.models.summaryformer import Summaryformer, SummaryformerConfig

FORMAT = "summaryformer-inference-1"
CACHE_MODES = ("recache", "last_step_writes")
REQUIRED = (
    "format", "timesteps", "timestep_shift", "noise_schedule", "shifted_cosine_ratio", "cache_mode", "recency",
    "sink_gap_max", "summary_tokens", "raw_window_frames", "summary_window_frames", "focus_region", "profile",
    "jump_sprint", "dim", "ffn_dim", "num_heads", "num_layers",
)  # fmt: skip
"""Keys of a checkpoint's config that are never defaulted."""
ARCHITECTURE = (
    "dim", "ffn_dim", "num_heads", "num_layers", "summary_tokens", "raw_window_frames", "summary_window_frames",
    "latent_hw", "latent_channels", "cond_dim", "grid_embedding", "rope_spatial_base",
)  # fmt: skip
"""Keys on which all checkpoints of a folder agree."""
OPTIONAL: dict[str, Any] = {
    "latent_channels": 48, "latent_hw": [24, 42], "encode_fps": 12, "autoencoder": None, "license": None,
    "trained_on": None, "cond_dim": 0, "rope_spatial_base": 10_000.0, "grid_embedding": False,
    "yaw": True,
}  # fmt: skip
"""Keys that may be missing, with the published model's constants."""
FOCUS_KEY = "z0_focus_region_embed"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """A checked config: the facts a session needs, and the architecture.

    Attributes:
        model: architecture.
        timesteps, timestep_shift, schedule: the sampler's law; timesteps high to low.
        cache_mode: `recache` or `last_step_writes`.
        recency: the trained bias on summaries, or None.
        profile, jump_sprint, yaw: what the player can do; what a world was not trained with is always 0.
        encode_fps: RGB frames a second that the model was trained at.
        step: training step, or None.
        saved: the config as it is in the file, optional keys filled in.
    """

    model: SummaryformerConfig
    timesteps: tuple[int, ...]
    timestep_shift: float
    schedule: Schedule
    cache_mode: str
    recency: Recency | None
    profile: str
    jump_sprint: bool
    yaw: bool
    encode_fps: int
    step: int | None
    saved: Mapping[str, Any]


def read_config(path: Path, *, rope_table_len: int = 4096, window: int | None = None) -> CheckpointConfig:
    """The checked config of a checkpoint, without reading its weights.

    Args:
        path: a .safetensors or .pt file.
        rope_table_len: capacity of the rotary table.
        window: memory window that replaces the trained one (capacity only).

    Raises:
        CheckpointError: anything about the file that is not as it must be.
    """
    saved, step = _raw_config(path)
    if window is not None:
        saved = {**saved, "summary_window_frames": window}
    try:
        return parse_config(saved, step, rope_table_len=rope_table_len)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(path.name, str(error)) from error


def parse_config(
    saved: Mapping[str, Any], step: int | None, *, rope_table_len: int = 4096
) -> CheckpointConfig:
    """Check a config's keys and values; ValueError says which one is wrong and what is allowed."""
    found = saved.get("format")
    if found != FORMAT:
        raise ValueError(f"config format={found!r}; this server reads {FORMAT!r}")
    missing = [key for key in REQUIRED if key not in saved]
    if missing:
        raise ValueError(f"config lacks {missing[0]!r}" + (f" (also {missing[1:]})" if missing[1:] else ""))
    full = {**OPTIONAL, **saved}
    timesteps = _timesteps(full["timesteps"])
    if full["cache_mode"] not in CACHE_MODES:
        raise ValueError(f"cache_mode={full['cache_mode']!r} must be one of {CACHE_MODES}")
    for key in ("focus_region", "jump_sprint", "grid_embedding", "yaw"):
        if not isinstance(full[key], bool):
            raise ValueError(f"{key}={full[key]!r} must be true or false")
    shift = _number(full, "timestep_shift")
    rebuilt = timestep_grid(len(timesteps), shift)
    if rebuilt != timesteps:
        raise ValueError(f"timesteps={list(timesteps)} but timestep_shift={shift:g} gives {list(rebuilt)}")
    model = SummaryformerConfig(
        **{
            key: _integer(full, key, least=1)
            for key in ("dim", "ffn_dim", "num_heads", "num_layers", "latent_channels")
        },
        **{
            key: _integer(full, key)
            for key in ("summary_tokens", "raw_window_frames", "summary_window_frames", "cond_dim")
        },
        sink_gap_max=_integer(full, "sink_gap_max"),
        latent_hw=_grid(full["latent_hw"]),
        focus_region=full["focus_region"],
        grid_embedding=full["grid_embedding"],
        rope_spatial_base=_number(full, "rope_spatial_base"),
        rope_table_len=rope_table_len,
    )
    if full["autoencoder"] is not None and not isinstance(full["autoencoder"], Mapping):
        raise ValueError(f"autoencoder={full['autoencoder']!r} must be null or hold file and sha256")
    _ = model.memory, model.rope  # both refuse a geometry that cannot work
    return CheckpointConfig(
        model=model,
        timesteps=timesteps,
        timestep_shift=shift,
        schedule=Schedule(name=str(full["noise_schedule"]), ratio=_number(full, "shifted_cosine_ratio")),
        cache_mode=full["cache_mode"],
        recency=parse_recency(full["recency"], model.summary_window_frames),
        profile=str(full["profile"]),
        jump_sprint=full["jump_sprint"],
        yaw=full["yaw"],
        encode_fps=_integer(full, "encode_fps", least=1),
        step=step,
        saved=full,
    )


def parse_recency(value: Any, window: int) -> Recency | None:
    """A recency bias from its JSON form; `decay_end` null means W + 1. ValueError when it does not fit."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"flat_until", "decay_end", "beta", "gamma"}:
        raise ValueError(f"recency={value!r} must be null or hold flat_until, decay_end, beta and gamma")
    end = window + 1 if value["decay_end"] is None else int(value["decay_end"])
    if end > window + 1:
        raise ValueError(f"recency decay_end={end} must be at most W + 1 = {window + 1}")
    return Recency(
        flat_until=int(value["flat_until"]),
        decay_end=end,
        beta=float(value["beta"]),
        gamma=float(value["gamma"]),
    )


def load_weights(path: Path, model: Summaryformer) -> bool:
    """Copy a checkpoint's weights into `model` in place; whether a focus region means anything to it.

    A file without the focus embedding is the identical model with that embedding at zero.

    Raises:
        CheckpointError: a key is missing, unexpected or of another shape.
    """
    tensors = {_plain_key(key): value for key, value in _tensors(path).items()}
    own = model.state_dict()
    unexpected = sorted(set(tensors) - set(own))
    missing = sorted(set(own) - set(tensors) - {FOCUS_KEY})
    if unexpected or missing:
        raise CheckpointError(
            path.name, f"weights do not fit: missing {missing[:5]}, unexpected {unexpected[:5]}"
        )
    _copy(path, own, tensors)
    if FOCUS_KEY in own and FOCUS_KEY not in tensors:
        with torch.no_grad():
            model.z0_focus_region_embed.zero_()
    return FOCUS_KEY in tensors


def save_checkpoint(
    path: Path,
    model: Summaryformer,
    *,
    timesteps: Sequence[int],
    timestep_shift: float,
    cache_mode: str,
    profile: str,
    jump_sprint: bool,
    step: int | None,
    yaw: bool = True,
    autoencoder: Path | None = None,
    schedule: Schedule | None = None,
    recency: Recency | None = None,
    encode_fps: int = 12,
    license: str | None = None,
    trained_on: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a checkpoint, weights in `dtype`, config in the metadata. The file appears whole or not at all."""
    law = schedule or Schedule()
    facts = model.config.to_dict()
    del facts["rope_table_len"]
    config = {
        "format": FORMAT,
        "timesteps": list(timesteps),
        "timestep_shift": timestep_shift,
        "noise_schedule": law.name,
        "shifted_cosine_ratio": law.ratio,
        "cache_mode": cache_mode,
        "recency": None if recency is None else {
            "flat_until": recency.flat_until, "decay_end": recency.decay_end,
            "beta": recency.beta, "gamma": recency.gamma,
        },
        "profile": profile,
        "jump_sprint": jump_sprint,
        "yaw": yaw,
        "encode_fps": encode_fps,
        "autoencoder": None if autoencoder is None else {"file": autoencoder.name, "sha256": file_hash(autoencoder)},
        "license": license,
        "trained_on": trained_on,
        **facts,
    }  # fmt: skip
    # One key: safetensors writes several in any order, and equal checkpoints would get different hashes.
    metadata = {"config": json.dumps({**config, "step": step})}
    _write(
        path,
        {key: value.detach().to(dtype).contiguous() for key, value in model.state_dict().items()},
        metadata,
    )


def save_autoencoder(path: Path, model: Autoencoder, stats: LatentStats, facts: Mapping[str, Any]) -> None:
    """Write an autoencoder and its latent statistics, weights in bfloat16, statistics in float32."""
    tensors = {
        key: value.detach().to(torch.bfloat16).contiguous() for key, value in model.state_dict().items()
    }
    for name in ("first_mean", "first_std", "rest_mean", "rest_std"):
        tensors[f"stats.{name}"] = getattr(stats, name).float().contiguous().clone()
    _write(path, tensors, {"config": json.dumps({"model": model.config.to_dict(), **facts})})


def load_autoencoder(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Autoencoder, LatentStats]:
    """An autoencoder in evaluation mode and its statistics.

    Raises:
        CheckpointError: names the first key that does not fit.
    """
    config = _metadata(path).get("config")
    if config is None:
        raise CheckpointError(path.name, "metadata lacks 'config': this is not an autoencoder file")
    try:
        sizes = json.loads(config)["model"]
        model = Autoencoder(AutoencoderConfig(**{**sizes, "latent_hw": tuple(sizes["latent_hw"])}))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(path.name, f"autoencoder config is not readable: {error}") from error
    tensors = _tensors(path)
    names = ("first_mean", "first_std", "rest_mean", "rest_std")
    absent = [f"stats.{name}" for name in names if f"stats.{name}" not in tensors]
    if absent:
        raise CheckpointError(path.name, f"lacks {absent[0]!r}")
    shape = (model.config.channels,)
    for name in names:
        found = tuple(tensors[f"stats.{name}"].shape)
        if found != shape:
            raise CheckpointError(path.name, f"'stats.{name}' is {found}, {shape} is needed")
    stats = LatentStats(**{name: tensors.pop(f"stats.{name}").float() for name in names})
    own = model.state_dict()
    odd = sorted(set(own) ^ set(tensors))
    if odd:
        raise CheckpointError(path.name, f"autoencoder key {odd[0]!r} does not fit")
    _copy(path, own, tensors)
    return model.to(dtype).eval().requires_grad_(False), stats


def file_hash(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _timesteps(value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list | tuple) and all(type(t) is int for t in value)
    if not whole or not value or any(a <= b for a, b in itertools.pairwise(value)):
        raise ValueError(f"timesteps={value!r} must be a non-empty list of integers, high to low")
    return tuple(value)


def _integer(config: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key}={value!r} must be an integer, at least {least}")
    return value


def _number(config: Mapping[str, Any], key: str) -> float:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}={value!r} must be a number")
    return float(value)


def _grid(value: Any) -> tuple[int, int]:
    whole = (
        isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)
    )
    if not whole:
        raise ValueError(f"latent_hw={value!r} must be two integers above 0, rows and columns")
    return value[0], value[1]


def _plain_key(key: str) -> str:
    for prefix in ("module.", "model."):
        key = key.removeprefix(prefix)
    return key


def _raw_config(path: Path) -> tuple[dict[str, Any], int | None]:
    if path.suffix == ".pt":
        whole = _read_pt(path)
        config = {**whole["config"], "step": whole.get("step")}
    else:
        config = _json_config(path)
    step = config.pop("step", None)
    return config, int(step) if isinstance(step, int | float) else None


def _json_config(path: Path) -> dict[str, Any]:
    metadata = _metadata(path)
    if "config" not in metadata:
        raise CheckpointError(path.name, "metadata lacks 'config': this is not a checkpoint")
    try:
        config = json.loads(metadata["config"])
    except json.JSONDecodeError as error:
        raise CheckpointError(path.name, f"config is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(path.name, "config must be a JSON object")
    return config


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path.name, f"not a readable safetensors file: {error}") from error


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".pt":
        return dict(_read_pt(path)["model"])
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- not a dict
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path.name, f"not a readable safetensors file: {error}") from error


def _read_pt(path: Path) -> dict[str, Any]:
    try:
        whole = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(path.name, f"not a weights-only torch file: {type(error).__name__}") from error
    if not (
        isinstance(whole, dict)
        and isinstance(whole.get("config"), dict)
        and isinstance(whole.get("model"), dict)
    ):
        raise CheckpointError(path.name, "must hold {'model', 'config', 'step'}")
    return whole


def _copy(path: Path, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for key, value in tensors.items():
        if own[key].shape != value.shape:
            raise CheckpointError(
                path.name, f"{key!r} is {tuple(value.shape)}, {tuple(own[key].shape)} is needed"
            )
    with torch.no_grad():
        for key, value in tensors.items():
            own[key].copy_(value)


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    fresh = path.with_name(path.name + ".new")
    save_file(tensors, fresh, metadata=metadata)
    fresh.replace(path)


def parameter_count(model: nn.Module) -> int:
    """Number of weights."""
    return sum(p.numel() for p in model.parameters())
