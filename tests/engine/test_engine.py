"""The engine on its own: failures stay where they happen, closing settles everything, idling costs nothing."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from worldloop.core.errors import EngineError, SessionEndedError
from worldloop.core.types import Controls
from worldloop.engine.contract import Done, Idle, Op, Plan, Result
from worldloop.engine.engine import Engine
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.testing import ScriptedPlayer, play

Ask = Callable[..., WorldRequest]
WAIT_S = 30


class FailingLoop(WorldLoop):
    """Fails where it is told: an op, or one of the loop's own methods."""

    def __init__(self, model: WorldModel, where: str) -> None:
        super().__init__(model)
        self.where = where

    @property
    def ops(self) -> Mapping[str, Op]:
        if self.where not in super().ops:
            return super().ops

        def fail(_: Plan) -> Result:
            raise RuntimeError("planted")

        return MappingProxyType({**super().ops, self.where: fail})

    def next(self, state: WorldState) -> Plan | Idle | Done:
        if self.where == "next" and state.frame == 1:
            raise RuntimeError("planted")
        return super().next(state)

    def advance(self, state: WorldState, result: Result) -> WorldState:
        if self.where == "advance" and state.frame == 1:
            raise RuntimeError("planted")
        return super().advance(state, result)

    def finalize(self, state: WorldState) -> int:
        if self.where == "finalize":
            raise RuntimeError("planted")
        return super().finalize(state)


@pytest.mark.parametrize("where", ["write_memory", "denoise", "decode", "next", "advance"])
def test_a_failure_ends_its_own_session_only(where: str, model: WorldModel, ask: Ask, caplog: Any) -> None:
    engine, loop = Engine(), WorldLoop(model)
    freed = threading.Event()
    try:
        well = engine.open(loop, ask(seed=2))
        ill = engine.open(FailingLoop(model, where), ask(), on_close=freed.set)
        healthy = [well.submit(Controls()) for _ in range(4)]
        failing = [ill.submit(Controls()) for _ in range(4)]
        error = failing[-1].exception(WAIT_S)
        emits = [future.result(WAIT_S) for future in healthy]
    finally:
        engine.close()

    assert isinstance(error, EngineError)
    assert str(error) == "RuntimeError: planted"
    assert isinstance(error.__cause__, RuntimeError)
    assert freed.is_set()
    assert [emit.frames.tobytes() for emit in emits] == [
        emit.frames.tobytes() for emit in play(loop, ask(seed=2), ScriptedPlayer.of(""), 3)
    ]
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR] == [
        True
    ]


@pytest.mark.parametrize("where", ["finalize", "on_close"])
def test_an_end_that_fails_does_not_stop_the_device(
    where: str, model: WorldModel, ask: Ask, caplog: Any
) -> None:
    def on_close() -> None:
        if where == "on_close":
            raise RuntimeError("planted")

    engine = Engine()
    try:
        engine.open(FailingLoop(model, where), ask(), on_close=on_close).close()
        after = engine.open(WorldLoop(model), ask()).submit(Controls()).result(WAIT_S)
        left = engine.sessions
    finally:
        engine.close()

    assert after.index == 0
    assert left == 1
    assert "did not end cleanly" in caplog.text


def test_what_init_refuses_reaches_the_caller(model: WorldModel, ask: Ask) -> None:
    engine = Engine()
    try:
        with pytest.raises(ValueError, match="seed=-1"):
            engine.open(WorldLoop(model), ask(seed=-1))
        left = engine.sessions
    finally:
        engine.close()

    assert left == 0


@pytest.mark.parametrize("threaded", [True, False])
def test_closing_settles_every_future(threaded: bool, model: WorldModel, ask: Ask) -> None:
    before = threading.active_count()
    engine = Engine(threaded=threaded)
    handles = [engine.open(WorldLoop(model), ask(seed=seed)) for seed in range(3)]
    futures = [handle.submit(Controls()) for handle in handles for _ in range(50)]

    engine.close()
    engine.close()

    assert all(future.done() for future in futures)
    assert isinstance(futures[-1].exception(), SessionEndedError)
    assert (engine.sessions, [handle.ended for handle in handles]) == (0, ["the engine was closed"] * 3)
    assert threading.active_count() <= before


def test_a_closed_engine_takes_nothing_more(model: WorldModel, ask: Ask) -> None:
    engine = Engine()
    handle = engine.open(WorldLoop(model), ask())
    engine.close()

    handle.close()

    assert isinstance(handle.submit(Controls()).exception(0), SessionEndedError)
    with pytest.raises(SessionEndedError, match="the engine is closed"):
        engine.open(WorldLoop(model), ask())


def test_a_consumer_that_gives_up_disturbs_nobody(model: WorldModel, ask: Ask) -> None:
    engine = Engine()
    try:
        handle = engine.open(WorldLoop(model), ask())
        dropped = handle.submit(Controls())
        assert not dropped.cancel()
        emit = handle.submit(Controls()).result(WAIT_S)
    finally:
        engine.close()

    assert emit.index == 1


def test_work_between_plans_runs_on_the_device_thread_and_raises_to_its_caller() -> None:
    def fail() -> None:
        raise LookupError("planted")

    engine = Engine()
    try:
        name = engine.call(lambda: threading.current_thread().name)
        nested = engine.call(lambda: engine.call(lambda: 7))
        with pytest.raises(LookupError, match="planted"):
            engine.call(fail)
    finally:
        engine.close()

    assert name == "worldloop-device"
    assert nested == 7


def test_each_chunk_says_what_the_device_spent_on_it(model: WorldModel, ask: Ask) -> None:
    ticks = itertools.count()
    engine = Engine(threaded=False, timer=lambda: float(next(ticks)))
    handle = engine.open(WorldLoop(model), ask())
    futures = [handle.submit(Controls()) for _ in range(3)]
    while engine.tick():
        pass

    assert [future.result(0).device_s for future in futures] == [
        {"write_memory": 1.0, "decode": 1.0},
        {"denoise": 3.0, "decode": 1.0},
        {"write_memory": 1.0, "denoise": 3.0, "decode": 1.0},
    ]


class CountingEngine(Engine):
    """Counts ticks."""

    def __init__(self) -> None:
        self.ticks = 0
        super().__init__()

    def tick(self) -> bool:
        self.ticks += 1
        return super().tick()


def test_an_idle_engine_does_not_turn(model: WorldModel, ask: Ask) -> None:
    engine = CountingEngine()
    try:
        handle = engine.open(WorldLoop(model), ask())
        handle.submit(Controls()).result(WAIT_S)
        assert engine.call(lambda: 1) == 1
        before = engine.ticks
        woken = threading.Event().wait(0.2)  # real time: what is looked for is a thread that turns in it
        assert not woken
        turned = engine.ticks - before
        assert handle.submit(Controls()).result(WAIT_S).index == 1, "and it wakes for the next input"
    finally:
        engine.close()

    assert turned <= 1, "the tick that found nothing to do"
