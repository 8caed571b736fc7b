"""Who runs next, and who joins."""

from __future__ import annotations

import itertools
import math

import pytest

from worldloop.engine.contract import Plan
from worldloop.engine.scheduler import Candidate, pick


def candidate(
    session: int,
    *,
    due: float = math.inf,
    last_tick: int = -1,
    op: str = "denoise",
    size: int = 1,
    group: int = 0,
) -> Candidate:
    plan = Plan(op=op, inputs={}, shape=(size,))
    return Candidate(session=session, plan=plan, due=due, last_tick=last_tick, group=group)


@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        ([candidate(1, due=2.0), candidate(2, due=1.0, last_tick=9), candidate(3)], 2),
        ([candidate(1, last_tick=5), candidate(2, last_tick=3), candidate(3, last_tick=4)], 2),
        ([candidate(3), candidate(2), candidate(1, last_tick=0)], 2),
        ([candidate(1), candidate(2, due=1e9, last_tick=9)], 2),
        ([candidate(1, due=1.0, last_tick=2), candidate(2, due=1.0, last_tick=1)], 2),
    ],
    ids=["earliest due", "longest wait", "oldest session", "a due time before none", "wait breaks a tie"],
)
def test_pick_is_by_urgency_in_any_order_of_the_list(candidates: list[Candidate], wanted: int) -> None:
    assert {tuple(c.session for c in pick(order)) for order in itertools.permutations(candidates)} == {
        (wanted,)
    }


def test_those_alike_join_the_most_urgent_in_their_order() -> None:
    candidates = [
        candidate(1, due=3.0),
        candidate(2, due=1.0),
        candidate(3, due=2.0),
        candidate(4, due=2.5, op="decode"),
        candidate(5, due=1.5, size=2),
        candidate(6, due=1.5, group=1),
    ]

    for order in itertools.permutations(candidates):
        assert [c.session for c in pick(order, largest=8)] == [2, 3, 1]
        assert [c.session for c in pick(order, largest=2)] == [2, 3]
        assert [c.session for c in pick(order)] == [2]
