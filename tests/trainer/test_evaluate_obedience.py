from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from worldloop.simulators import meadow
from worldloop.trainer.measures.obedience import (
    Share,
    Steps,
    by_latent,
    judge,
    keys_obeyed,
    stands,
    stops,
    turns,
)
from worldloop.trainer.rollouts import ACTIONS, Rollout, Walkable, place, wander

Measure = Callable[[Steps], Share]
WORLDS, LATENTS = 4, 40


class OtherKeys:
    """A world whose every key walks another way; without a key it walks north."""

    def __init__(self, world: Walkable) -> None:
        self._world = world

    def step(self, action: Sequence[float]) -> np.ndarray:
        direction = int(meadow.heading(np.asarray(action)))
        return self._world.step(ACTIONS[direction % 4 + 1].tolist())


def walks(change: Callable[[Walkable], Walkable] = lambda world: world) -> Steps:
    parts = []
    for seed in range(WORLDS):
        world, first = place(seed)
        parts.append(judge(wander(change(world), first, LATENTS, np.random.default_rng(seed))))
    return Steps.join(parts)


@pytest.mark.parametrize("measure", [keys_obeyed, stops, stands, turns])
def test_the_simulator_obeys_in_every_measure(measure: Measure) -> None:
    share = measure(walks())

    assert share.count >= 20
    assert share.right == share.count


@pytest.mark.parametrize("measure", [keys_obeyed, stands, turns])
def test_a_world_with_other_keys_is_caught(measure: Measure) -> None:
    value = measure(walks(OtherKeys)).value

    assert value is not None
    assert value < 50


def test_a_walker_who_walks_through_solid_tiles_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meadow, "SOLID", np.zeros(10, bool))

    steps = walks()

    assert stops(steps).count > 20
    assert stops(steps).right == 0
    assert keys_obeyed(steps).value == 100


def test_what_cannot_be_read_is_skipped_and_no_case_is_no_value() -> None:
    grey = Rollout(pictures=np.full((3, 96, 160, 3), 128, np.uint8), directions=np.array([1, 0]))

    steps = judge(grey)

    assert keys_obeyed(steps) == Share(right=0, count=0, skipped=1)
    assert stands(steps) == Share(right=0, count=0, skipped=1)
    assert keys_obeyed(steps).value is None


def test_a_frozen_picture_disobeys() -> None:
    world, first = place(0)
    wandered = wander(world, first, 20, np.random.default_rng(0))
    frozen = Rollout(pictures=np.repeat(first[None], 21, 0), directions=wandered.directions)

    assert keys_obeyed(judge(frozen)).right == 0
    assert stands(judge(frozen)).value == 100


def test_windows_of_latents_include_both_ends() -> None:
    steps = walks()

    assert set(steps.between(3, 5).latent) == {3, 4, 5}
    assert by_latent(steps, [0, 20, 40]) == [100, 100]
