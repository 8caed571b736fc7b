"""Pictures in the engine, beside worlds and each other: the bytes that each has alone, urgency, and cancelling."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from worldloop.core.errors import SessionEndedError
from worldloop.core.types import Controls
from worldloop.engine.admission import Admission
from worldloop.engine.contract import Done, Loop, Plan
from worldloop.engine.engine import Engine
from worldloop.loops.model import WorldModel
from worldloop.loops.picture import PictureLoop, PictureRequest, PictureState
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.testing import random_picture_model, run_unit

from .interleaved import Order, Session, alone, in_order, in_turn


@pytest.fixture(scope="module")
def pictures(one_thread: None) -> PictureLoop:
    return PictureLoop(random_picture_model())


def wish(**changes: Any) -> PictureRequest:
    own = {"prompt": "a lake", "size": (48, 64), "seed": 3, "steps": 3, "guidance": 2.0, "shift": 5.0}
    return PictureRequest(**{**own, **changes})


@pytest.fixture(scope="module")
def sessions(model: WorldModel, pictures: PictureLoop, ask: Callable[..., WorldRequest]) -> list[Session]:
    """Two worlds and three pictures of one model, two of them of one size."""
    world = WorldLoop(model)
    return [
        (world, ask(seed=1)),
        (pictures, wish(seed=1)),
        (pictures, wish(seed=2, negative="walk", previews=1)),
        (world, ask(seed=2, sphere="all")),
        (pictures, wish(seed=1, size=(64, 96), guidance=1.0)),
    ]


@pytest.mark.parametrize("order", [in_turn, lambda: lambda ready: ready[-1], lambda: random.Random(1).choice])
def test_worlds_and_pictures_interleaved_are_alone(
    order: Callable[[], Order], sessions: list[Session]
) -> None:
    together = in_order(sessions, order())

    assert together == alone(sessions)
    assert len({*together}) == 5, "five different sessions"


class SharedReadingLoop(PictureLoop):
    """The planted fault: what all pictures read is what the newest one was told."""

    def advance(self, state: PictureState, result: Any) -> PictureState:
        super().advance(state, result)
        if result.outputs["op"] == "condition":
            self.latest = state.branches
        return state

    def next(self, state: PictureState) -> Plan | Done:
        plan = super().next(state)
        if isinstance(plan, Plan) and plan.op == "denoise":
            for branch, latest in zip(state.branches, self.latest, strict=False):
                branch.condition = latest.condition
        return plan


def test_control_a_shared_text_is_found(pictures: PictureLoop) -> None:
    faulty = SharedReadingLoop(pictures.model)
    shared: list[Session] = [(faulty, wish(prompt="a lake")), (faulty, wish(prompt="walk in the meadow"))]

    assert in_order(shared, in_turn()) != alone(shared)


def test_a_world_waits_for_one_pass_of_a_picture_at_most(
    model: WorldModel, ask: Callable[..., WorldRequest], pictures: PictureLoop
) -> None:
    log: list[str] = []

    def told(loop: Loop[Any], name: str) -> Loop[Any]:
        ops = dict(loop.ops)
        loop._ops = {op: lambda plan, op=op: (log.append(f"{name}.{op}"), ops[op](plan))[1] for op in ops}  # type: ignore[attr-defined]
        return loop

    engine = Engine(threaded=False)
    world = engine.open(told(WorldLoop(model), "world"), ask(seed=1))
    picture = engine.open(told(PictureLoop(pictures.model), "picture"), wish(), keep_chunks=True)
    taken = picture.take()
    assert engine.tick() and engine.tick()
    assert log[-1].startswith("picture")
    log.clear()
    game = world.submit(Controls(), due=1.0)
    while not game.done():
        engine.tick()

    assert all(entry.startswith("world") for entry in log), "nothing of the picture once a frame was due"
    while not taken.done():
        assert engine.tick()
    assert log[-1] == "picture.denoise"


def test_a_cancel_at_any_unit_leaves_nothing_behind(pictures: PictureLoop) -> None:
    loop, request = pictures, wish(negative="meadow", previews=1)
    expected = alone([(PictureLoop(loop.model), wish(seed=9))])
    state, units = loop.init(request), 0
    while not isinstance(loop.next(state), Done):
        run_unit(loop, state)
        units += 1
    for boundary in range(units - 1):
        engine = Engine(threaded=False, admission=Admission(memory_bytes=2**40))
        free, closed = engine.admission.free_bytes(), []
        handle: Any = engine.open(
            loop, request, keep_chunks=True, on_close=lambda closed=closed: closed.append(1)
        )
        takes = [handle.take() for _ in range(5)]
        held = engine.admission.resident_bytes

        ticks = sum(engine.tick() for _ in range(boundary))
        handle.close()
        handle.close()

        assert (ticks, engine.tick(), engine.sessions, closed) == (boundary, False, 0, [1])
        assert held > 0
        assert engine.admission.free_bytes() == free
        assert isinstance(takes[-1].exception(0), SessionEndedError)
        assert handle.state is None
    assert alone([(loop, wish(seed=9))]) == expected


def test_time_left_is_known_for_another_size_too(pictures: PictureLoop) -> None:
    engine = Engine(threaded=False)
    assert engine.seconds_left(pictures.price(wish()), chunks=1) is None
    handle = engine.open(pictures, wish(), keep_chunks=True)
    takes = [handle.take() for _ in range(4)]
    while engine.tick():
        pass
    small, large = (
        engine.seconds_left(pictures.price(wish(size=size)), chunks=1) for size in ((48, 64), (64, 96))
    )

    assert all(take.done() for take in takes)
    assert small is not None and large is not None
    assert 1.2 * small < large < 2.1 * small


def test_the_result_is_whole_once_the_last_chunk_is_there(pictures: PictureLoop) -> None:
    engine = Engine(threaded=False)
    handle = engine.open(pictures, wish(), keep_chunks=True)
    takes = [handle.take() for _ in range(4)]
    while engine.tick():
        pass
    result = handle.done.result(0)

    assert np.array_equal(takes[-1].result(0).frames[0], result.pixels)  # type: ignore[union-attr]
    assert result.latent.latent.dtype == torch.float32
    assert tuple(result.latent.latent.shape) == (8, 3, 4)
    assert result.steps == 3
