"""Does the walker do what the keys say: walk, stop at solid tiles, stand still, turn.

Shapes: T latents of one walk.

The expectation comes from the walk's own previous picture, so a dream is held to the world that it dreamt. Owns the
judgement of every latent and its counting. Called by `evaluate`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.measure import LEGAL_RMSE, motion, tile_kinds, walker_facing
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.rollouts import CLEAR_MARGIN, Rollout, ahead

UNKNOWN: Final = -1
_CHUNK: Final = 64
_AHEAD: Final = np.array([ahead(direction) for direction in range(5)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """What was asked of, and done by, the walker in each latent.

    Attributes:
        latent: int64 `[T]`, number of the latent, from 1.
        held: int64 `[T]`, direction of the key.
        expected: int64 `[T]`, the motion that is due: the key's direction, none without a key or before a solid tile,
            or `UNKNOWN` where the cell ahead shows no tile.
        moved: int64 `[T]`, the motion that the pictures show.
        clear: bool `[T]`, whether the picture before can tell motions apart; one kind all over cannot.
        facing: int64 `[T]`, direction that the walker faces afterwards.
    """

    latent: NDArray[np.int64]
    held: NDArray[np.int64]
    expected: NDArray[np.int64]
    moved: NDArray[np.int64]
    clear: NDArray[np.bool_]
    facing: NDArray[np.int64]

    def between(self, first: int, last: int) -> Steps:
        """The latents `first` to `last`, both included."""
        chosen = (self.latent >= first) & (self.latent <= last)
        return Steps(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    @classmethod
    def join(cls, parts: list[Steps]) -> Steps:
        """The latents of several walks."""
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How many of `count` cases were right, and how many could not be judged."""

    right: int
    count: int
    skipped: int = 0

    @property
    def value(self) -> float | None:
        """The share in percent, or None without a case."""
        return 100 * self.right / self.count if self.count else None


def judge(rollout: Rollout) -> Steps:
    """Expectation and observation of every latent of a walk."""
    parts = [
        _judge(rollout, start, min(start + _CHUNK, len(rollout))) for start in range(0, len(rollout), _CHUNK)
    ]
    return Steps.join(parts)


def _judge(rollout: Rollout, start: int, stop: int) -> Steps:
    before, after = rollout.pictures[start:stop], rollout.pictures[start + 1 : stop + 1]
    held = rollout.directions[start:stop]
    kinds, rmse = tile_kinds(before)
    cell = (np.arange(stop - start), *_AHEAD[held].T)
    due = np.where(SOLID[kinds[cell]], 0, held)
    return Steps(
        latent=np.arange(start + 1, stop + 1),
        held=held,
        expected=np.where((held > 0) & (rmse[cell] >= LEGAL_RMSE), UNKNOWN, due),
        moved=motion(before, after).direction,
        clear=motion(before, before).margin >= CLEAR_MARGIN,
        facing=walker_facing(after).astype(np.int64) + 1,
    )


def keys_obeyed(steps: Steps) -> Share:
    """Latents with a key and a free tile ahead that move one tile in its direction.

    Where the tile ahead cannot be read, it counts as skipped; so do pictures that cannot tell motions apart.
    """
    return _moved_as_expected(steps, (steps.expected > 0) | (steps.expected == UNKNOWN))


def stops(steps: Steps) -> Share:
    """Latents with a key and a solid tile ahead that do not move."""
    return _moved_as_expected(steps, (steps.held > 0) & (steps.expected == 0))


def stands(steps: Steps) -> Share:
    """Latents without a key that do not move."""
    return _moved_as_expected(steps, steps.held == 0)


def turns(steps: Steps) -> Share:
    """Latents with a key after which the walker faces its way."""
    asked = steps.held > 0
    return Share(right=int((steps.facing == steps.held)[asked].sum()), count=int(asked.sum()))


def by_latent(steps: Steps, edges: list[int]) -> list[float | None]:
    """`keys_obeyed` between each pair of successive edges, the later one included."""
    pairs = itertools.pairwise(edges)
    return [keys_obeyed(steps.between(first + 1, last)).value for first, last in pairs]


def _moved_as_expected(steps: Steps, asked: NDArray[np.bool_]) -> Share:
    judged = asked & steps.clear & (steps.expected != UNKNOWN)
    right = (steps.moved == steps.expected)[judged]
    return Share(right=int(right.sum()), count=int(judged.sum()), skipped=int((asked & ~judged).sum()))
