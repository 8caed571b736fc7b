"""Walks of somebody who goes somewhere, and the words for where he goes: what a text-to-video model learns from.

Shapes: B clips, T latent frames, C channels, h x w cells.

Owns the stroller's choices and the captions of clips. Does not own the encoding of walks (`datasets`). Called by
`text_run`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldloop.models.autoencoder import Autoencoder, LatentStats
from worldloop.simulators import captions
from worldloop.simulators.meadow import VIEW, WALKER_CELL, VectorMeadow
from worldloop.simulators.patches import OFFSETS
from worldloop.simulators.tiles import SOLID
from worldloop.simulators.walker import FACINGS
from worldloop.trainer.datasets import LatentWalks, Walks
from worldloop.trainer.rollouts import ACTIONS
from worldloop.trainer.stills import Scenes, StillCodes

_IDLE: Final = 0.1
"""Share of decisions that stand still."""
_STUBBORN: Final = 0.3
"""Share of decisions that are kept before something solid: he stays where he is, and walks against it."""
_LENGTHS: Final = (4, 20)
"""Steps that a direction is kept, the last one excluded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strolls:
    """Walks and what is known of them.

    Attributes:
        walks: as rows of the patch table, `[E, S + 1]`.
        windows: int8 `[E, S + 1, rows, columns]`, tile kinds in view after each step.
        ways: int64 `[E, S + 1]`, which way each wanted to go; 0 for none, and for step 0.
    """

    walks: Walks
    windows: NDArray[np.int8]
    ways: NDArray[np.int64]


class Strollers:
    """N people who keep a direction for a while. Before what they cannot walk on, most turn and some stop.

    Args:
        count: N.
        rng: source of their choices.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._ways = np.zeros(count, np.int64)
        self._left = np.zeros(count, np.int64)
        self._stubborn = np.zeros(count, np.bool_)

    def ways(self, free: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The direction each walks in now, int64 `[N]`, given the free ones `[N, 5]`; 0 stands still."""
        ahead = free[np.arange(len(free)), self._ways]
        done = (self._left == 0) | (~ahead & ~self._stubborn)
        for walker in np.flatnonzero(done):
            self._ways[walker] = self._choose(free[walker], int(self._ways[walker]))
            self._left[walker] = self._rng.integers(*_LENGTHS)
            self._stubborn[walker] = self._rng.random() < _STUBBORN
        self._left -= 1
        return self._ways.copy()

    def _choose(self, free: NDArray[np.bool_], now: int) -> int:
        others = [way for way in range(1, 5) if free[way] and way != now]
        if not others or self._rng.random() < _IDLE:
            return 0
        return int(self._rng.choice(others))


def record_strolls(seeds: range, steps: int, *, seed: int) -> Strolls:
    """One walk of `steps` steps in each world of `seeds`; `seed` draws the strollers' choices."""
    worlds, strollers = VectorMeadow(seeds), Strollers(len(seeds), np.random.default_rng(seed))
    patches = np.empty((len(seeds), steps + 1, *VIEW), np.int32)
    windows = np.empty((len(seeds), steps + 1, *VIEW), np.int8)
    actions = np.zeros((len(seeds), steps + 1, 5), np.float32)
    wanted = np.zeros((len(seeds), steps + 1), np.int64)
    patches[:, 0], windows[:, 0] = worlds.reset_indices(), worlds.windows()
    ahead = OFFSETS + np.array(WALKER_CELL)
    for step in range(1, steps + 1):
        free = ~SOLID[windows[:, step - 1][:, ahead[:, 0], ahead[:, 1]]]
        wanted[:, step] = strollers.ways(free)
        actions[:, step] = ACTIONS[wanted[:, step]]
        patches[:, step] = worlds.step_indices(actions[:, step])
        windows[:, step] = worlds.windows()
    return Strolls(walks=Walks(patches=patches, actions=actions), windows=windows, ways=wanted)


class StrollClips:
    """Strolls as gaussianised latents with captions.

    A clip begins as a video does: with a picture at rest, whose walker faces any way. If he faced where he goes, and
    were caught in mid-stride, a model would read the way from him and not from the words.

    Args:
        strolls: what to encode.
        autoencoder, stats: of one file.
    """

    def __init__(self, strolls: Strolls, autoencoder: Autoencoder, stats: LatentStats) -> None:
        self._strolls = strolls
        self._latents = LatentWalks(strolls.walks, autoencoder, stats)
        self._stills = StillCodes(autoencoder, stats)

    def clips(self, batch: int, frames: int, rng: np.random.Generator) -> tuple[Tensor, list[list[str]]]:
        """Random clips, float32 `[B, T, C, h, w]`, and the phrases of each: what is in view at first, and the way
        that he wants to go.
        """
        count, steps = self._strolls.ways.shape
        episodes = rng.integers(0, count, batch)
        starts = rng.integers(0, steps - frames + 1, batch)
        facings = rng.integers(0, len(FACINGS), batch)
        views = Scenes(windows=self._strolls.windows[episodes, starts], facings=facings)
        bodies, told = [], []
        for scene, episode, start in zip(views.phrases(), episodes.tolist(), starts.tolist(), strict=True):
            last = start + frames - 1
            bodies.append(self._latents.body(episode, start + 1, last))
            ways = self._strolls.ways[episode, start + 1 : last + 1]
            told.append([*scene, captions.walk(ways.tolist(), least=1)])
        cells = torch.from_numpy(np.stack(bodies)).transpose(2, 3).unflatten(3, VIEW)
        return torch.cat((self._stills.latents(views)[:, None], cells), dim=1), told
