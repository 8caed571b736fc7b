from __future__ import annotations

import numpy as np
import pytest

from worldloop.simulators.captions import BARE, describe, every_phrase, motions, phrases, rephrase, walk
from worldloop.simulators.meadow import WALKER_CELL, Meadow
from worldloop.simulators.tiles import BRIDGE, GRASS, PATH, PINE, WATER

WINDOW = np.full((6, 10), GRASS, np.int8)


def drawn(**areas: tuple[int, slice, slice]) -> np.ndarray:
    window = WINDOW.copy()
    for kind, rows, columns in areas.values():
        window[rows, columns] = kind
    return window


def test_phrases_name_what_there_is_and_where_the_largest_first() -> None:
    window = drawn(lake=(WATER, slice(0, 6), slice(8, 10)), wood=(PINE, slice(0, 1), slice(3, 8)),
                   way=(PATH, slice(5, 6), slice(0, 2)))  # fmt: skip
    assert phrases(window, WALKER_CELL) == ["a lake in the east", "pine forest in the north", "a path"]
    assert describe(window, WALKER_CELL) == "a lake in the east, pine forest in the north, a path"
    few = drawn(lake=(WATER, slice(0, 2), slice(0, 2)))
    assert phrases(few, WALKER_CELL) == [BARE], "four cells of water are no lake"
    bridge = drawn(lake=(WATER, slice(0, 6), slice(0, 10)), way=(BRIDGE, slice(3, 4), slice(0, 10)))
    assert phrases(bridge, WALKER_CELL) == ["a lake", "a bridge"]


@pytest.mark.parametrize(
    ("directions", "says"),
    [
        ([1, 1, 1, 4, 4], "walking north, then east"),
        ([2, 2, 0, 2, 2, 3], "walking south"),
        ([0, 0, 0], "standing still"),
        ([], "standing still"),
        ([3], "walking west"),
        (
            [0, 0, 4, 4, 0, 0, 1, 1],
            "standing still, then walking east, then standing still, then walking north",
        ),
    ],
)
def test_a_walk_is_told_without_its_shortest_stretches(directions: list[int], says: str) -> None:
    assert walk(directions) == says


def test_how_somebody_moves_is_told_by_phrases_that_no_picture_has() -> None:
    moves, ways = set(motions()), {"north", "south", "west", "east"}
    rng = np.random.default_rng(2)
    for way in range(5):
        for _ in range(40):
            for part in rephrase([], rng, always=[walk([way, way, 1, 1])]).split(", "):
                assert part in moves or (part.split(" ")[0] == "then" and part[5:] in moves), part
    scenes = {phrase for seed in range(60) for phrase in phrases(Meadow(seed).window(), WALKER_CELL)}
    told = {word for scene in scenes for _ in range(9) for word in rephrase([scene], rng).split()}
    assert not {phrase for phrase in moves if set(phrase.split()) <= told - ways - {"to", "the"}}
    assert "north" not in moves


def test_other_words_say_the_same_and_are_all_known() -> None:
    words = {word for phrase in every_phrase() for word in phrase.replace("-", " ").replace(",", " ").split()}
    told = [[*phrases(Meadow(seed).window(), WALKER_CELL), walk([1, 1, 4, 4])] for seed in range(60)]
    rng = np.random.default_rng(0)
    said = [rephrase(each, rng) for each in told for _ in range(5)]
    assert {w for text in said for w in text.replace("-", " ").replace(",", " ").split()} <= words
    assert len(set(said)) > 250
    assert rephrase(told[0], np.random.default_rng(3)) == rephrase(told[0], np.random.default_rng(3))


def test_a_synonym_replaces_whole_words_and_keeps_the_side() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        text = rephrase(["a lake in the northeast"], rng, keep=1.0, other=0.5)
        assert "northeast" in text or text.endswith("at the top right")
    plain = rephrase(["a path", "a lake"], rng, keep=1.0, other=0.0)
    assert sorted(plain.split(", ")) == ["a lake", "a path"]
    assert any(rephrase(["a path", "a lake"], rng, keep=0.0, other=0.0) == "" for _ in range(20))
