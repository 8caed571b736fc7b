"""Where training data comes from: the simulator, or a recording. The seam between data and the two stages.

Owns what a run asks of its data, and the choice. Does not own recordings (`recorded`) or simulated walks
(`datasets`). Called by `run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from worldloop.core.errors import SettingsError
from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig, LatentStats
from worldloop.trainer import autoencoder as autoencoder_stage
from worldloop.trainer.autoencoder import AutoencoderRecipe
from worldloop.trainer.datasets import LatentClips, LatentWalks, Walks, record_walks
from worldloop.trainer.recipes import RECIPES, Recipe
from worldloop.trainer.recorded import RecordedSource, RecordedWalks

HELD_OUT_WORLDS = 1_000_000
"""Seeds from the first training world to the first held-out one."""
FPS_SLACK = 0.1
"""Difference of frame rates that is none, so that 29.97 is 30."""


class Source(Protocol):
    """What a run asks of its data."""

    def initial_autoencoder(self, config: AutoencoderConfig) -> Autoencoder:
        """An autoencoder whose linear paths are the principal components of the data's patches."""

    def batches(self, recipe: AutoencoderRecipe, rng: np.random.Generator) -> Iterator[Tensor]:
        """Clips of one frame and two groups, uint8 `[B, 9, H, W, 3]`, without end."""

    def stats(self, autoencoder: Autoencoder) -> LatentStats:
        """Statistics of the data's latents."""

    def latents(self, autoencoder: Autoencoder, stats: LatentStats | None = None) -> LatentClips:
        """The data as latents, gaussianised with `stats` or with its own."""


class SimulatedSource:
    """Walks through the meadow.

    Args:
        walks: as rows of the patch table.
    """

    def __init__(self, walks: Walks) -> None:
        self.walks = walks

    def initial_autoencoder(self, config: AutoencoderConfig) -> Autoencoder:
        return autoencoder_stage.initial_autoencoder(config, self.walks)

    def batches(self, recipe: AutoencoderRecipe, rng: np.random.Generator) -> Iterator[Tensor]:
        return autoencoder_stage.batches(self.walks, recipe, rng)

    def stats(self, autoencoder: Autoencoder) -> LatentStats:
        return LatentWalks(self.walks, autoencoder).stats

    def latents(self, autoencoder: Autoencoder, stats: LatentStats | None = None) -> LatentClips:
        return LatentWalks(self.walks, autoencoder, stats)


def open_sources(recipe: Recipe) -> tuple[Source, Source]:
    """The data to train on and the held-out data of a recipe.

    Raises:
        SettingsError: no such simulator or folder, or the recording does not fit the recipe.
    """
    data = recipe.data
    if data.simulator == "meadow":
        first = data.seed + HELD_OUT_WORLDS
        return (
            SimulatedSource(
                record_walks(range(data.seed, data.seed + data.episodes), data.steps, seed=data.seed)
            ),
            SimulatedSource(record_walks(range(first, first + data.held_out), data.steps, seed=first)),
        )
    walks = _recording(recipe)
    if not 0 < data.held_out < len(walks):
        raise SettingsError(
            f"data.held_out is {data.held_out}, but the recording has {len(walks)} episodes; "
            "it must be at least 1 and leave some to train on"
        )
    training = min(data.episodes, len(walks) - data.held_out)
    return (
        RecordedSource(walks, range(training), seed=data.seed),
        RecordedSource(walks, range(len(walks) - data.held_out, len(walks)), seed=data.seed, most_clips=256),
    )


def described(recipe: Recipe) -> Recipe:
    """The recipe, with the recording's source and licence in place of defaults that speak of our own simulator."""
    if recipe.data.simulator == "meadow":
        return recipe
    card = _recording(recipe).card
    ours = {_default("trained_on")} | {named.trained_on for named in RECIPES.values()}
    return replace(
        recipe,
        trained_on=f"{card.source} ({card.license})" if recipe.trained_on in ours else recipe.trained_on,
        license=card.license if recipe.license == _default("license") else recipe.license,
    )


def _default(name: str) -> str:
    (value,) = (f.default for f in fields(Recipe) if f.name == name and f.default is not MISSING)
    return str(value)


def _recording(recipe: Recipe) -> RecordedWalks:
    """The recording that a recipe names, after the checks that need only its card."""
    folder = Path(recipe.data.simulator)
    if not folder.is_dir():
        raise SettingsError(
            f"data.simulator is {folder.name!r}: must be 'meadow' or the folder of a recording"
        )
    walks = RecordedWalks(folder)
    card = walks.card
    if card.picture != recipe.encoder.picture_hw:
        rows, columns = card.picture[0] // 16, card.picture[1] // 16
        raise SettingsError(
            f"the recording's pictures are {list(card.picture)} (height, width), the recipe's "
            f"{list(recipe.encoder.picture_hw)}; set latent_hw of encoder and model to [{rows}, {columns}]"
        )
    if max(abs(card.fps - recipe.encode_fps), abs(card.fps - recipe.world.fps)) > FPS_SLACK:
        raise SettingsError(
            f"the recording has {card.fps:g} frames a second; encode_fps is {recipe.encode_fps} and world.fps is "
            f"{recipe.world.fps:g}; all three must be the same"
        )
    return walks
