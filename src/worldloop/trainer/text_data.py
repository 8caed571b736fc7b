"""Batches with captions for the models that read text: pictures for one kind, walks for the other.

Owns the choice of worlds for training and for validation, the wording of captions, and prompts. Called by `text_run`
and the command line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from torch import Tensor

from worldloop.core.errors import InvalidInputError
from worldloop.models.autoencoder import Autoencoder, LatentStats
from worldloop.simulators.captions import rephrase, walk
from worldloop.simulators.meadow import VIEW
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


def meadow_prompts(count: int, *, seed: int, walks: bool) -> list[str]:
    """What pictures of the meadow are told by, and with `walks` which way the walker goes."""
    rng = np.random.default_rng(seed)
    places = scenes(count, VIEW, rng, first_world=seed, worlds=STILL_WORLDS).phrases()
    ways = [walk([int(direction)] * 2) for direction in rng.integers(1, 5, count)]
    return [", ".join([*place, way] if walks else place) for place, way in zip(places, ways, strict=True)]


def read_prompts(path: Path) -> list[str]:
    """The prompts of a text file, one a line; empty lines are passed over. InvalidInputError when it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path.name} cannot be read: text in UTF-8 is needed, one prompt a line"
        ) from error
    return [line.strip() for line in lines if line.strip()]


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
