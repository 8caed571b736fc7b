"""What a simulated player holds down while training data is made: strolls, pauses, pushes, and ways back.

Owns the habits of the walkers. Does not own the world they walk in (`simulators`). Called by `datasets`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NORTH, SOUTH, WEST, EAST = (1.0, 0.0), (-1.0, 0.0), (0.0, -1.0), (0.0, 1.0)
DIRECTIONS = (NORTH, SOUTH, WEST, EAST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """How walkers choose.

    Attributes:
        idle: share of decisions that stand still.
        back: share of decisions that retrace the last steps.
        long: share of strolls that last up to `longest` steps instead of up to 8.
        longest: steps of a long stroll, at most.
        push: share of blocked walkers that keep pushing.
    """

    idle: float = 0.14
    back: float = 0.22
    long: float = 0.15
    longest: int = 30
    push: float = 0.3


class Walkers:
    """N independent players. Call `actions`, step the world, then `moved` with what happened.

    Args:
        count: N.
        rng: source of their choices.
        habits: how they choose.
    """

    def __init__(self, count: int, rng: np.random.Generator, habits: Habits | None = None) -> None:
        self._rng = rng
        self._habits = habits or Habits()
        self._plans: list[list[tuple[float, float]]] = [[] for _ in range(count)]
        self._trails: list[list[tuple[float, float]]] = [[] for _ in range(count)]
        self._now = np.zeros((count, 2), np.float32)

    def actions(self) -> NDArray[np.float32]:
        """What each player holds now, float32 `[N, 5]`."""
        for walker, plan in enumerate(self._plans):
            if not plan:
                plan.extend(self._decide(walker))
            self._now[walker] = plan.pop()
        result = np.zeros((len(self._plans), 5), np.float32)
        result[:, :2] = self._now
        return result

    def moved(self, moved: NDArray[np.bool_]) -> None:
        """Tell who really moved, `[N]`; the blocked drop their plan or push on."""
        blocked = (self._now != 0).any(1) & ~moved
        for walker in np.flatnonzero(moved):
            self._trails[walker].append((float(self._now[walker, 0]), float(self._now[walker, 1])))
        for walker in np.flatnonzero(blocked):
            if self._rng.random() >= self._habits.push:
                self._plans[walker].clear()

    def _decide(self, walker: int) -> list[tuple[float, float]]:
        """The next moves, last first."""
        rng, habits = self._rng, self._habits
        choice = rng.random()
        if choice < habits.idle:
            return [(0.0, 0.0)] * int(rng.integers(1, 9))
        trail = self._trails[walker]
        if choice < habits.idle + habits.back and trail:
            steps = int(rng.integers(1, 13))
            retrace = [(-forward, -right) for forward, right in trail[-steps:]]
            trail.clear()
            return retrace
        longest = habits.longest if rng.random() < habits.long else 8
        return [DIRECTIONS[int(rng.integers(4))]] * int(rng.integers(1, longest + 1))
