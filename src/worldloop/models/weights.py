"""Weight files: reading, writing, and refusing by name. Never runs code from a file.

    checkpoint   safetensors, config as JSON in the metadata under "config"; or the published layout
                 {"model", "config", "step"} in a .pt, read with weights_only=True
    autoencoder  safetensors with keys enc.*, dec.* and stats.*, config in the metadata

Owns the two formats, and putting weights into a network. Does not own what a config must hold (`config`), file names
and folders (`registry`). A refusal is a `CheckpointError` with the file, the fact, what was found and what is allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldloop.core.errors import CheckpointError
from worldloop.core.files import file_hash
from worldloop.models import stored
from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig, LatentStats
from worldloop.models.config import FORMAT, CheckpointConfig, ConfigError, parse_config
from worldloop.models.memory import Recency
from worldloop.models.sampling import Schedule
from worldloop.models.summaryformer import Summaryformer

FOCUS_KEY = "z0_focus_region_embed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Every tensor of one network, read and checked.

    Attributes:
        tensors: by the network's key, in memory; a focus embedding that the file lacks is zeros.
        focus: whether the file has one.
    """

    tensors: dict[str, Tensor]
    focus: bool


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
    try:
        return parse_config(saved, step, rope_table_len=rope_table_len, window=window)
    except ConfigError as error:
        raise CheckpointError(
            path.name, str(error), key=error.key, found=error.found, allowed=error.allowed
        ) from error


def read_weights(path: Path, network: Summaryformer) -> Weights:
    """A checkpoint's weights for `network`, read to the end of the file; the network is not touched.

    A file without the focus embedding is the identical model with that embedding at zero.

    Raises:
        CheckpointError: a key is missing or unexpected, or a tensor is of another shape, not of floating point, or not
            finite.
    """
    named = _tensors(path)
    found = {_plain_key(key): value for key, value in named.items()}
    own = network.state_dict()
    unexpected = sorted(set(found) - set(own))
    missing = sorted(set(own) - set(found) - {FOCUS_KEY})
    if unexpected or missing:
        raise CheckpointError(
            path.name, f"weights do not fit: missing {missing[:5]}, unexpected {unexpected[:5]}"
        )
    if len(found) < len(named):
        raise CheckpointError(
            path.name, "weights do not fit: a key is there twice, with and without a prefix"
        )
    tensors = {key: _checked(path, key, found[key], own[key]) for key in own if key in found}
    if FOCUS_KEY in own and FOCUS_KEY not in found:
        tensors[FOCUS_KEY] = torch.zeros_like(own[FOCUS_KEY])
    return Weights(tensors=tensors, focus=FOCUS_KEY in found)


def load_weights(path: Path, network: Summaryformer) -> bool:
    """Copy a checkpoint's weights into `network`; whether the file has a focus embedding. Errors as `read_weights`."""
    weights = read_weights(path, network)
    for key, value in network.state_dict().items():
        _put(value, weights.tensors[key])
    return weights.focus


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
    weights = {key: value.detach().to(dtype).contiguous() for key, value in model.state_dict().items()}
    stored.save(path, weights, {**config, "step": step})


def save_autoencoder(path: Path, model: Autoencoder, stats: LatentStats, facts: Mapping[str, Any]) -> None:
    """Write an autoencoder and its latent statistics, weights in bfloat16, statistics in float32."""
    tensors = {
        key: value.detach().to(torch.bfloat16).contiguous() for key, value in model.state_dict().items()
    }
    for name in ("first_mean", "first_std", "rest_mean", "rest_std"):
        tensors[f"stats.{name}"] = getattr(stats, name).float().contiguous().clone()
    stored.save(path, tensors, {"model": model.config.to_dict(), **facts})


def load_autoencoder(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Autoencoder, LatentStats]:
    """An autoencoder in evaluation mode and its statistics.

    Raises:
        CheckpointError: names the first key that does not fit.
    """
    config = stored.metadata(path).get("config")
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
    like = torch.zeros(model.config.channels)
    found = {key: _checked(path, f"stats.{key}", tensors.pop(f"stats.{key}"), like) for key in names}
    stats = LatentStats(**{name: value.float() for name, value in found.items()})
    if (stats.first_std <= 0).any() or (stats.rest_std <= 0).any():
        raise CheckpointError(
            path.name, "a deviation in 'stats.first_std' or 'stats.rest_std' is not above 0"
        )
    own = model.state_dict()
    odd = sorted(set(own) ^ set(tensors))
    if odd:
        raise CheckpointError(path.name, f"autoencoder key {odd[0]!r} does not fit")
    for key, value in own.items():
        _put(value, _checked(path, key, tensors[key], value))
    return model.to(dtype).eval().requires_grad_(False), stats


def _plain_key(key: str) -> str:
    for prefix in ("module.", "model."):
        key = key.removeprefix(prefix)
    return key


def _raw_config(path: Path) -> tuple[dict[str, Any], int | None]:
    if path.suffix == ".pt":
        whole = _read_pt(path)
        config = {**whole["config"], "step": whole.get("step")}
    else:
        config = stored.json_config(path, "a checkpoint")
    step = config.pop("step", None)
    return config, int(step) if isinstance(step, int | float) and math.isfinite(step) else None


def _tensors(path: Path) -> dict[str, Tensor]:
    return dict(_read_pt(path)["model"]) if path.suffix == ".pt" else stored.tensors(path)


def _read_pt(path: Path) -> dict[str, Any]:
    whole = stored.torch_file(path)
    if not (
        isinstance(whole, dict)
        and isinstance(whole.get("config"), dict)
        and isinstance(whole.get("model"), dict)
    ):
        raise CheckpointError(path.name, "must hold {'model', 'config', 'step'}")
    if not all(isinstance(key, str) for part in ("config", "model") for key in whole[part]):
        raise CheckpointError(path.name, "every key of 'model' and 'config' must be text")
    return whole


def _checked(path: Path, key: str, value: Any, own: Tensor) -> Tensor:
    """A copy of `value` in memory, so that what was checked is what is used whatever happens to the file."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise CheckpointError(
            path.name, f"{key!r} is {kind}, numbers of floating point are needed", key=key, found=str(kind),
            allowed="a dense tensor of floating point",
        )  # fmt: skip
    if value.shape != own.shape:
        found, needed = tuple(value.shape), tuple(own.shape)
        raise CheckpointError(
            path.name, f"{key!r} is {found}, {needed} is needed", key=key, found=found, allowed=str(needed)
        )
    whole = value.to(torch.float32, copy=True) if value.dtype == torch.float64 else value.clone()
    if not whole.isfinite().all():
        raise CheckpointError(
            path.name, f"{key!r} holds numbers that are not finite", key=key, found="nan or inf",
            allowed="finite numbers",
        )  # fmt: skip
    return whole


def _put(own: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        own.copy_(value)


def parameter_count(model: nn.Module) -> int:
    """Number of weights."""
    return sum(p.numel() for p in model.parameters())
