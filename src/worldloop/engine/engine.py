"""The engine: one thread that owns the device and moves many sessions on, one plan at a time.

    command -> session -> plan -> run -> advance -> emit          (`Engine.tick`, the whole flow)

Owns the thread, the sessions and their futures. Does not own models (plans name their work), deadlines (inputs carry
them) or pacing (`session`). Everything public may be called from any thread and returns at once unless it says so.
An error in a plan ends its own session only.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Generic, TypeVar

from worldloop.core.errors import EngineError, SessionEndedError
from worldloop.engine.contract import Done, Emit, Idle, Loop, Plan, Result, StateT
from worldloop.engine.scheduler import Candidate, pick

logger = logging.getLogger("worldloop.engine")
ValueT = TypeVar("ValueT")


class Handle(Generic[StateT]):
    """One session of the engine, as its owner holds it.

    Attributes:
        state: the session's own; None once it has ended, so that a kept handle keeps no memory.
        ended: why it ended, or None.
    """

    def __init__(self, engine: Engine, session: int, loop: Loop[StateT], state: StateT) -> None:
        self._engine = engine
        self.session = session
        self.loop = loop
        self.state: StateT | None = state
        self.last_tick = -1
        self.device_s: dict[str, float] = {}
        self.waiting: dict[int, Future[Emit]] = {}
        self.ended: str | None = None
        self.on_close: Callable[[], None] | None = None

    def submit(self, value: Any) -> Future[Emit]:
        """Queue one input; the future gets the chunk that it shaped, or the reason why there is none."""
        future: Future[Emit] = Future()
        future.set_running_or_notify_cancel()  # a consumer that gives up must not disturb the device thread
        try:
            self._engine.command(lambda: self._submit(value, future))
        except SessionEndedError as error:
            future.set_exception(error)
        return future

    def close(self, reason: str = "the session was closed") -> None:
        """End the session before its next plan. May be called twice."""
        with contextlib.suppress(SessionEndedError):  # a closed engine has ended this too
            self._engine.command(lambda: self._engine.end(self, SessionEndedError(reason)))

    def _submit(self, value: Any, future: Future[Emit]) -> None:
        if self.state is None:
            future.set_exception(SessionEndedError(self.ended))
            return
        self.waiting[self.loop.offer(self.state, value)] = future


class Engine:
    """Sessions on one device.

    Args:
        threaded: run ticks on an own thread until `close`; False lets the caller tick (tests, tools).
        timer: seconds that never run backwards, to tell how long each op took.
    """

    def __init__(self, *, threaded: bool = True, timer: Callable[[], float] = time.perf_counter) -> None:
        self._timer = timer
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

    def tick(self) -> bool:
        """Do one unit of work; False when there was nothing to do."""
        self._obey()
        candidates = self._candidates()
        if not candidates:
            return False
        chosen = pick(candidates)
        handle = self._sessions[chosen.session]
        result = self._run(handle, chosen.plan)
        if result is not None:
            self._deliver(handle, result)
        return True

    def open(
        self, loop: Loop[StateT], request: Any, *, on_close: Callable[[], None] | None = None
    ) -> Handle[StateT]:
        """Begin a session; blocks while its state is made on the device thread. Raises what `init` raises."""

        def make() -> Handle[StateT]:
            handle = Handle(self, next(self._ids), loop, loop.init(request))
            handle.on_close = on_close
            self._sessions[handle.session] = handle
            return handle

        return self.call(make)

    def call(self, work: Callable[[], ValueT]) -> ValueT:
        """Run `work` on the device thread between two plans; blocks until it is done, raises what it raises."""
        if self._thread is None or threading.current_thread() is self._thread:
            return work()
        future: Future[ValueT] = Future()

        def run() -> None:
            try:
                future.set_result(work())
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

    def end(self, handle: Handle[Any], error: Exception) -> None:
        """Device thread: end a session; its futures get `error`."""
        if self._sessions.pop(handle.session, None) is None:
            return
        handle.ended = str(error)
        state, handle.state = handle.state, None
        for future in handle.waiting.values():
            future.set_exception(error)
        handle.waiting.clear()
        for step in (lambda: handle.loop.finalize(state), handle.on_close or _nothing):
            try:
                step()
            except Exception:  # this session is over either way, and the others go on
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
            try:
                plan = handle.loop.next(handle.state)
            except Exception as error:  # noqa: BLE001 -- one session's failure is not another's
                self._fail(handle, error, "next")
                continue
            if isinstance(plan, Done):
                self.end(handle, SessionEndedError(plan.reason))
            elif not isinstance(plan, Idle):
                ready.append(Candidate(session=handle.session, plan=plan, last_tick=handle.last_tick))
        return ready

    def _run(self, handle: Handle[Any], plan: Plan) -> Result | None:
        handle.last_tick = self._ticks
        self._ticks += 1
        try:
            began = self._timer()
            result = handle.loop.ops[plan.op](plan)
            handle.device_s[plan.op] = handle.device_s.get(plan.op, 0.0) + self._timer() - began
            handle.state = handle.loop.advance(handle.state, result)
        except Exception as error:  # noqa: BLE001 -- one session's failure is not another's
            self._fail(handle, error, plan.label)
            return None
        return result

    def _fail(self, handle: Handle[Any], error: Exception, label: str) -> None:
        logger.error("%s failed", label, exc_info=error)
        failure = EngineError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        self.end(handle, failure)

    def _deliver(self, handle: Handle[Any], result: Result) -> None:
        for emit in result.emits:
            for input_id in emit.input_ids:
                future = handle.waiting.pop(input_id, None)
                if future is not None:
                    future.set_result(replace(emit, device_s=handle.device_s))
                    handle.device_s = {}

    def _work(self) -> None:
        while not self._closed:
            if self.tick():
                continue
            with self._wake:
                if not self._commands and not self._closed:
                    self._wake.wait()


def _nothing() -> None:
    pass
