"""Weight files as they are, whatever they mean. Never runs code from a file.

Owns reading and writing safetensors with a JSON config in the metadata, and reading torch files with weights_only=True.
Does not own what a config must hold or which weights belong together (`weights`, `causal_weights`). A refusal is a
`CheckpointError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.core.files import replacing


def metadata(path: Path) -> dict[str, str]:
    """Metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path.name, f"not a readable safetensors file: {error}") from error


def json_config(path: Path, kind: str) -> dict[str, Any]:
    """The object under "config" in the metadata of a safetensors file, which is `kind`, such as `a checkpoint`."""
    found = metadata(path)
    if "config" not in found:
        raise CheckpointError(path.name, f"metadata lacks 'config': this is not {kind}")
    try:
        config = json.loads(found["config"])
    except json.JSONDecodeError as error:
        raise CheckpointError(path.name, f"config is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(path.name, "config must be a JSON object")
    return config


def tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, by its name there."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- not a dict
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path.name, f"not a readable safetensors file: {error}") from error


def save(path: Path, weights: dict[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write a safetensors file with its config; it appears whole or not at all."""
    # One key: safetensors writes several in any order, and equal checkpoints would get different hashes.
    with replacing(path) as fresh:
        save_file(weights, fresh, metadata={"config": json.dumps(config)})


def torch_file(path: Path) -> Any:
    """Whatever a torch file holds, its tensors still in the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(path.name, f"not a weights-only torch file: {type(error).__name__}") from error
