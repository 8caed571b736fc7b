from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
import pytest

from worldloop.simulators.meadow import Meadow
from worldloop.trainer.measures.places import Returns, returns
from worldloop.trainer.rollouts import Rollout, Walkable, out_and_back, place
from worldloop.trainer.trips import open_ways


class Forgetful:
    """A world that becomes another one after `after` steps: what left the view never comes back."""

    def __init__(self, world: Meadow, after: int) -> None:
        self._world, self._left = world, after

    def step(self, action: Sequence[float]) -> np.ndarray:
        before = deepcopy(self._world)
        if self._left == 0:
            self._world.seed += 1000
        self._left -= 1
        kept = before.step(action)
        frames = self._world.step(action)
        self._world.y, self._world.x, self._world.facing = before.y, before.x, before.facing
        # The rows and columns that stayed in view are the old ones, as a dream that sees its last picture keeps them.
        dy, dx = (int(np.sign(a)) for a in (-action[0], action[1]))
        inside = np.zeros((96, 160, 1), bool)
        inside[max(0, -16 * dy) : 96 - max(0, 16 * dy), max(0, -16 * dx) : 160 - max(0, 16 * dx)] = True
        return np.where(inside, kept, frames)


def trips(steps: int, change: Callable[[Meadow], Walkable] = lambda world: world, seeds: int = 12) -> Returns:
    parts = []
    for seed in range(seeds):
        rng = np.random.default_rng((steps, seed))
        world, first = place(seed)
        ways = open_ways(world)
        rollout = out_and_back(change(world), first, steps, int(rng.choice(ways)), rng) if ways else None
        if rollout is not None:
            parts.append(returns(rollout))
    return Returns.join(parts)


@pytest.mark.parametrize("steps", [2, 6])
def test_the_simulator_is_the_same_place_again(steps: int) -> None:
    found = trips(steps)

    assert len(found) > 100
    assert found.share == 100
    assert found.guess is not None
    assert found.guess < 60


def test_a_world_that_is_drawn_anew_on_the_way_back_is_caught() -> None:
    found = trips(6, lambda world: Forgetful(world, 6))

    assert len(found) > 100
    assert found.share is not None
    assert found.share < 40


def test_absence_counts_the_latents_out_of_view() -> None:
    found = trips(6)

    # A cell that leaves with the last step out is away for 1 latent, with the first one for 11.
    assert set(found.where(found.from_start).absence) == {1, 3, 5, 7, 9, 11}
    assert found.where(~found.from_start).absence.max(initial=0) < 11


def test_cells_that_were_never_seen_do_not_count() -> None:
    world, first = place(0)
    direction = open_ways(world)[0]
    rollout = out_and_back(world, first, 2, direction, np.random.default_rng(0))
    assert rollout is not None

    one_way = Rollout(pictures=rollout.pictures[:3], directions=rollout.directions[:2])

    assert len(returns(one_way)) == 0
    assert returns(one_way).share is None
    assert len(returns(rollout)) in (2 * 6, 2 * 10)


def test_mush_that_comes_back_is_wrong_though_it_is_nearest_to_some_tile() -> None:
    world, first = place(0)
    rollout = out_and_back(world, first, 2, open_ways(world)[0], np.random.default_rng(0))
    assert rollout is not None
    grey = np.full_like(rollout.pictures, 100)
    pictures = np.concatenate(
        (rollout.pictures[:3], (rollout.pictures[3:] * 0.7 + grey[3:] * 0.3).astype(np.uint8))
    )

    assert returns(Rollout(pictures=pictures, directions=rollout.directions)).share == 0


def test_a_walker_without_a_way_out_makes_no_trip() -> None:
    class Wall:
        def step(self, action: Sequence[float]) -> np.ndarray:
            return np.repeat(first[None], 4, 0)

    world, first = place(0)

    assert out_and_back(Wall(), first, 4, open_ways(world)[0], np.random.default_rng(0)) is None
