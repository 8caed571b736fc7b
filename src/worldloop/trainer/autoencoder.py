"""Training of the autoencoder: principal components first, then the small non-linear parts on top.

Owns the loss and the start values. Called by `run`. The decoder is trained on latents with noise in them, because the
latents of a dream are never exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worldloop.models.autoencoder import RGB_STD, Autoencoder, AutoencoderConfig, normalise
from worldloop.simulators.patches import render
from worldloop.trainer.datasets import Walks, patch_values


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoencoderRecipe:
    """How the autoencoder is trained.

    Attributes:
        steps: of the optimiser.
        batch: pairs of successive latent frames a step.
        rate: learning rate of the non-linear parts; the linear ones get a tenth.
        noise: largest deviation of the noise on latents, in units of the latents' own.
    """

    steps: int = 1500
    batch: int = 12
    rate: float = 1.5e-3
    noise: float = 0.25


def initial_autoencoder(config: AutoencoderConfig, walks: Walks) -> Autoencoder:
    """An autoencoder whose linear paths are the principal components of the walks' patches."""
    rows, counts = np.unique(walks.patches[:, ::4], return_counts=True)
    weights = torch.from_numpy(np.sqrt(counts) / np.sqrt(counts).sum()).float()[:, None]
    return principal_autoencoder(config, patch_values(rows.astype(np.int64)).flatten(1), weights)


def principal_autoencoder(config: AutoencoderConfig, values: Tensor, weights: Tensor) -> Autoencoder:
    """An autoencoder whose linear paths are the principal components of patches.

    Args:
        config: sizes.
        values: normalised patches of 4 frames, float32 `[K, 4 * 768]`.
        weights: what each patch counts, float32 `[K, 1]`, of sum 1.
    """
    model = Autoencoder(config)
    mean = (values * weights).sum(0)
    centred = values - mean
    _, vectors = torch.linalg.eigh(centred.T @ (centred * weights))
    basis = vectors.flip(1)[:, : config.channels].T.contiguous()
    with torch.no_grad():
        model.enc.linear.weight.zero_()
        model.enc.linear.weight[:, -basis.shape[1] :] = basis
        model.enc.linear.bias.copy_(-(basis @ mean))
        model.dec.linear.weight.copy_(basis.T)
        model.dec.linear.bias.copy_(mean)
    return model


def optimiser(model: Autoencoder, recipe: AutoencoderRecipe) -> torch.optim.Optimizer:
    """AdamW; the linear paths start almost right and move slowly."""
    slow = {id(p) for module in (model.enc.linear, model.dec.linear) for p in module.parameters()}
    return torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if id(p) not in slow], "scale": 1.0},
            {"params": [p for p in model.parameters() if id(p) in slow], "scale": 0.1},
        ],
        lr=recipe.rate,
        betas=(0.9, 0.98),
        weight_decay=1e-4,
    )


def batches(walks: Walks, recipe: AutoencoderRecipe, rng: np.random.Generator) -> Iterator[Tensor]:
    """Clips of one frame and two groups, uint8 `[B, 9, H, W, 3]`, without end."""
    while True:
        episodes = rng.integers(len(walks), size=recipe.batch)
        steps = rng.integers(1, walks.patches.shape[1] - 1, size=recipe.batch)
        groups = [render(walks.patches[episodes, steps + offset]) for offset in (-1, 0, 1)]
        yield torch.from_numpy(np.concatenate((groups[0][:, -1:], groups[1], groups[2]), axis=1))


def loss(model: Autoencoder, clip: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Mean squared error of all frames, decoded from latents with noise in them."""
    target = normalise(clip)
    latents = model.encode(target)
    scale = latents.detach().float().std(dim=(0, 1, 2))
    amount = noise * torch.rand(len(clip), 1, 1, 1, generator=generator)
    latents = latents + amount * scale * torch.randn(latents.shape, generator=generator)
    decoded = model.decode(latents)
    return (decoded - target).square().mean()


@torch.no_grad()
def psnr(model: Autoencoder, clip: Tensor) -> float:
    """Peak signal to noise ratio of decoded bytes, dB, over a clip uint8 `[B, F, H, W, 3]`."""
    target = normalise(clip)
    error = (model.decode(model.encode(target)) - target) * torch.tensor(RGB_STD)
    return float(-10 * torch.log10(error.square().mean()))
