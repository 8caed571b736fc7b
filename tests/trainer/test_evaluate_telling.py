"""Do pictures show what a text says: the measures on the simulator's own pictures, and on spoiled ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.simulators.meadow import WALKER_CELL, Meadow
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.measures.telling import goes, shown, told_again, walked
from worldloop.trainer.rollouts import ACTIONS, ahead


def pictures(count: int) -> tuple[NDArray[np.uint8], list[list[str]]]:
    worlds = [Meadow(seed) for seed in range(count)]
    return np.stack([world.step(ACTIONS[0].tolist())[-1] for world in worlds]), [
        w.caption().split(", ") for w in worlds
    ]


def stroll(way: int, steps: int = 8, seed: int = 3) -> NDArray[np.uint8]:
    world = Meadow(seed)
    frames = [world.step(ACTIONS[0].tolist())[-1]]
    return np.stack(frames + [world.step(ACTIONS[way].tolist())[-1] for _ in range(steps)])


def test_true_pictures_are_told_as_they_were_asked_for() -> None:
    drawn, asked = pictures(12)
    seen = shown(drawn)
    assert seen.legal.all()
    assert seen.in_place.all()
    assert (seen.walkers == 1).all()
    assert told_again(asked, seen.phrases()).value == 100
    # Controls: pictures of other prompts, a picture turned round, one of mud.
    others = [*asked[1:], asked[0]]
    assert (told_again(others, seen.phrases()).value or 0) < 40
    assert (told_again(others, seen.phrases(), sides=False).value or 0) < 80
    turned = shown(np.ascontiguousarray(drawn[:, ::-1, ::-1]))
    assert not turned.legal.all()
    mud = shown(np.full_like(drawn[:1], 128))
    assert not mud.legal.any()
    assert not mud.walkers.any()


def test_sides_count_unless_they_are_left_out() -> None:
    asked, seen = [["a lake in the east", "a path"]], [["a lake in the west", "a path"]]
    assert told_again(asked, seen).value == 50
    assert told_again(asked, seen, sides=False).value == 100
    assert told_again([], []).value is None


def test_a_second_walker_is_seen() -> None:
    drawn, _ = pictures(1)
    y, x = (16 * cell for cell in WALKER_CELL)
    drawn[0, :16, :16] = drawn[0, y : y + 16, x : x + 16]
    assert shown(drawn).walkers.tolist() == [2]


def test_walks_of_the_simulator_scroll_exactly_and_end_at_solid_tiles() -> None:
    walks = [walked(stroll(way)) for way in range(1, 5)]
    for way, walk in enumerate(walks, start=1):
        assert set(walk.moved) <= {0, way}
        assert (walk.kept == 1).all()
        assert walk.free.all()
        assert (walk.legal == 1).all()
    assert goes(walks, [1, 2, 3, 4]).value == 100
    assert goes(walks, [1, 2, 3, 4]).count >= 10
    assert goes(walks, [2, 3, 4, 1]).value == 0


@pytest.mark.parametrize("fault", ["torn", "through"])
def test_torn_walks_and_walks_through_solid_tiles_are_seen(fault: str) -> None:
    if fault == "torn":
        frames = stroll(2)
        frames[4] = stroll(2, seed=9)[4]
        assert walked(frames).kept.min() < 0.8
        return
    found = None
    for seed in range(40):  # a world whose walker stands before something solid
        world = Meadow(seed)
        for way in range(1, 5):
            if SOLID[world.window()[ahead(way)]]:
                before = world.step(ACTIONS[0].tolist())[-1]
                dy, dx = ((-1, 0), (1, 0), (0, -1), (0, 1))[way - 1]
                world.y, world.x = world.y + dy, world.x + dx
                found = walked(np.stack([before, world.step(ACTIONS[0].tolist())[-1]])), way
    assert found is not None
    walk, way = found
    assert walk.moved.tolist() == [way]
    assert walk.free.tolist() == [False]
