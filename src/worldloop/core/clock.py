"""Time, as something that is passed in.

Owns the `Clock` protocol, the real `SystemClock`, and `ManualClock`, whose time moves only when told. Owns no
pacing (`session.pacer`). Everything that waits or compares times takes a clock, so that tests never sleep.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")

TURNS = 20
"""Turns of the event loop that `ManualClock` gives to whoever it woke."""


class Clock(Protocol):
    """Where times and waits come from."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; for intervals."""
        ...

    def time(self) -> float:
        """Seconds since the Unix epoch; for expiries and log lines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero or less gives other tasks one turn."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class ManualClock:
    """A clock for tests: starts at `start` and moves only through `advance`.

    Args:
        start: first value of `monotonic()`, in seconds.
        epoch: `time()` minus `monotonic()`, in seconds.
    """

    def __init__(self, start: float = 0.0, *, epoch: float = 1_700_000_000.0) -> None:
        self._now = start
        self._epoch = epoch
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._epoch + self._now

    @property
    def sleepers(self) -> int:
        """Number of tasks that wait on this clock."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    def shift(self, seconds: float) -> None:
        """Move time without waking anyone; for code that only compares times."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Move time, waking sleepers in order of their due times; the loop gets `TURNS` turns after each."""
        target = self._now + seconds
        await _turns()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not future.done():
                future.set_result(None)
                await _turns()
        self._now = max(self._now, target)
        await _turns()


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await `work` for at most `seconds` of `clock`; else cancel it.

    Raises:
        TimeoutError: the time ran out first.
    """
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Neither is awaited here: a cancellation of the caller that came meanwhile would be taken for theirs.
        timer.cancel()
        task.add_done_callback(_forget)
        task.cancel()
    if task.done():
        return task.result()
    await asyncio.wait({task})
    raise TimeoutError(f"not done after {seconds:g} s")


def _forget(task: asyncio.Future[T]) -> None:
    """Look at an outcome that nobody waits for, so that the loop doesn't report it."""
    if not task.cancelled():
        task.exception()
