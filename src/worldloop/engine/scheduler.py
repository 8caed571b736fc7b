"""Which plans run next: earliest deadline first, then whoever has waited longest. No tensors, no clock, no I/O.

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
        due: seconds of the engine's timer at which its next chunk is due; infinity for work that may wait.
        last_tick: number of the tick that served it last; -1 for never.
        group: sessions of one group may share a batch.
    """

    session: int
    plan: Plan
    due: float = math.inf
    last_tick: int = -1
    group: int = 0


def pick(candidates: Sequence[Candidate], *, largest: int = 1) -> list[Candidate]:
    """Who runs now, as one batch of at most `largest`, the most urgent first; the order of the list does not matter.

    Those join the most urgent one whose plans have its group, op and shape.
    """
    first = min(candidates, key=_urgency)
    if largest == 1:
        return [first]
    kind = _kind(first)
    alike = sorted((c for c in candidates if _kind(c) == kind), key=_urgency)
    return alike[:largest]


def _urgency(candidate: Candidate) -> tuple[float, int, int]:
    return candidate.due, candidate.last_tick, candidate.session


def _kind(candidate: Candidate) -> tuple[int, str, tuple[int, ...]]:
    return candidate.group, candidate.plan.op, candidate.plan.shape
