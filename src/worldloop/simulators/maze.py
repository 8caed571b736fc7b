"""The maze: a first-person labyrinth with soft walls, landmarks, a jump and a sprint.

Owns movement: how held keys turn into a position over the 4 frames of a step. Does not own the plan
(`labyrinth`) or the pictures (`raycast`). Called by the trainer, the evaluation and the Gymnasium
environment.

Everything starts at rest and eases in and out; a step turns by 5 degrees at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError
from worldloop.simulators.labyrinth import plan
from worldloop.simulators.raycast import EYE_HEIGHT, Eyes, render

FRAMES_PER_STEP: Final = 4

TURN_PER_FRAME: Final = np.deg2rad(5.0) / FRAMES_PER_STEP
SPEED: Final = 0.04
"""Cells a frame when walking."""
SPRINT: Final = 1.75
"""Times `SPEED` when sprinting."""
RADIUS: Final = 0.32
"""How near the eye comes to a wall, in cells."""

_EASE: Final = 0.35
_JUMP_SPEED: Final = 0.05
_GRAVITY: Final = 0.006


class VectorMaze:
    """N independent mazes stepped together."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._plans = [plan(int(seed)) for seed in seeds]
        self._walls = np.stack([p.walls for p in self._plans])
        self._colours = np.stack([p.colours for p in self._plans])
        self._emblems = np.stack([p.emblems for p in self._plans])
        self._rest()

    def reset(self) -> NDArray[np.uint8]:
        """Go to the start of every maze; returns the pictures, uint8 [N, 96, 160, 3]."""
        self._rest()
        return self._picture()

    def step(self, actions: NDArray[np.floating]) -> NDArray[np.uint8]:
        """Hold `actions` [N, 5] for one step; returns uint8 [N, 4, 96, 160, 3].

        An action is `[forward - back, right - left, jump, sprint, yaw]`, each in [-1, 1]; numbers beyond ("no
        action") count as 0.

        Raises:
            InvalidInputError: `actions` is not [N, 5].
        """
        held = np.asarray(actions, np.float64)
        if held.shape != (len(self._plans), 5):
            raise InvalidInputError(f"actions have shape {held.shape}; {(len(self._plans), 5)} is needed")
        held = np.where(np.abs(held) <= 1, held, 0)
        frames = []
        for _ in range(FRAMES_PER_STEP):
            self._move(held)
            frames.append(self._picture())
        return np.stack(frames, 1)

    def positions(self) -> NDArray[np.float64]:
        """x and y of each eye in cells, float64 [N, 2]."""
        return self._position.copy()

    def angles(self) -> NDArray[np.float64]:
        """Direction of each eye in radians, clockwise from east, float64 [N]."""
        return self._angle.copy()

    def heights(self) -> NDArray[np.float64]:
        """How far each eye is lifted by a jump, in wall heights, float64 [N]."""
        return self._lift.copy()

    def _rest(self) -> None:
        count = len(self._plans)
        self._position = np.array([p.start for p in self._plans])
        self._angle = np.array([p.angle for p in self._plans])
        self._velocity = np.zeros((count, 2))
        self._turn, self._lift, self._rise = np.zeros(count), np.zeros(count), np.zeros(count)

    def _move(self, held: NDArray[np.float64]) -> None:
        """One frame: ease towards the held speeds, then turn, jump and slide along walls."""
        want = held[:, :2] / np.maximum(1, np.linalg.norm(held[:, :2], axis=1, keepdims=True))
        pace = SPEED * np.where(held[:, 3] >= 0.5, SPRINT, 1.0)
        self._velocity += (want * pace[:, None] - self._velocity) * _EASE
        self._turn += (held[:, 4] * TURN_PER_FRAME - self._turn) * _EASE
        self._angle = self._angle + self._turn

        grounded = self._lift <= 0
        self._rise = np.where(grounded, np.where(held[:, 2] >= 0.5, _JUMP_SPEED, 0), self._rise - _GRAVITY)
        self._lift = np.maximum(self._lift + self._rise, 0)

        cos, sin = np.cos(self._angle), np.sin(self._angle)
        forward, right = self._velocity[:, 0], self._velocity[:, 1]
        shift = np.stack([cos * forward - sin * right, sin * forward + cos * right], 1)
        for axis in (0, 1):
            moved = self._position.copy()
            moved[:, axis] += shift[:, axis]
            self._position = np.where(self._free(moved)[:, None], moved, self._position)

    def _free(self, position: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether a square of `RADIUS` around each position [N, 2] touches no wall: bool [N]."""
        world = np.arange(len(position))
        free = np.ones(len(position), bool)
        for right in (-RADIUS, RADIUS):
            for down in (-RADIUS, RADIUS):
                x, y = np.floor(position + np.array((right, down))).astype(np.int64).T
                free &= ~self._walls[world, y, x]
        return free

    def _picture(self) -> NDArray[np.uint8]:
        eyes = Eyes(position=self._position, angle=self._angle, height=EYE_HEIGHT + self._lift)
        return render(self._walls, self._colours, self._emblems, eyes)


class Maze:
    """One maze, deterministic from its seed.

    Attributes:
        seed: the maze; any integer from 0 on.
    """

    def __init__(self, seed: int) -> None:
        self.reset(seed)

    def reset(self, seed: int | None = None) -> NDArray[np.uint8]:
        """Go to the start of this maze, or of maze `seed`; returns the picture, uint8 [96, 160, 3]."""
        if seed is not None:
            self.seed = seed
            self._world = VectorMaze([seed])
        picture: NDArray[np.uint8]
        (picture,) = self._world.reset()
        return picture

    def step(self, action: Sequence[float]) -> NDArray[np.uint8]:
        """Hold `action` (5 numbers) for one step; returns uint8 [4, 96, 160, 3]. See `VectorMaze.step`."""
        frames: NDArray[np.uint8]
        (frames,) = self._world.step(np.asarray(action, np.float64)[None])
        return frames

    @property
    def position(self) -> tuple[float, float]:
        """x and y of the eye, in cells."""
        ((x, y),) = self._world.positions()
        return float(x), float(y)

    @property
    def angle(self) -> float:
        """Direction of the eye in radians, clockwise from east."""
        return float(self._world.angles()[0])

    @property
    def lift(self) -> float:
        """How far a jump lifts the eye, in wall heights."""
        return float(self._world.heights()[0])
