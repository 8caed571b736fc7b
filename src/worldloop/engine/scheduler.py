"""Which plan runs next: earliest deadline first, then whoever has waited longest. No tensors, no clock, no I/O.

Called by `engine.Engine.tick`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from worldloop.engine.contract import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A session that has something to run.

    Attributes:
        session: its id.
        plan: what it would run.
        last_tick: number of the tick that served it last; -1 for never.
    """

    session: int
    plan: Plan
    last_tick: int


def pick(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that runs now; the order of the list does not matter."""
    return min(candidates, key=_urgency)


def _urgency(candidate: Candidate) -> tuple[float, int, int]:
    deadline = math.inf if candidate.plan.deadline is None else candidate.plan.deadline
    return deadline, candidate.last_tick, candidate.session
