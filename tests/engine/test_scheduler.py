"""Who runs next."""

from __future__ import annotations

import itertools

import pytest

from worldloop.engine.contract import Plan
from worldloop.engine.scheduler import Candidate, pick


def candidate(session: int, *, deadline: float | None = None, last_tick: int = -1) -> Candidate:
    plan = Plan(op="denoise", inputs={}, shape=(), deadline=deadline)
    return Candidate(session=session, plan=plan, last_tick=last_tick)


@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        ([candidate(1, deadline=2.0), candidate(2, deadline=1.0, last_tick=9), candidate(3)], 2),
        ([candidate(1, last_tick=5), candidate(2, last_tick=3), candidate(3, last_tick=4)], 2),
        ([candidate(3), candidate(2), candidate(1, last_tick=0)], 2),
        ([candidate(1), candidate(2, deadline=1e9, last_tick=9)], 2),
        ([candidate(1, deadline=1.0, last_tick=2), candidate(2, deadline=1.0, last_tick=1)], 2),
    ],
    ids=[
        "earliest deadline",
        "longest wait",
        "oldest session",
        "a deadline before none",
        "wait breaks a tie",
    ],
)
def test_pick_is_by_urgency_in_any_order_of_the_list(candidates: list[Candidate], wanted: int) -> None:
    assert {pick(order).session for order in itertools.permutations(candidates)} == {wanted}
