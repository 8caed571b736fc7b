"""Checkpoint files of every kind, small and random, and their parts to be spoiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig, LatentStats
from worldloop.models.summaryformer import Summaryformer
from worldloop.models.weights import save_autoencoder, save_checkpoint

from .driving import TINY, random_model

SIZES = AutoencoderConfig(channels=8, latent_hw=(3, 4), encoder_hidden=4, decoder_hidden=4)
WORLD: dict[str, Any] = {
    "timesteps": (999, 878, 669), "timestep_shift": 3.0, "cache_mode": "recache", "profile": "meadow",
    "jump_sprint": False, "step": 7, "dtype": torch.float32,
}  # fmt: skip


def world() -> Summaryformer:
    return random_model(TINY).to_serving(torch.float32)


def write_world(path: Path, model: Summaryformer | None = None, **facts: Any) -> Path:
    save_checkpoint(path, model or world(), **{**WORLD, **facts})
    return path


def parts(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, config) of a safetensors checkpoint."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    return load_file(path), config


def rewrite(path: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """A safetensors or .pt checkpoint of these parts."""
    if path.suffix == ".pt":
        torch.save({"model": tensors, "config": config, "step": 7}, path)
    else:
        save_file(tensors, path, metadata={"config": json.dumps({**config, "step": 7})})
    return path


def config_changed(path: Path, **changes: Any) -> Path:
    """The checkpoint with other facts in its config; `...` drops one."""
    tensors, config = parts(path)
    config = {key: value for key, value in {**config, **changes}.items() if value is not ...}
    return rewrite(path, tensors, config)


def autoencoder() -> tuple[Autoencoder, LatentStats]:
    generator = torch.Generator().manual_seed(3)
    model = Autoencoder(SIZES)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator).bfloat16())
    numbers = torch.rand(4, SIZES.channels, generator=generator) + 0.5
    first_mean, first_std, rest_mean, rest_std = numbers
    return model, LatentStats(
        first_mean=first_mean, first_std=first_std, rest_mean=rest_mean, rest_std=rest_std
    )


def write_autoencoder(path: Path) -> Path:
    save_autoencoder(path, *autoencoder(), {"trained_on": "noise"})
    return path
