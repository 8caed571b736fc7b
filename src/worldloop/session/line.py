"""What waits for the device in order of arrival: one job is made at a time, and few may wait.

Owns order, places, bounds, and how long what is over is kept. Does not own what a job is, nor its making. Used by
`session.videos` and `session.pictures`, on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from worldloop.core.errors import CapacityError, SessionEndedError

MAX_KEPT = 1000
"""Results that are kept at once, whatever their size."""

STOPPING = "the server is stopping; come back in a moment"


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueLimits:
    """Of a queue: jobs that wait, and how long and how many bytes of what is finished are kept."""

    waiting: int
    keep_s: float
    keep_bytes: int

    def outdated(self, finished: Sequence[tuple[float, int]], now: float) -> int:
        """How many of the first are to be forgotten: what is too old, then the oldest until the rest fits.

        The newest stays, whatever its size, until it is too old.

        Args:
            finished: when each was finished, in the unit of `now`, and its bytes; oldest first.
        """
        nbytes = sum(size for _, size in finished)
        for index, (at, size) in enumerate(finished):
            left = len(finished) - index
            full = left > 1 and (nbytes > self.keep_bytes or left > MAX_KEPT)
            if not full and now < at + self.keep_s:
                return index
            nbytes -= size
        return len(finished)


class QueueFullError(CapacityError):
    """No more jobs may wait. `retry_s`: until a place is free, as far as costs have been measured, or None."""

    http_status = 503

    def __init__(self, what: str, waiting: int, retry_s: float | None) -> None:
        when = "" if retry_s is None else f"; the next place is free in about {retry_s:.0f} s"
        super().__init__(f"{waiting} {what} wait already, which is the limit{when}")
        self.retry_s = retry_s


class StoppingError(SessionEndedError):
    """The server stops and takes no more jobs."""

    http_status = 503


@dataclass(kw_only=True, slots=True, eq=False)
class Job:
    """Something in a line. `news` is set, and replaced, at every change."""

    news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        """Wake whoever waits for a change."""
        news, self.news = self.news, asyncio.Event()
        news.set()


JobT = TypeVar("JobT", bound=Job)


class Line(Generic[JobT]):
    """Jobs in order of arrival.

    Args:
        limit: how many may wait for the one that is made.
        make: makes one, to its end whatever that is; raises nothing.
    """

    def __init__(self, *, limit: int, make: Callable[[JobT], Awaitable[None]]) -> None:
        self._limit = limit
        self._make = make
        self._jobs: list[JobT] = []
        self._making: JobT | None = None
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def jobs(self) -> Sequence[JobT]:
        """Those that are made or wait."""
        return tuple(self._jobs)

    @property
    def waiting(self) -> int:
        """Jobs that wait for another."""
        return max(0, len(self._jobs) - 1)

    @property
    def full(self) -> bool:
        """Whether one more may not join. Raises `StoppingError`."""
        if self._closed:
            raise StoppingError(STOPPING)
        return self.waiting >= self._limit

    def join(self, job: JobT) -> None:
        """Take the last place; the caller has looked whether the line is full."""
        self._jobs.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def leave(self, job: JobT) -> None:
        """Give up a place. Who makes the job still has to end that."""
        if job in self._jobs:
            self._jobs.remove(job)

    def up_to(self, job: JobT) -> Sequence[JobT]:
        """The jobs that have to be made until this one is, itself among them; none when it is in no line."""
        return self._jobs[: self._jobs.index(job) + 1] if job in self._jobs else ()

    def position(self, job: JobT) -> int | None:
        """0 for the one that is being made, 1 for the next; None when it is in no line."""
        ahead = len(self.up_to(job))
        return None if ahead == 0 else ahead - (1 if self._jobs[0] is self._making else 0)

    def close(self) -> None:
        """Let nobody join any more."""
        self._closed = True

    async def ended(self) -> None:
        """Wait until nothing is made. The jobs in the line have left it, or their making comes to its end."""
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        while self._jobs:
            self._making = self._jobs[0]
            try:
                await self._make(self._making)
            finally:
                self.leave(self._making)
                self._making = None
