"""The engine: one thread that owns the device and moves many sessions on, one plan (or one batch) at a time.

    command -> candidates -> pick -> run -> advance -> emit          (`Engine.tick`, the whole flow)

Owns the thread, the sessions, what work costs and who is let in. Does not own models (plans name their work), deadlines
(inputs carry them) or pacing (`session`). Everything public may be called from any thread and returns at once unless
it says so. An error in a plan ends its own session only; a device that is lost ends all.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, TypeVar

from worldloop.core.errors import DeviceLostError, DeviceMemoryError, EngineError, SessionEndedError
from worldloop.engine.admission import Admission, Share
from worldloop.engine.contract import Done, Idle, Loop, Plan, Price, Result, StateT
from worldloop.engine.cost import CostModel
from worldloop.engine.handle import Handle
from worldloop.engine.scheduler import Candidate, pick

logger = logging.getLogger("worldloop.engine")
ValueT = TypeVar("ValueT")


class Failure(Enum):
    """What an error in a plan means for the others."""

    SESSION = "its own session ends"
    MEMORY = "its own session ends, and what the device has cached is given back"
    DEVICE = "the device is lost"


class Engine:
    """Sessions on one device.

    Args:
        threaded: run ticks on an own thread until `close`; False lets the caller tick (tests, tools).
        timer: seconds that never run backwards; deadlines are by it.
        largest_batch: sessions that may run as one batch. 1 is mode exact: every session's bytes are those it would
            have alone. More is mode fast: equal to a tolerance.
        admission: who is let in; everyone when None.
        classify: what an error means; its own session's when None.
        relieve: gives back what the device has cached, after an error of kind MEMORY.

    Attributes:
        cost: what work has been seen to cost.
        lost: why the device is out of service, or None.
        choosing_s, busy_s: seconds spent choosing plans, and running them.
        plans, batches: units of work done, and calls that did them.
    """

    def __init__(
        self,
        *,
        threaded: bool = True,
        timer: Callable[[], float] = time.monotonic,
        largest_batch: int = 1,
        admission: Admission | None = None,
        classify: Callable[[BaseException], Failure] | None = None,
        relieve: Callable[[], None] | None = None,
    ) -> None:
        self.timer = timer
        self.cost = CostModel()
        self.admission = admission or Admission()
        self.lost: str | None = None
        self.plans = self.batches = 0
        self.busy_s = self.choosing_s = 0.0
        self._largest_batch = largest_batch
        self._classify = classify or (lambda _: Failure.SESSION)
        self._relieve = relieve or _nothing
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._sessions: dict[int, Handle[Any]] = {}
        self._ids = itertools.count(1)
        self._ticks = 0
        self._closed = False
        self._thread = (
            threading.Thread(target=self._work, name="worldloop-device", daemon=True) if threaded else None
        )
        if self._thread is not None:
            self._thread.start()

    @property
    def sessions(self) -> int:
        """Number of live sessions."""
        return len(self._sessions)

    @property
    def queued(self) -> int:
        """Inputs that wait for their chunk, of all sessions."""
        return sum(handle.waiting for handle in tuple(self._sessions.values()))

    def tick(self) -> bool:
        """Do one unit of work, or one batch of them; False when there was nothing to do."""
        self._obey()
        began = self.timer()
        candidates = self._candidates()
        if not candidates:
            return False
        chosen = pick(candidates, largest=self._largest_batch)
        self.choosing_s += self.timer() - began
        self._run([(self._sessions[each.session], each.plan) for each in chosen])
        return True

    def open(
        self,
        loop: Loop[StateT],
        request: Any,
        *,
        rate: float = 0.0,
        keep_chunks: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> Handle[StateT]:
        """Begin a session; blocks while its state is made on the device thread.

        Args:
            loop: sessions of one loop object may share a batch.
            request: what the loop's `init` takes.
            rate: chunks a second that it must make to keep up; 0 for work that may wait.
            keep_chunks: every chunk waits for `Handle.take`.
            on_close: called once, on the device thread, when the session is over.

        Raises:
            CapacityError: it does not fit beside the others.
            DeviceLostError: the device is out of service.
            ValueError: whatever `init` refuses.
        """

        def make() -> Handle[StateT]:
            if self.lost is not None:
                raise DeviceLostError(self.lost)
            session, price = next(self._ids), loop.price(request)
            self.admission.admit(session, self.share(price, rate))
            try:
                handle = Handle(
                    self, session, loop, loop.init(request), price=price, rate=rate, keep_chunks=keep_chunks
                )
            except BaseException:
                self.admission.release(session)
                raise
            handle.on_close = on_close
            self._sessions[session] = handle
            return handle

        return self.call(make)

    def share(self, price: Price, rate: float) -> Share:
        """What a session of this price takes at `rate` chunks a second; its load is 0 while its cost is unknown."""
        seconds = self.cost.seconds(price.chunk) if rate else None
        return Share(
            resident_bytes=price.resident_bytes,
            peak_bytes=price.peak_bytes,
            load=rate * seconds if seconds is not None else 0.0,
        )

    def seconds_left(self, price: Price, *, chunks: int) -> float | None:
        """Estimate for `chunks` more chunks in the time that live sessions leave; None while it is unknown."""
        seconds = self.cost.seconds(price.chunk)
        if seconds is None:
            return None
        return chunks * seconds / max(0.05, 1.0 - self.admission.load)

    def call(self, work: Callable[[], ValueT]) -> ValueT:
        """Run `work` on the device thread between two plans; blocks until it is done, raises what it raises.

        Raises:
            DeviceMemoryError, DeviceLostError: in place of the device's own error.
        """
        if self._thread is None or threading.current_thread() is self._thread:
            return self._between_plans(work)
        future: Future[ValueT] = Future()

        def run() -> None:
            try:
                future.set_result(self._between_plans(work))
            except BaseException as error:  # noqa: BLE001 -- handed to the caller, who raises it
                future.set_exception(error)

        self.command(run)
        return future.result()

    def command(self, command: Callable[[], None]) -> None:
        """Have `command` run on the device thread before the next plan."""
        with self._wake:
            if self._closed:
                raise SessionEndedError("the engine is closed")
            self._commands.append(command)
            self._wake.notify()

    def end(self, handle: Handle[Any], error: Exception | None, reason: str = "") -> None:
        """Device thread: end a session. Its futures get `error`; None says that its loop was done, with `reason`."""
        if self._sessions.pop(handle.session, None) is None:
            return
        handle.ended = reason if error is None else str(error)
        state, handle.state, handle.asked = handle.state, None, None
        value: Any = None
        try:
            value = handle.loop.finalize(state)
        except Exception as failure:  # this session is over either way, and the others go on
            logger.exception("session %d did not end cleanly", handle.session)
            error = error or EngineError(f"{type(failure).__name__}: {failure}")
        self.admission.release(handle.session)
        handle.settle(error, value)
        try:
            (handle.on_close or _nothing)()
        except Exception:
            logger.exception("session %d did not end cleanly", handle.session)

    def close(self) -> None:
        """End every session and the thread; blocks until both are done. May be called twice."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        self._obey()
        for handle in list(self._sessions.values()):
            self.end(handle, SessionEndedError("the engine was closed"))

    def _obey(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _candidates(self) -> list[Candidate]:
        ready = []
        for handle in list(self._sessions.values()):
            if handle.stands_still:
                continue
            try:
                plan = handle.asked = handle.asked or handle.loop.next(handle.state)
            except Exception as error:  # noqa: BLE001 -- one session's failure is not another's
                self._fail([handle], error, "next")
                continue
            if isinstance(plan, Done):
                self.end(handle, None, plan.reason)
            elif not isinstance(plan, Idle):
                ready.append(
                    Candidate(
                        session=handle.session,
                        plan=plan,
                        due=handle.due,
                        last_tick=handle.last_tick,
                        group=id(handle.loop) if plan.op in handle.loop.batch_ops else -handle.session,
                    )
                )
        return ready

    def _between_plans(self, work: Callable[[], ValueT]) -> ValueT:
        for handle in self._sessions.values():
            handle.asked = None  # the work may change any session's state
        try:
            return work()
        except Exception as error:
            if isinstance(error, EngineError) or self._classify(error) is Failure.SESSION:
                raise
            failure = self._meaning(error)
            self._answer(failure, ())
            raise failure from error

    def _run(self, batch: Sequence[tuple[Handle[Any], Plan]]) -> None:
        self._ticks += 1
        self.batches += 1
        self.plans += len(batch)
        handles, plans = zip(*batch, strict=True)
        for handle in handles:
            handle.last_tick = self._ticks
        loop, op = handles[0].loop, plans[0].op
        began = self.timer()
        try:
            results = [loop.ops[op](plans[0])] if len(plans) == 1 else loop.batch_ops[op](plans)
            done = list(zip(handles, plans, results, strict=True))
        except Exception as error:  # noqa: BLE001 -- one session's failure is not another's
            if len(batch) == 1 or self._classify(error) is Failure.DEVICE:
                self._fail(handles, error, plans[0].label)
            else:
                # A plan may be run twice: alone, only the one at fault fails.
                self._give_back()
                for each in batch:
                    self._run([each])
            return
        seconds = self.timer() - began
        self.busy_s += seconds
        for handle, plan, result in done:
            self.cost.seen(plan.work, seconds / len(plans))
            self._advance(handle, plan, result, seconds / len(plans))

    def _advance(self, handle: Handle[Any], plan: Plan, result: Result, seconds: float) -> None:
        handle.device_s[plan.op] = handle.device_s.get(plan.op, 0.0) + seconds
        handle.asked = None
        try:
            handle.state = handle.loop.advance(handle.state, result)
            for emit in result.emits:
                handle.deliver(emit)
                self.admission.revise(handle.session, self.share(handle.price, handle.rate))
        except Exception as error:  # noqa: BLE001
            self._fail([handle], error, plan.label)

    def _fail(self, handles: Sequence[Handle[Any]], error: Exception, label: str) -> None:
        logger.error("%s failed", label, exc_info=error)
        failure = self._meaning(error)
        failure.__cause__ = error
        self._answer(failure, handles)

    def _meaning(self, error: Exception) -> EngineError:
        """The error that a session's owner gets."""
        kind, text = self._classify(error), f"{type(error).__name__}: {error}"
        if kind is Failure.MEMORY:
            return DeviceMemoryError(f"the device ran out of memory: {error}")
        if kind is Failure.DEVICE:
            return DeviceLostError(f"the device is out of service: {text}")
        return EngineError(text)

    def _answer(self, failure: EngineError, handles: Sequence[Handle[Any]]) -> None:
        """End the sessions that a failure is about, and do what it means for the device."""
        if isinstance(failure, DeviceLostError):
            self.lost = str(failure)
            handles = list(self._sessions.values())
        for handle in handles:
            self.end(handle, failure)
        if isinstance(failure, DeviceMemoryError):
            self._give_back()

    def _give_back(self) -> None:
        """What the device has cached; a device that cannot even do that is lost."""
        try:
            self._relieve()
        except Exception as error:
            logger.exception("the device's cache was not given back")
            if self._classify(error) is Failure.DEVICE:
                self._answer(self._meaning(error), ())

    def _work(self) -> None:
        while not self._closed:
            try:
                ticked = self.tick()
            except Exception as error:  # nothing may leave callers waiting for a thread that is gone
                logger.exception("the engine failed")
                self._answer(DeviceLostError(f"the engine failed: {type(error).__name__}: {error}"), ())
                continue
            if ticked:
                continue
            with self._wake:
                if not self._commands and not self._closed:
                    self._wake.wait()


def _nothing() -> None:
    pass
