"""One session of the engine, as its owner holds it.

Owns what waits for the session: futures of its inputs, when they are due, and chunks that nobody has taken yet. Does
not own the order of work (`engine`). `submit`, `take` and `close` may be called from any thread; the rest is the device
thread's.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Generic, Protocol

from worldloop.core.errors import BusyError, SessionEndedError
from worldloop.engine.contract import Done, Emit, Idle, Loop, Plan, Price, StateT

MAX_INPUTS = 64
"""Inputs of one session that may wait."""

MAX_CHUNKS = 2
"""Chunks that may wait to be taken; a session whose chunks nobody takes stands still."""


class Owner(Protocol):
    """What a handle needs of its engine."""

    def command(self, command: Callable[[], None]) -> None: ...

    def end(self, handle: Handle[Any], error: Exception | None) -> None: ...


class Handle(Generic[StateT]):
    """A session with its future.

    Args:
        engine: whose it is.
        session: its number.
        state: its own.
        price: what it was let in for.
        rate: chunks a second that it must make; 0 for work that may wait.
        keep_chunks: whether every chunk waits for `take`; without it, only inputs' futures get theirs.

    Attributes:
        asked: what the loop's `next` said of the state as it is; None when it is to be asked again.
        state: None once it has ended, so that a kept handle keeps no memory.
        ended: why it ended, or None.
        done: what `finalize` gave when the loop was done, or the reason why it was not.
        due: when the next chunk is due, by the engine's timer; infinity when it may wait.
        on_emit: told every chunk on the device thread, after whom it belongs to.
    """

    def __init__(
        self,
        engine: Owner,
        session: int,
        loop: Loop[StateT],
        state: StateT,
        *,
        price: Price,
        rate: float = 0.0,
        keep_chunks: bool = False,
    ) -> None:
        self._engine = engine
        self.session = session
        self.loop = loop
        self.state: StateT | None = state
        self.asked: Plan | Idle | Done | None = None
        self.price = price
        self.rate = rate
        self.last_tick = -1
        self.device_s: dict[str, float] = {}
        self.ended: str | None = None
        self.done: Future[Any] = Future()
        self.done.set_running_or_notify_cancel()
        self.on_close: Callable[[], None] | None = None
        self.on_emit: Callable[[Emit], None] | None = None
        self.due = math.inf
        self._waiting: dict[int, tuple[Future[Emit], float]] = {}
        self._keep_chunks = keep_chunks
        self._chunks: deque[Emit] = deque()
        self._takers: deque[Future[Emit | None]] = deque()

    @property
    def waiting(self) -> int:
        """Inputs whose chunk has not come yet."""
        return len(self._waiting)

    @property
    def stands_still(self) -> bool:
        """Whether the chunks that nobody has taken hold it up."""
        return len(self._chunks) >= MAX_CHUNKS

    def submit(self, value: Any, *, due: float = math.inf) -> Future[Emit]:
        """Queue one input; the future gets the chunk that it shaped, or the reason why there is none.

        Args:
            value: what the loop's `offer` takes.
            due: when the chunk is wanted, by the engine's timer; orders the work of sessions.
        """
        future: Future[Emit] = Future()
        future.set_running_or_notify_cancel()  # a consumer that gives up must not disturb the device thread
        try:
            self._engine.command(lambda: self._submit(value, future, due))
        except SessionEndedError as error:
            future.set_exception(error)
        return future

    def take(self) -> Future[Emit | None]:
        """The next chunk of a session that keeps them, None after the last. It goes on when chunks are taken."""
        future: Future[Emit | None] = Future()
        future.set_running_or_notify_cancel()
        try:
            self._engine.command(lambda: self._take(future))
        except SessionEndedError as error:
            future.set_exception(error)
        return future

    def close(self, reason: str = "the session was closed") -> None:
        """End the session before its next plan. May be called twice."""
        with contextlib.suppress(SessionEndedError):  # a closed engine has ended this too
            self._engine.command(lambda: self._engine.end(self, SessionEndedError(reason)))

    # -- on the device thread -------------------------------------------------------------------------------------
    def deliver(self, emit: Emit) -> None:
        """Give a chunk to whom it belongs."""
        whole = replace(emit, device_s=self.device_s)
        for input_id in emit.input_ids:
            waiter = self._waiting.pop(input_id, None)
            if waiter is not None:
                waiter[0].set_result(whole)
        if self._keep_chunks or emit.input_ids:
            self.device_s = {}
        if self._keep_chunks:
            if self._takers:
                self._takers.popleft().set_result(whole)
            else:
                self._chunks.append(whole)
        self._update_due()
        if self.on_emit is not None:
            self.on_emit(whole)

    def settle(self, error: Exception | None, value: Any = None) -> None:
        """The session is over: `value` when the loop was done, else `error`."""
        failure = error or SessionEndedError(self.ended)
        for future, _ in self._waiting.values():
            future.set_exception(failure)
        self._waiting.clear()
        while self._takers:
            _finish(self._takers.popleft(), error)
        if error is not None:
            self._chunks.clear()
            self.done.set_exception(error)
        else:
            self.done.set_result(value)

    def _submit(self, value: Any, future: Future[Emit], due: float) -> None:
        if self.state is None:
            future.set_exception(self.done.exception() or SessionEndedError(self.ended))
        elif len(self._waiting) >= MAX_INPUTS:
            future.set_exception(BusyError(f"{MAX_INPUTS} inputs wait already: take their chunks first"))
        else:
            self.asked = None
            try:
                self._waiting[self.loop.offer(self.state, value)] = future, due
            except Exception as error:  # noqa: BLE001 -- told to whoever offered it; the session goes on
                future.set_exception(error)
            self._update_due()

    def _take(self, future: Future[Emit | None]) -> None:
        if self._chunks:
            future.set_result(self._chunks.popleft())
        elif self.state is None:
            _finish(future, self.done.exception())
        else:
            self._takers.append(future)

    def _update_due(self) -> None:
        # With nothing asked for, what is left of the last chunk's work stays as urgent as the chunk was.
        if self._waiting:
            self.due = min(due for _, due in self._waiting.values())


def _finish(future: Future[Emit | None], error: BaseException | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
