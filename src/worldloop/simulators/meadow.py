"""The meadow: an endless top-down world that scrolls one tile a step under its walker.

Owns the rules of walking, and two forms of the same world: `Meadow`, drawn the plain way, and
`VectorMeadow`, many worlds at once through the patch table. Does not own the map (`terrain`), the drawings
(`tiles`, `walker`) or the table (`patches`). Called by the trainer, the evaluation and the Gymnasium
environment.

A step is one latent: 4 RGB frames that scroll 4 pixels each and end aligned to the tiles again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError
from worldloop.simulators import captions, terrain
from worldloop.simulators.patches import (
    FRAMES_PER_STEP,
    OFFSETS,
    ground_index,
    patch_table,
    render,
    walker_index,
)
from worldloop.simulators.tiles import SOLID, TILE_SIZE, TILES
from worldloop.simulators.walker import FACINGS, STAND, WALK_CYCLE, lay_over

__all__ = ["FRAME_SIZE", "VIEW", "WALKER_CELL", "Meadow", "VectorMeadow", "heading", "patch_table", "render"]

VIEW: Final = (6, 10)
"""Rows and columns of tiles in the picture."""

WALKER_CELL: Final = (3, 5)
"""Row and column of the walker in the view."""

FRAME_SIZE: Final = (VIEW[0] * TILE_SIZE, VIEW[1] * TILE_SIZE)
"""Height and width of the picture in pixels."""

_SOUTH: Final = FACINGS.index("s")
_SPAWN_CANDIDATES: Final = 24
_SPAWN_ROOM: Final = 16


def heading(actions: NDArray[np.floating]) -> NDArray[np.int64]:
    """Direction of each action: 0 none, 1 north, 2 south, 3 west, 4 east.

    Args:
        actions: [..., 5], `[forward - back, right - left, jump, sprint, yaw]`. A key counts from 0.5 on; the
            vertical axis wins over the horizontal one; values beyond 1 ("no action") mean no key.

    Returns:
        int64 [...].
    """
    held = (np.abs(actions) >= 0.5) & (np.abs(actions) <= 1)
    vertical = np.where(actions[..., 0] > 0, 1, 2)
    horizontal = np.where(actions[..., 1] < 0, 3, 4)
    return np.where(held[..., 0], vertical, np.where(held[..., 1], horizontal, 0))


def _views(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int8]:
    """int8 [N, 6, 10]: what walkers at `positions` [N, 2] see."""
    return terrain.windows(seeds, positions[:, 0] - WALKER_CELL[0], positions[:, 1] - WALKER_CELL[1], VIEW)


def _reachable(open_: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many cells of each view [N, 6, 10] the walker can walk to without leaving it: int64 [N]."""
    reached = np.zeros_like(open_)
    reached[:, WALKER_CELL[0], WALKER_CELL[1]] = open_[:, WALKER_CELL[0], WALKER_CELL[1]]
    for _ in range(VIEW[0] * VIEW[1] // 2):
        grown = reached.copy()
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown[:, :, 1:] |= reached[:, :, :-1]
        grown[:, :, :-1] |= reached[:, :, 1:]
        grown &= open_
        if np.array_equal(grown, reached):
            break
        reached = grown
    return np.asarray(reached.sum((1, 2)), np.int64)


def _spawn(seed: int) -> NDArray[np.int64]:
    """int64 [2]: the start of a world, walkable, with room around it and many kinds in view."""
    rng = np.random.default_rng(seed)
    while True:
        places = rng.integers(-400, 400, (_SPAWN_CANDIDATES, 2))
        views = _views(np.full(len(places), seed, np.int64), places)
        roomy = _reachable(~SOLID[views]) >= _SPAWN_ROOM
        variety = np.array([len(np.unique(view)) for view in views])
        if roomy.any():
            best = np.argmax(np.where(roomy, variety, -1))
            return np.asarray(places[best], np.int64)


class Meadow:
    """One world, deterministic from its seed.

    Attributes:
        seed: the world; any integer from 0 on.
        y: the walker's row; grows southward.
        x: the walker's column; grows eastward.
        facing: one of "nswe".
    """

    def __init__(self, seed: int) -> None:
        self.reset(seed)

    def reset(self, seed: int | None = None) -> NDArray[np.uint8]:
        """Go to the start of this world, or of world `seed`; returns the picture, uint8 [96, 160, 3]."""
        if seed is not None:
            self.seed = seed
        self.y, self.x = (int(v) for v in _spawn(self.seed))
        self.facing = "s"
        return self._picture(0, 0, STAND)

    def step(self, action: Sequence[float]) -> NDArray[np.uint8]:
        """Hold `action` (5 numbers, see `heading`) for one step; returns uint8 [4, 96, 160, 3].

        Raises:
            InvalidInputError: `action` is not 5 numbers.
        """
        direction = int(heading(_actions(action, ())))
        if direction == 0:
            return np.repeat(self._picture(0, 0, STAND)[None], FRAMES_PER_STEP, 0)
        dy, dx = (int(v) for v in OFFSETS[direction])
        self.facing = FACINGS[direction - 1]
        blocked = bool(SOLID[self.window()[WALKER_CELL[0] + dy, WALKER_CELL[1] + dx]])
        scroll = 0 if blocked else TILE_SIZE // FRAMES_PER_STEP
        frames = [
            self._picture(dy * scroll * n, dx * scroll * n, pose)
            for n, pose in enumerate(WALK_CYCLE, start=1)
        ]
        if not blocked:
            self.y, self.x = self.y + dy, self.x + dx
        return np.stack(frames)

    def window(self) -> NDArray[np.int8]:
        """The tile kinds in view, int8 [6, 10]."""
        window: NDArray[np.int8]
        (window,) = _views(np.array([self.seed]), np.array([(self.y, self.x)]))
        return window

    def caption(self) -> str:
        """What is in view, in words, from the simulator's own labels."""
        return captions.describe(self.window(), WALKER_CELL)

    def _picture(self, down: int, right: int, pose: int) -> NDArray[np.uint8]:
        """The view `down` and `right` pixels from the walker's tile: a crop of one tile more on each side."""
        top, left = self.y - WALKER_CELL[0] - 1, self.x - WALKER_CELL[1] - 1
        size = (VIEW[0] + 2, VIEW[1] + 2)
        kinds = terrain.windows(np.array([self.seed]), np.array([top]), np.array([left]), size)[0]
        large = TILES[kinds].transpose(0, 2, 1, 3, 4).reshape(size[0] * TILE_SIZE, size[1] * TILE_SIZE, 3)
        down, right = down + TILE_SIZE, right + TILE_SIZE
        picture: NDArray[np.uint8] = large[down : down + FRAME_SIZE[0], right : right + FRAME_SIZE[1]].copy()
        y, x = WALKER_CELL[0] * TILE_SIZE, WALKER_CELL[1] * TILE_SIZE
        cell = picture[y : y + TILE_SIZE, x : x + TILE_SIZE]
        cell[:] = lay_over(cell, FACINGS.index(self.facing), pose)
        return picture


class VectorMeadow:
    """N independent worlds stepped together; byte for byte what N `Meadow`s show."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = np.array(seeds, np.int64)
        self.reset_indices()

    def reset(self) -> NDArray[np.uint8]:
        """Go to the start of every world; returns the pictures, uint8 [N, 96, 160, 3]."""
        return render(self.reset_indices())[:, 0]

    def step(self, actions: NDArray[np.floating]) -> NDArray[np.uint8]:
        """Hold `actions` [N, 5] for one step; returns uint8 [N, 4, 96, 160, 3]."""
        return render(self.step_indices(actions))

    def reset_indices(self) -> NDArray[np.int32]:
        """`reset` as rows of `patch_table`: int32 [N, 6, 10], the picture at rest for all 4 frames."""
        self._positions = np.stack([_spawn(int(seed)) for seed in self._seeds])
        self._facings = np.full(len(self._seeds), _SOUTH, np.int8)
        self._windows = _views(self._seeds, self._positions)
        return self._indices(np.zeros(len(self._seeds), np.int64), self._windows, self._facings < 0)

    def step_indices(self, actions: NDArray[np.floating]) -> NDArray[np.int32]:
        """`step` as rows of `patch_table`: int32 [N, 6, 10].

        Raises:
            InvalidInputError: `actions` is not [N, 5].
        """
        direction = heading(_actions(actions, self._seeds.shape))
        walking = direction > 0
        self._facings = np.where(walking, direction - 1, self._facings).astype(np.int8)
        ahead = OFFSETS[direction] + np.array(WALKER_CELL)
        blocked = SOLID[self._windows[np.arange(len(ahead)), ahead[:, 0], ahead[:, 1]]]
        direction = np.where(blocked, 0, direction)
        before = self._windows
        self._positions = self._positions + OFFSETS[direction]
        self._windows = _views(self._seeds, self._positions)
        return self._indices(direction, before, walking)

    def windows(self) -> NDArray[np.int8]:
        """The tile kinds in view, int8 [N, 6, 10]."""
        return self._windows.copy()

    def positions(self) -> NDArray[np.int64]:
        """Row and column of each walker, int64 [N, 2]."""
        return self._positions.copy()

    def facings(self) -> NDArray[np.int8]:
        """Each walker's facing as its place in "nswe", int8 [N]."""
        return self._facings.copy()

    def _indices(
        self, direction: NDArray[np.int64], before: NDArray[np.int8], walking: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        indices = ground_index(direction[:, None, None], before, self._windows)
        y, x = WALKER_CELL
        indices[:, y, x] = walker_index(indices[:, y, x], self._facings, walking)
        return indices


def _actions(actions: Sequence[float] | NDArray[np.floating], batch: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.asarray(actions, np.float64)
    if array.shape != (*batch, 5):
        raise InvalidInputError(f"actions have shape {array.shape}; {(*batch, 5)} is needed")
    return array
