"""The engine's own rules, with a loop that only counts: deadlines, jobs, queues, batches, and what a failure means."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from worldloop.core.errors import (
    BusyError,
    CapacityError,
    DeviceLostError,
    DeviceMemoryError,
    EngineError,
    SessionEndedError,
)
from worldloop.engine.admission import Admission
from worldloop.engine.contract import Plan
from worldloop.engine.engine import Engine, Failure
from worldloop.engine.handle import MAX_CHUNKS, MAX_INPUTS

from .counting import CountingLoop

WAIT_S = 10


class DeadError(Exception):
    pass


def classify(error: BaseException) -> Failure:
    # By its text too, as a device's errors are told.
    if isinstance(error, DeadError) or "DeadError" in str(error):
        return Failure.DEVICE
    return Failure.MEMORY if isinstance(error, MemoryError) else Failure.SESSION


def run(engine: Engine, most: int = 10_000) -> int:
    """Tick until there is nothing to do; the number of ticks."""
    ticks = 0
    while engine.tick():
        ticks += 1
        assert ticks < most
    return ticks


def fail_for(name: str, error: Exception) -> Any:
    def check(plan: Plan) -> None:
        if plan.inputs["state"].name == name:
            raise error

    return check


def test_the_one_that_is_due_first_goes_first_and_jobs_fill_the_slack() -> None:
    loop, engine = CountingLoop(), Engine(threaded=False)
    engine.open(loop, {"name": "job", "chunks": 2, "steps": 2})
    late, soon = (engine.open(loop, {"name": name, "steps": 2}) for name in ("late", "soon"))
    late.submit(None, due=9.0)
    soon.submit(None, due=5.0)
    run(engine)

    assert [name for (name,) in loop.log] == ["soon"] * 2 + ["late"] * 2 + ["job"] * 4


def test_a_job_delays_a_frame_by_one_step_at_most() -> None:
    loop, engine = CountingLoop(), Engine(threaded=False)
    engine.open(loop, {"name": "job", "chunks": 50, "steps": 4})
    game = engine.open(loop, {"name": "game", "steps": 3})
    for _ in range(5):
        engine.tick()
        future = game.submit(None, due=1.0)
        for _ in range(3):
            engine.tick()
        assert future.done(), "the frame's three steps came next"


def test_work_that_is_left_of_a_frame_stays_as_urgent_as_the_frame_was() -> None:
    engine = Engine(threaded=False)
    game = engine.open(CountingLoop(), {"name": "game"})
    game.submit(None, due=1.0)
    run(engine)
    after_the_frame = game.due
    game.submit(None, due=7.0)
    game.submit(None, due=5.0)
    engine.tick()

    assert after_the_frame == 1.0
    assert game.due == 5.0
    game.submit(None)
    run(engine)
    assert game.due == float("inf"), "an input without a due time may wait"


def test_a_job_makes_its_chunks_and_ends_with_its_value() -> None:
    loop, engine = CountingLoop(), Engine()
    try:
        freed = threading.Event()
        job = engine.open(loop, {"name": "job", "chunks": 5}, keep_chunks=True, on_close=freed.set)
        taken = [job.take().result(WAIT_S) for _ in range(6)]
        assert freed.wait(WAIT_S)
    finally:
        engine.close()

    assert [emit.index for emit in taken[:5] if emit] == [0, 1, 2, 3, 4]
    assert taken[5] is None
    assert job.done.result(0) == 5
    assert job.ended == "5 chunks are made"
    assert job.state is None


def test_a_job_whose_chunks_nobody_takes_stands_still_and_holds_up_nobody() -> None:
    loop, engine = CountingLoop(), Engine(threaded=False)
    stuck = engine.open(loop, {"name": "stuck", "chunks": 10}, keep_chunks=True)
    other = engine.open(loop, {"name": "other", "chunks": 10}, keep_chunks=True)
    got = []
    for _ in range(40):
        engine.tick()
        future = other.take()
        engine.tick()
        got.append(future)
        if other.state is None:
            break

    assert other.done.result(0) == 10
    assert stuck.state is not None
    assert stuck.state.made == MAX_CHUNKS
    first = stuck.take()
    run(engine)
    assert first.result(0).index == 0
    assert stuck.state.made == MAX_CHUNKS + 1


def test_a_cancelled_job_tells_whoever_waits() -> None:
    engine = Engine(threaded=False)
    loop = CountingLoop()
    job = engine.open(loop, {"name": "job", "chunks": 10}, keep_chunks=True)
    first, second = job.take(), job.take()
    engine.tick()
    job.close("cancelled")
    run(engine)

    assert first.result(0).index == 0
    for future in (second, job.done, job.take()):
        engine.tick()
        with pytest.raises(SessionEndedError, match="cancelled"):
            future.result(0)


def test_a_queue_has_an_end() -> None:
    engine = Engine(threaded=False)
    handle = engine.open(CountingLoop(), {"name": "game"})
    futures = [handle.submit(None) for _ in range(MAX_INPUTS + 3)]
    run(engine)

    assert [future.result(0).index for future in futures[:MAX_INPUTS]] == list(range(MAX_INPUTS))
    for future in futures[MAX_INPUTS:]:
        with pytest.raises(BusyError, match=f"{MAX_INPUTS} inputs wait already"):
            future.result(0)
    assert handle.submit(None).done() is False
    assert run(engine) == 1


def test_a_bad_input_is_told_to_whoever_offered_it_and_to_nobody_else() -> None:
    engine = Engine(threaded=False)
    handle = engine.open(CountingLoop(), {"name": "game"})
    bad, good = handle.submit(ValueError("planted")), handle.submit(None)
    run(engine)

    with pytest.raises(ValueError, match="planted"):
        bad.result(0)
    assert good.result(0).index == 0


def test_a_chunk_that_an_input_shaped_goes_to_both_who_wait_for_it() -> None:
    engine = Engine(threaded=False)
    handle = engine.open(CountingLoop(), {"name": "job"}, keep_chunks=True)
    asked, taken = handle.submit(None), handle.take()
    run(engine)

    assert asked.result(0) == taken.result(0)


def test_alike_sessions_share_a_batch_and_get_their_own_chunks() -> None:
    loop, engine = CountingLoop(batched=True), Engine(threaded=False, largest_batch=3)
    handles = [
        engine.open(loop, {"name": name, "size": size})
        for name, size in zip("abcde", (1, 1, 2, 1, 1), strict=True)
    ]
    futures = [handle.submit(None, due=float(n)) for n, handle in enumerate(handles)]
    ticks = run(engine)

    assert loop.log == [["a", "b", "d"], ["c"], ["e"]]
    assert [future.result(0).index for future in futures] == [0] * 5
    assert (ticks, engine.batches, engine.plans) == (3, 3, 5)


def test_exact_mode_and_loops_without_a_batched_form_run_one_by_one() -> None:
    for loop, largest in ((CountingLoop(batched=True), 1), (CountingLoop(), 8)):
        engine = Engine(threaded=False, largest_batch=largest)
        for name in "ab":
            engine.open(loop, {"name": name}).submit(None)
        run(engine)
        assert loop.log == [["a"], ["b"]]


def test_two_loops_never_share_a_batch() -> None:
    engine = Engine(threaded=False, largest_batch=8)
    loops = [CountingLoop(batched=True) for _ in range(2)]
    for loop in loops:
        engine.open(loop, {"name": "a"}).submit(None)
    run(engine)

    assert [loop.log for loop in loops] == [[["a"]], [["a"]]]


@pytest.mark.parametrize("error", [ValueError("planted"), MemoryError("planted")])
def test_one_bad_plan_in_a_batch_fails_alone(error: Exception, caplog: Any) -> None:
    relieved: list[int] = []
    loop = CountingLoop(fail_for("b", error), batched=True)
    engine = Engine(
        threaded=False, largest_batch=3, classify=classify, relieve=lambda: relieved.append(engine.sessions)
    )
    futures = {name: engine.open(loop, {"name": name}).submit(None) for name in "abc"}
    run(engine)

    assert [futures[name].exception(0) for name in "ac"] == [None, None]
    assert isinstance(futures["b"].exception(0), EngineError)
    assert isinstance(futures["b"].exception(0), DeviceMemoryError) == isinstance(error, MemoryError)
    assert loop.log == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert "b0 failed" in caplog.text


def test_too_little_memory_ends_one_session_and_gives_the_cache_back_after_it(caplog: Any) -> None:
    relieved: list[int] = []
    loop = CountingLoop(fail_for("big", MemoryError("planted")))
    engine = Engine(threaded=False, classify=classify, relieve=lambda: relieved.append(engine.sessions))
    big, small = (engine.open(loop, {"name": name}) for name in ("big", "small"))
    futures = big.submit(None), small.submit(None), small.submit(None)
    run(engine)

    with pytest.raises(DeviceMemoryError, match="ran out of memory: planted"):
        futures[0].result(0)
    assert [future.result(0).index for future in futures[1:]] == [0, 1]
    assert relieved == [1], "its session was gone by then"
    assert engine.lost is None
    assert engine.open(loop, {"name": "small"}).state is not None
    assert "big0 failed" in caplog.text


@pytest.mark.parametrize(("error", "lost"), [(ValueError("planted"), False), (DeadError("planted"), True)])
def test_a_cache_that_cannot_be_given_back_stops_nothing_unless_the_device_is_dead(
    error: Exception, lost: bool, caplog: Any
) -> None:
    def fail() -> None:
        raise error

    loop = CountingLoop(fail_for("big", MemoryError("planted")))
    engine = Engine(threaded=False, classify=classify, relieve=fail)
    big, small = (engine.open(loop, {"name": name}) for name in ("big", "small"))
    futures = big.submit(None), small.submit(None)
    run(engine)

    assert isinstance(futures[0].exception(0), DeviceMemoryError)
    assert isinstance(futures[1].exception(0), DeviceLostError) == lost
    assert (engine.lost is not None) == lost
    assert "was not given back" in caplog.text


def test_an_error_of_the_engine_itself_leaves_nobody_waiting(caplog: Any) -> None:
    def confused(_: BaseException) -> Failure:
        raise RuntimeError("planted")

    engine, loop = Engine(), CountingLoop(fail_for("ill", ValueError("any")))
    engine._classify = confused
    try:
        handles = [engine.open(loop, {"name": name}) for name in ("ill", "well")]
        futures = engine.call(lambda: [handle.submit(None) for handle in handles])
        for future in futures:
            with pytest.raises(DeviceLostError, match="the engine failed: RuntimeError: planted"):
                future.result(WAIT_S)
        with pytest.raises(DeviceLostError, match="the engine failed"):
            engine.open(loop, {"name": "c"})
    finally:
        engine.close()
    assert "the engine failed" in caplog.text


def test_a_batch_that_gives_too_few_results_is_run_one_by_one(caplog: Any) -> None:
    class Short(CountingLoop):
        def _run(self, plans: Any) -> Any:
            return super()._run(plans)[: max(1, len(plans) - 1)]

    engine, loop = Engine(threaded=False, largest_batch=2), Short(batched=True)
    futures = [engine.open(loop, {"name": name}).submit(None) for name in "ab"]
    run(engine)

    assert [future.result(0).index for future in futures] == [0, 0]
    assert loop.log == [["a", "b"], ["a"], ["b"]]


def test_whoever_waits_for_the_end_may_give_up() -> None:
    engine, loop = Engine(threaded=False), CountingLoop()
    handle, other = engine.open(loop, {"chunks": 1}), engine.open(loop, {"chunks": 1})
    assert not handle.done.cancel()
    run(engine)

    assert [each.done.result(0) for each in (handle, other)] == [1, 1]


def test_a_loop_is_asked_again_only_when_its_state_may_have_changed() -> None:
    asked: list[str] = []

    class Asked(CountingLoop):
        def next(self, state: Any) -> Any:
            asked.append(state.name)
            return super().next(state)

    engine, loop = Engine(threaded=False), Asked()
    a, b = (engine.open(loop, {"name": name, "steps": 3}) for name in "ab")
    a.submit(None, due=1.0)
    b.submit(None, due=2.0)
    for _ in range(3):
        engine.tick()
    assert asked == ["a", "b", "a", "a"]

    engine.tick()
    assert asked[4:] == ["a"], "it waits; b's plan is known"
    engine.call(lambda: None)
    engine.tick()
    assert asked[5:] == ["a", "b"]
    engine.tick()
    assert asked[7:] == ["b"]
    a.submit(None)
    engine.tick()
    assert asked[8:] == ["a", "b"]


@pytest.mark.parametrize("where", ["plan", "call", "init"])
def test_a_dead_device_ends_everyone_and_lets_nobody_in(where: str, caplog: Any) -> None:
    loop = CountingLoop(fail_for("ill", DeadError("planted")))
    engine = Engine(threaded=False, classify=classify)
    others = [engine.open(loop, {"name": "well"}).submit(None) for _ in range(3)]
    if where == "plan":
        ill = engine.open(loop, {"name": "ill"})
        futures = [ill.submit(None, due=0.0), *others]
    else:
        futures = others

        def die() -> None:
            raise DeadError("planted")

        with pytest.raises(DeviceLostError, match="out of service: DeadError: planted"):
            if where == "call":
                engine.call(die)
            else:
                engine.open(loop, {"error": DeadError("planted")})
    run(engine)

    for future in futures:
        with pytest.raises(DeviceLostError):
            future.result(0)
    assert engine.sessions == 0
    assert engine.admission.resident_bytes == 0
    assert engine.lost is not None
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="planted") as refused:
            engine.open(loop, {"name": "new"})
        assert str(refused.value) == engine.lost == "the device is out of service: DeadError: planted"


def test_whoever_does_not_fit_is_refused_before_anything_is_made() -> None:
    loop = CountingLoop()
    engine = Engine(threaded=False, admission=Admission(memory_bytes=100))
    held = engine.open(loop, {"name": "a", "bytes": 80})
    with pytest.raises(CapacityError):
        engine.open(loop, {"name": "b", "bytes": 30, "error": AssertionError("init was called")})
    held.close()
    engine.tick()

    assert engine.open(loop, {"name": "b", "bytes": 30}).state is not None


@pytest.mark.parametrize("how", ["close", "done", "failure", "init", "engine closes"])
def test_a_share_comes_back_on_every_path(how: str, caplog: Any) -> None:
    loop = CountingLoop(fail_for("ill", ValueError("planted")))
    engine = Engine(threaded=False, admission=Admission(memory_bytes=100))
    request = {"name": "ill" if how == "failure" else "a", "bytes": 100, "chunks": 1}
    if how == "init":
        with pytest.raises(ValueError, match="planted"):
            engine.open(loop, {**request, "error": ValueError("planted")})
    else:
        handle = engine.open(loop, request)
        assert engine.admission.free_bytes() == 0
        if how == "close":
            handle.close()
        if how == "engine closes":
            engine.close()
        else:
            run(engine)

    assert engine.admission.free_bytes() == 100


def test_a_session_that_began_before_its_cost_was_known_counts_from_its_first_chunk_on() -> None:
    pace = [0.1]
    now = itertools.accumulate(itertools.cycle([0.0]), lambda total, _: total + pace[0])
    loop = CountingLoop()
    engine = Engine(threaded=False, timer=lambda: next(now), admission=Admission(load_limit=1.0))
    handles = [engine.open(loop, {"name": name}, rate=2.0) for name in "ab"]
    assert engine.admission.load == 0
    for handle in handles:
        handle.submit(None)
    run(engine)

    assert engine.admission.load == pytest.approx(0.4)
    pace[0] = 0.4
    for _ in range(40):
        handles[0].submit(None)
        run(engine)
    # The second was measured last when all was quick.
    assert engine.admission.load == pytest.approx(0.8 + 0.2, rel=0.05)
    with pytest.raises(CapacityError, match="this needs"):
        engine.open(loop, {"name": "c"}, rate=2.0)
    for handle in handles:
        handle.close()
    engine.tick()
    assert engine.admission.load == 0


def test_load_is_measured_and_shared_out() -> None:
    times = iter(range(10_000))
    loop = CountingLoop()
    engine = Engine(threaded=False, timer=lambda: float(next(times)), admission=Admission(load_limit=1.0))
    first = engine.open(loop, {"name": "a", "steps": 2}, rate=0.3)
    assert engine.admission.load == 0, "nothing has been seen yet"
    first.submit(None)
    run(engine)
    first.close()
    engine.tick()

    engine.open(loop, {"name": "a", "steps": 2}, rate=0.3)
    assert engine.admission.load == pytest.approx(0.6)
    with pytest.raises(CapacityError, match="40% of its time left and this needs 60%"):
        engine.open(loop, {"name": "b", "steps": 2}, rate=0.3)
    engine.open(loop, {"name": "job", "steps": 2, "chunks": 10})
    assert engine.seconds_left(loop.price({"steps": 2}), chunks=10) == pytest.approx(50.0)
