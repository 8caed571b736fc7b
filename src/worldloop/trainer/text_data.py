"""Batches with captions for the models that read text: pictures for one kind, walks for the other.

Owns the choice of worlds for training and for validation, and the wording of captions. Called by `text_run`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

import numpy as np
from torch import Tensor

from worldloop.models.autoencoder import Autoencoder, LatentStats
from worldloop.simulators.captions import rephrase
from worldloop.trainer.stills import StillCodes, scenes
from worldloop.trainer.strolls import StrollClips, record_strolls
from worldloop.trainer.text_recipes import TextRecipe

HELD_OUT: Final = 10_000_000
"""Seeds from the first training world to the first held-out one."""
STILL_WORLDS: Final = 100_000
"""Worlds that the pictures of a video model are from."""


class TextData(Protocol):
    """What a run asks of its data."""

    def batch(self, rng: np.random.Generator) -> tuple[Tensor, list[str]]:
        """Latents to learn from, and their captions in many wordings."""

    def check(self) -> tuple[Tensor, list[str]]:
        """Held-out latents and their plain captions, always the same."""


def text_data(recipe: TextRecipe, autoencoder: Autoencoder, stats: LatentStats) -> TextData:
    """The data of a recipe."""
    kind = StillData if recipe.kind == "picture" else StrollData
    return kind(recipe, autoencoder, stats)


class StillData:
    """Pictures on several grids; a batch has one grid, and about as many cells whatever the grid."""

    def __init__(self, recipe: TextRecipe, autoencoder: Autoencoder, stats: LatentStats) -> None:
        self._recipe = recipe
        self._codes = StillCodes(autoencoder, stats)

    def batch(self, rng: np.random.Generator) -> tuple[Tensor, list[str]]:
        recipe = self._recipe
        grid = recipe.grids[int(rng.choice(len(recipe.grids), p=recipe.shares))]
        latents, told = self._draw(rng, grid, recipe.seed, recipe.worlds)
        return latents, [rephrase(each, rng) for each in told]

    def check(self) -> tuple[Tensor, list[str]]:
        recipe = self._recipe
        rng = np.random.default_rng(0)
        latents, told = self._draw(rng, recipe.grids[0], recipe.seed + HELD_OUT, recipe.held_out)
        return latents, [", ".join(each) for each in told]

    def _draw(
        self, rng: np.random.Generator, grid: tuple[int, int], first_world: int, worlds: int
    ) -> tuple[Tensor, list[list[str]]]:
        rows, columns = self._recipe.grids[0]
        count = max(1, self._recipe.flow.batch * rows * columns // (grid[0] * grid[1]))
        views = scenes(count, grid, rng, first_world=first_world, worlds=worlds)
        return self._codes.latents(views), views.phrases()


class StrollData:
    """Clips of walks through simulated worlds, and now and then pictures instead."""

    def __init__(self, recipe: TextRecipe, autoencoder: Autoencoder, stats: LatentStats) -> None:
        self._recipe = recipe
        pictures = recipe.flow.batch * recipe.flow.frames
        stills = replace(
            recipe, kind="picture", worlds=STILL_WORLDS, flow=replace(recipe.flow, batch=pictures)
        )
        self._stills = StillData(stills, autoencoder, stats)
        seed = recipe.seed
        self._clips, self._held_out = (
            StrollClips(
                record_strolls(range(first, first + count), recipe.walk, seed=first), autoencoder, stats
            )
            for first, count in ((seed, recipe.worlds), (seed + HELD_OUT, recipe.held_out))
        )

    def batch(self, rng: np.random.Generator) -> tuple[Tensor, list[str]]:
        if rng.random() < self._recipe.stills:
            return self._stills.batch(rng)
        latents, told = self._clips.clips(self._recipe.flow.batch, self._recipe.flow.frames, rng)
        return latents, [rephrase(scene, rng, always=[way]) for *scene, way in told]

    def check(self) -> tuple[Tensor, list[str]]:
        flow = self._recipe.flow
        latents, told = self._held_out.clips(flow.batch, flow.frames, np.random.default_rng(0))
        return latents, [", ".join(each) for each in told]
