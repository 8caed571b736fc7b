"""Walks through anything that steps like the meadow, dreams and simulator alike, kept as pictures and keys.

Shapes: T latents; a rollout holds T + 1 pictures, the start first, each the last frame of its latent.

Owns the players: the wanderer, the script, and the one that goes out and comes back. They see pictures only. Does not
own what is measured on a rollout (`measures`). Called by `evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.meadow import WALKER_CELL, Meadow, heading
from worldloop.simulators.measure import motion, tile_kinds
from worldloop.simulators.patches import OFFSETS
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.walks import Walkers

CLEAR_MARGIN: Final = 3.0
"""A picture tells motion when moving it by a tile changes it by more than this, in RMSE units 0..255.

One cell of another kind than all others already gives 5.
"""

ACTIONS: Final[NDArray[np.float64]] = np.array(
    [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (-1, 0, 0, 0, 0), (0, -1, 0, 0, 0), (0, 1, 0, 0, 0)], np.float64
)
"""float64 [5, 5]: the action that walks in direction none, north, south, west, east."""

BACK: Final = (0, 2, 1, 4, 3)
"""The direction that undoes each direction."""


class Walkable(Protocol):
    """What one can walk in: `Meadow`, `Dream`."""

    def step(self, action: Sequence[float]) -> NDArray[np.uint8]:
        """Hold 5 numbers for one latent; returns uint8 `[4, H, W, 3]`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Pictures and keys of one walk; nothing else is known about it.

    Attributes:
        pictures: uint8 `[T + 1, H, W, 3]`.
        directions: int64 `[T]`, what was held: 0 none, 1 north, 2 south, 3 west, 4 east.
    """

    pictures: NDArray[np.uint8]
    directions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.directions)


def place(seed: int, *, at: tuple[int, int] | None = None) -> tuple[Meadow, NDArray[np.uint8]]:
    """A simulated world at its start, or at row and column `at`, and its picture, uint8 `[H, W, 3]`."""
    world = Meadow(seed)
    if at is not None:
        world.y, world.x = at
    return world, world.step(ACTIONS[0].tolist())[-1]


def follow(world: Walkable, first: NDArray[np.uint8], directions: NDArray[np.int64]) -> Rollout:
    """Hold what the script says."""
    pictures = [first, *(world.step(ACTIONS[direction].tolist())[-1] for direction in directions)]
    return Rollout(pictures=np.stack(pictures), directions=np.asarray(directions, np.int64))


def wander(
    world: Walkable,
    first: NDArray[np.uint8],
    latents: int,
    rng: np.random.Generator,
) -> Rollout:
    """Stroll, pause, push into what is in the way and retrace steps, as the players of the training data do."""
    walkers = Walkers(1, rng)
    pictures, directions = [first], []
    for _ in range(latents):
        action = walkers.actions()
        pictures.append(world.step(action[0].tolist())[-1])
        directions.append(int(heading(action)[0]))
        moved = directions[-1] > 0 and motion(pictures[-2], pictures[-1]).direction > 0
        walkers.moved(np.array([moved], bool))
    return Rollout(pictures=np.stack(pictures), directions=np.array(directions, np.int64))


def out_and_back(
    world: Walkable, first: NDArray[np.uint8], steps: int, direction: int, rng: np.random.Generator
) -> Rollout | None:
    """Walk `steps` tiles in `direction`, past what is in the way, then retrace them; None when there is no way out.

    On the way out only tiles that look free are stepped on. The way back is retraced whatever it looks like now.
    """
    pictures, held = [first], []
    side = 0
    for _ in range(steps):
        free = [d for d in range(1, 5) if _looks_free(pictures[-1], d) and d != BACK[direction]]
        sides = [d for d in free if d != direction and d != BACK[side]]
        if direction in free:
            chosen, side = direction, 0
        elif sides:
            chosen = side = int(rng.choice(sides))
        else:
            return None
        pictures.append(world.step(ACTIONS[chosen].tolist())[-1])
        held.append(chosen)
    moved = [int(m) for m in motion(np.stack(pictures[:-1]), np.stack(pictures[1:])).direction]
    if moved != held:
        return None
    back = [BACK[d] for d in reversed(held)]
    pictures += [world.step(ACTIONS[d].tolist())[-1] for d in back]
    return Rollout(pictures=np.stack(pictures), directions=np.array(held + back, np.int64))


def ahead(direction: int) -> tuple[int, int]:
    """Row and column of the cell in front of the walker."""
    return WALKER_CELL[0] + int(OFFSETS[direction, 0]), WALKER_CELL[1] + int(OFFSETS[direction, 1])


def _looks_free(picture: NDArray[np.uint8], direction: int) -> bool:
    return not SOLID[tile_kinds(picture)[0][ahead(direction)]]
