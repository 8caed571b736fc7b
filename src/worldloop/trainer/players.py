"""Who plays while an environment is recorded: strolling walkers or random keys, through any table of actions.

Owns the policies by name. Does not own the habits of walkers (`walks`). Called by `environment`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError
from worldloop.core.types import Action
from worldloop.trainer.walks import Walkers

POLICIES = ("walkers", "random")
HOLD_STEPS = 8
"""Steps for which a random player holds one choice, at most."""
_JUMP, _SPRINT = 0.1, 0.2


class Player:
    """One player of one episode. Call `action`, step the environment, then `moved`.

    Args:
        policy: one of `POLICIES`. `random` also jumps, sprints and turns.
        rng: source of its choices.
        table: float32 `[K, 5]`, what each of the environment's K actions means, or None when it takes all five numbers.
    """

    def __init__(self, policy: str, rng: np.random.Generator, table: NDArray[np.float32] | None) -> None:
        if policy not in POLICIES:
            raise InvalidInputError(f"policy is {policy!r}; must be one of {list(POLICIES)}")
        self._rng, self._table = rng, table
        self._walkers = Walkers(1, rng) if policy == "walkers" else None
        self._left, self._held = 0, np.zeros(5, np.float32)

    def action(self) -> tuple[Action, int | None]:
        """(the five numbers held for the next step, their row in the table or None without one)."""
        wish = self._walkers.actions()[0] if self._walkers else self._random()
        row = None
        if self._table is not None:
            row = int(np.argmin(np.square(self._table - wish).sum(1)))
            wish = self._table[row]
        forward, right, jump, sprint, yaw = (float(value) for value in wish)
        return (forward, right, jump, sprint, yaw), row

    def moved(self, moved: bool) -> None:
        """Tell whether the picture changed; a blocked walker drops its plan or pushes on."""
        if self._walkers:
            self._walkers.moved(np.array([moved]))

    def _random(self) -> NDArray[np.float32]:
        if self._left == 0:
            self._left = int(self._rng.integers(1, HOLD_STEPS + 1))
            if self._table is not None:
                self._held = self._table[self._rng.integers(len(self._table))]
            else:
                forward, right, yaw = self._rng.integers(-1, 2, 3)
                jump, sprint = self._rng.random(2) < (_JUMP, _SPRINT)
                self._held = np.array((forward, right, jump, sprint, yaw), np.float32)
        self._left -= 1
        return self._held
