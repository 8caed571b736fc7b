"""The engine's fifth gate over a mixed load: a session that is ended anywhere leaves nothing and disturbs nobody."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from worldloop.core.errors import CapacityError, SessionEndedError
from worldloop.engine.admission import Admission
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.model import WorldModel
from worldloop.loops.picture import PictureLoop, PictureRequest, PictureState
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import VideoRequest
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState

from .mixed import Session, begin, run, same


@dataclass
class Cancelled:
    """Bytes spoken for, live memories and threads that a cancel left, and how many memories there were; chunks of who
    went on and of who came next."""

    bytes: int
    memories: int
    threads: int
    held: int
    others: list[list[bytes]]
    next_one: list[bytes]


def memories(handle: Handle[Any]) -> list[weakref.ref[Any]]:
    """What a session holds on the device: a picture's branches only once they have a condition."""
    state = handle.state
    if isinstance(state, WorldState):
        held = [state.memory]
    elif isinstance(state, PictureState):
        held = drawn_with(state)
    else:
        held = [branch.memory for branch in state.branches]
        held += [] if state.drawing is None else drawn_with(state.drawing)
    return [weakref.ref(each) for each in held]


def drawn_with(state: PictureState) -> list[Any]:
    """The memories of a picture's branches."""
    return [branch.condition.memory for branch in state.branches if branch.condition is not None]


def cancel_at(boundary: int, who: int, load: list[Session], admission: Admission) -> Cancelled:
    """Run a load, end one of its sessions after so many units, let the others end, then play it from the start."""
    threads = threading.active_count()
    engine = Engine(threaded=False, admission=admission)
    running = [begin(engine, session, latents=1) for session in load]
    with pytest.raises(CapacityError):
        engine.open(*load[who])  # the device is full
    assert run(engine, running, ticks=boundary) == boundary
    held = memories(running[who].handle)
    running[who].handle.close()
    engine.tick()
    alive = sum(memory() is not None for memory in held)
    assert isinstance(running[who].handle.done.exception(0), SessionEndedError)
    again = begin(engine, load[who], latents=1)
    run(engine, [*running, again])
    for each in (*running, again):
        each.handle.close()
    engine.tick()
    others = [each.chunks for n, each in enumerate(running) if n != who]
    left = admission.resident_bytes
    return Cancelled(left, alive, threading.active_count() - threads, len(held), others, again.chunks)


@pytest.fixture
def small(
    model: WorldModel, video: VideoModel, picture: CausalPictures, ask: Callable[..., WorldRequest]
) -> list[Session]:
    """A world of 7 units, a guided video of 8 after the 9 of its drawn first frame, and a guided picture of 10."""
    first = FirstFrame(picture, size=(48, 64), name="tiny-picture")
    film = VideoRequest(
        prompt=video.encode_text("a lake"), seed=1, latent_frames=3, guidance=2.0, steps=2,
        draw=replace(first.request("a lake", 1), steps=2),
    )  # fmt: skip
    still = PictureRequest(prompt="a lake", size=(48, 64), seed=1, steps=2, guidance=2.0, shift=3.0)
    return [
        (WorldLoop(model), ask(seed=1)),
        (VideoLoop(video, first), film),
        (PictureLoop(picture), still),
    ]


def full(load: Sequence[Session], kind: type[Admission] = Admission) -> Admission:
    """A device on which these sessions fit, and no other."""
    prices = [loop.price(wish) for loop, wish in load]
    room = sum(price.resident_bytes for price in prices) + max(price.peak_bytes for price in prices)
    return kind(memory_bytes=room)


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_cancel_at_any_boundary_of_a_load_leaves_nothing_and_disturbs_nobody(
    who: int, small: list[Session]
) -> None:
    load = [(Engine(threaded=False), session) for session in small]
    begun = [begin(engine, session, latents=1) for engine, session in load]
    units = [run(engine, [each]) for (engine, _), each in zip(load, begun, strict=True)]
    assert units == [7, 17, 10]
    chunks = [each.chunks for each in begun]
    boundaries = last_boundary(small, who)
    held = []
    for boundary in range(boundaries):
        left = cancel_at(boundary, who, small, full(small))
        held.append(left.held)

        assert (left.bytes, left.memories, left.threads) == (0, 0, 0), f"after {boundary} units"
        assert same(left.others, [each for n, each in enumerate(chunks) if n != who])
        assert same(left.next_one, chunks[who])
    assert boundaries > 15
    assert max(held) == [1, 4, 2][who]


def last_boundary(load: list[Session], who: int) -> int:
    """After how many units of the whole load this session is over, or the load."""
    engine = Engine(threaded=False, admission=full(load))
    running = [begin(engine, session, latents=1) for session in load]
    count = 0
    while not running[who].handle.done.done() and run(engine, running, ticks=1):
        count += 1
    return count


class Forgetful(Admission):
    """The planted fault: a share never comes back."""

    def release(self, key: Hashable) -> None:
        """Keep it."""


def test_control_a_share_that_is_kept_is_found(small: list[Session]) -> None:
    with pytest.raises(CapacityError, match="it would fit beside fewer sessions"):
        cancel_at(7, 1, small, full(small, Forgetful))


def test_control_a_memory_that_is_kept_is_found(small: list[Session]) -> None:
    kept: list[Any] = []

    class Hoarding(WorldLoop):
        def finalize(self, state: WorldState) -> int:
            kept.append(state)
            return super().finalize(state)

    world = small[0][0]
    assert isinstance(world, WorldLoop)
    load: list[Session] = [(Hoarding(world.model), small[0][1]), *small[1:]]

    assert cancel_at(7, 0, load, full(load)).memories == 1
