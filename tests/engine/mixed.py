"""Worlds, videos and pictures as one load on an engine: begun, ticked and taken to their ends, and compared.

Called by the tests of the engine's gates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from worldloop.core.types import Controls
from worldloop.engine.contract import Emit, Loop
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.engine.scheduler import Candidate, pick
from worldloop.loops.picture import PictureRequest
from worldloop.loops.video_request import VideoRequest
from worldloop.loops.world import WorldRequest
from worldloop.testing import ScriptedPlayer

Session = tuple[Loop[Any], Any]
ValueT = TypeVar("ValueT")
PLAYER = ScriptedPlayer.of("w", "wd", "", "a")
LATENTS = 7
"""Body frames of a world; more than its window."""


FAMILIES = {WorldRequest: "world", VideoRequest: "video", PictureRequest: "picture"}


def family(session: Session) -> str:
    """By its request."""
    return FAMILIES[type(session[1])]


def of(wanted: str, sessions: Sequence[Session], values: Sequence[ValueT]) -> list[ValueT]:
    """The values that belong to the sessions of one family."""
    found = [value for session, value in zip(sessions, values, strict=True) if family(session) == wanted]
    assert found, f"no {wanted} in this load"
    return found


@dataclass
class Running:
    """A session on an engine, with what came of it."""

    handle: Handle[Any]
    emits: list[Emit] = field(default_factory=list)
    taking: Any = None
    latents: list[Tensor] = field(default_factory=list)

    def hear(self, emit: Emit) -> None:
        """Keep a chunk, and the clean latent that the state of a world or picture has by then."""
        self.emits.append(emit)
        self.latents.append(self.handle.state.x)

    @property
    def chunks(self) -> list[bytes]:
        """What can be seen; a picture's news of its steps cannot."""
        return [emit.frames.tobytes() for emit in self.emits if len(emit.frames)]

    def take(self) -> bool:
        """Take a chunk of a job that is there; whether there was one, so that the job can go on."""
        if self.taking is None or not self.taking.done():
            return False
        failure = self.taking.exception()
        chunk = None if failure else self.taking.result()
        self.taking = None if chunk is None else self.handle.take()
        return chunk is not None


def begin(engine: Engine, session: Session, *, latents: int = LATENTS, due: float = math.inf) -> Running:
    """Open a session and ask for all of it."""
    loop, wish = session
    running = Running(engine.open(loop, wish, keep_chunks=family(session) != "world"))
    running.handle.on_emit = running.hear
    if family(session) == "world":
        for latent in range(-1, latents):
            running.handle.submit(Controls() if latent < 0 else PLAYER.controls(latent), due=due)
    else:
        running.taking = running.handle.take()
    return running


def run(engine: Engine, load: Sequence[Running], ticks: int = 10_000) -> int:
    """Tick, and take what jobs make, until all is done or so many ticks have run; the number of ticks."""
    done = 0
    while done < ticks:
        ticked = engine.tick()
        done += ticked
        taken = [running.take() for running in load]
        if not ticked and not any(taken):
            break
    return done


def together(engine: Engine, sessions: Sequence[Session], *, due_seed: int | None = None) -> list[Running]:
    """All sessions at once, to their ends."""
    draw = random.Random(due_seed)
    dues = [math.inf if due_seed is None else draw.choice([1.0, 2.0, math.inf]) for _ in sessions]
    load = [begin(engine, session, due=due) for session, due in zip(sessions, dues, strict=True)]
    run(engine, load)
    return load


def alone(sessions: Sequence[Session]) -> list[list[bytes]]:
    """The chunks of each session on an engine of its own."""
    return [together(Engine(threaded=False), [session])[0].chunks for session in sessions]


def same(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether they are equal. Gate 6: two outputs of nothing are no parity."""
    for each in (found, expected):
        assert len(each), "there is nothing to compare"
        assert all(len(part) for part in each), "there is nothing to compare"
    return list(found) == list(expected)


@dataclass
class AnyOrder:
    """Stands in for `scheduler.pick`: whoever comes by chance, with whoever may join by chance."""

    seed: int
    could_join: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def __call__(self, candidates: Sequence[Candidate], *, largest: int = 1) -> list[Candidate]:
        first = self._draw.choice(candidates)
        rest = [each for each in candidates if each is not first]
        self._draw.shuffle(rest)
        alike = [each for each in rest if len(pick([first, each], largest=2)) == 2]
        self.could_join += bool(alike)
        return [first, *alike[: self._draw.randint(0, largest - 1)]] if largest > 1 else [first]
