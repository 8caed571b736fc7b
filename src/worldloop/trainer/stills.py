"""Pictures of the meadow with their captions, as latents of single frames: what a text-to-picture model learns from.

Shapes: B pictures, h x w cells, C channels.

A picture at rest shows one of a few dozen patches in each cell, so all of them are encoded once and a picture is a
table look-up: no picture is ever seen twice. Owns the choice of places. Called by `text_run` and `text_evaluate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldloop.models.autoencoder import Autoencoder, LatentStats
from worldloop.simulators import captions, terrain
from worldloop.simulators.patches import walker_index
from worldloop.simulators.tiles import KINDS, SOLID
from worldloop.simulators.walker import FACINGS
from worldloop.trainer.datasets import encode_stills

_CANDIDATES: Final = 6
"""Places that are looked at for each picture."""
_FAR: Final = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenes:
    """Windows of tile kinds, int8 `[B, h, w]`, with a walker in the middle cell who faces one of "nswe", `[B]`."""

    windows: NDArray[np.int8]
    facings: NDArray[np.int64]

    @property
    def walker(self) -> tuple[int, int]:
        """Row and column of the walker."""
        return self.windows.shape[1] // 2, self.windows.shape[2] // 2

    def phrases(self) -> list[list[str]]:
        """What is to be told of each."""
        return [captions.phrases(window, self.walker) for window in self.windows]


def scenes(
    count: int,
    hw: tuple[int, int],
    rng: np.random.Generator,
    *,
    first_world: int,
    worlds: int,
    varied: float = 0.5,
) -> Scenes:
    """Places where a walker can stand, `count` of them.

    Args:
        count: B.
        hw: rows and columns.
        rng: source of worlds and places.
        first_world, worlds: seeds of the worlds to choose from.
        varied: share of the pictures that show the most kinds among several places; the others show the first.
    """
    shape = (count, _CANDIDATES)
    seeds = rng.integers(first_world, first_world + worlds, shape)
    tops, lefts = (rng.integers(-_FAR, _FAR, shape) for _ in range(2))
    views = terrain.windows(seeds.ravel(), tops.ravel(), lefts.ravel(), hw).reshape(*shape, *hw)
    free = ~SOLID[views[:, :, hw[0] // 2, hw[1] // 2]]
    kinds = (views[..., None] == np.arange(len(KINDS))).any((2, 3)).sum(-1)
    rank = np.where((rng.random(count) < varied)[:, None], kinds, 0) + 100 * free
    windows = views[np.arange(count), rank.argmax(1)]
    middle = windows[:, hw[0] // 2, hw[1] // 2]
    middle[SOLID[middle]] = KINDS.index("grass")  # none of the places was free
    windows[:, hw[0] // 2, hw[1] // 2] = middle
    return Scenes(windows=windows, facings=rng.integers(0, len(FACINGS), count))


class StillCodes:
    """The gaussianised latent of every patch at rest.

    Args:
        autoencoder, stats: of one file.
    """

    def __init__(self, autoencoder: Autoencoder, stats: LatentStats) -> None:
        ground = np.arange(len(KINDS), dtype=np.int64)
        still = np.zeros(len(KINDS), np.bool_)
        rows = [ground] + [
            walker_index(ground.astype(np.int32), np.full(len(KINDS), facing, np.int8), still).astype(
                np.int64
            )
            for facing in range(len(FACINGS))
        ]
        codes = encode_stills(autoencoder, np.concatenate(rows))
        self._codes = stats.gaussianise(codes, first=True)

    def latents(self, scenes: Scenes) -> Tensor:
        """Latents of scenes, float32 `[B, C, h, w]`."""
        index = scenes.windows.astype(np.int64)
        y, x = scenes.walker
        index[:, y, x] += len(KINDS) * (1 + scenes.facings)
        return self._codes[torch.from_numpy(index)].permute(0, 3, 1, 2).contiguous()
