"""Worlds and jobs of any family side by side, one unit at a time, without an engine.

Owns the order in which they come. Called by the tests of each family in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from worldloop.core.types import Controls
from worldloop.engine.contract import Done, Emit, Idle, Loop
from worldloop.loops.world import WorldRequest
from worldloop.testing import ScriptedPlayer, run_unit

PLAYER = ScriptedPlayer.of("w", "wd", "", "a")
LATENTS = 7
"""Latent frames of a world after its start picture; its window holds 5."""

Session = tuple[Loop[Any], Any]
"""A loop and a request of it."""

Order = Callable[[list[int]], int]
"""Who is next among those with work left."""


def pictures(emits: Sequence[Emit]) -> bytes:
    return b"".join(emit.frames.tobytes() for emit in emits)


def in_order(sessions: Sequence[Session], order: Order) -> list[bytes]:
    """The pictures of each session; worlds are played for `LATENTS` frames."""
    states = [begin(session) for session in sessions]
    emits: list[list[Emit]] = [[] for _ in sessions]
    while ready := [
        n for n, (loop, _) in enumerate(sessions) if not isinstance(loop.next(states[n]), Idle | Done)
    ]:
        chosen = order(ready)
        emits[chosen] += run_unit(sessions[chosen][0], states[chosen])
    return [pictures(each) for each in emits]


def begin(session: Session) -> Any:
    """The state of a session, with all inputs of a world."""
    loop, request = session
    state = loop.init(request)
    if isinstance(request, WorldRequest):
        for latent in range(-1, LATENTS):
            loop.offer(state, Controls() if latent < 0 else PLAYER.controls(latent))
    return state


def alone(sessions: Sequence[Session]) -> list[bytes]:
    return [in_order([session], lambda ready: ready[0])[0] for session in sessions]


def in_turn() -> Order:
    turns = iter(range(10**6))
    return lambda ready: ready[next(turns) % len(ready)]
