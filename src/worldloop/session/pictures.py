"""Pictures on order: a queue of requests, made one picture at a time, and the finished ones until they are forgotten.

    submit -> Queued ... -> Making ... -> Finished, once a picture; or an error, which ends the request

Owns the course of a request and what is kept. Does not own order (`session.line`), the model
(`session.picture_host`), files' formats (`codec.still`) or HTTP shapes (`wire.images`). Everything public is the event
loop's; what blocks runs in a thread. A request belongs to whoever watches it: `cancel` ends it before its next unit of
work.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.still import encode_picture
from worldloop.core.clock import Clock
from worldloop.core.errors import DeviceLostError, EngineError, SessionEndedError, WorldloopError
from worldloop.core.receipt import Receipt
from worldloop.core.telemetry import log_event
from worldloop.session.line import STOPPING, Job, Line, QueueLimits, StoppingError
from worldloop.session.observer import Observer
from worldloop.session.picture_host import (
    Picture,
    PictureHost,
    PictureJob,
    PictureOrder,
    PictureQueueFullError,
    Step,
    receipt_of,
)

TELL_S = 5.0
"""How often a request that waits is told how long it still takes, where its place stays the same."""

_log = logging.getLogger(__name__)


class NoSuchPictureError(WorldloopError):
    """There is no picture of this id, or no model that makes any."""

    http_status = 404


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """A request's place: how many come before it. `eta_s` until it is complete; None while costs are unknown."""

    position: int
    eta_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """Picture `index` of the request is `done` of `steps` passes far.

    Attributes:
        eta_s: until the whole request is complete; None while costs are unknown.
        at: when this was, in seconds since the epoch.
        preview: uint8 `[H, W, 3]`, the `nth` of this picture.
    """

    index: int
    done: int
    steps: int
    eta_s: float | None
    at: float
    preview: NDArray[np.uint8] | None = None
    nth: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """One picture that is kept.

    Attributes:
        index: in its request.
        file: its bytes, in a format of `codec.still.FILES`.
        created_at: seconds since the epoch.
        queued_s, file_s, total_s: seconds in the queue, of writing the file, and from the request to the file.
    """

    id: str
    index: int
    picture: Picture
    file: bytes
    file_format: str
    receipt: Receipt
    created_at: float
    queued_s: float
    file_s: float
    total_s: float

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return len(self.file) + self.picture.pixels.nbytes + int(getattr(self.picture.latent, "nbytes", 0))


@dataclass(kw_only=True, slots=True, eq=False)
class PictureRequest(Job):
    """Pictures that are made one after the other.

    Attributes:
        orders: one a picture.
        arrived: by the monotonic clock; `begun` too, None while it waits.
        done: passes of the picture in the making.
        finished: pictures that are there.
        error: why there are no more.
    """

    orders: tuple[PictureOrder, ...]
    file_format: str
    arrived: float
    begun: float | None = None
    done: int = 0
    finished: list[Finished] = field(default_factory=list)
    error: WorldloopError | None = None
    job: PictureJob | None = None
    news_of_it: deque[Making | Finished] = field(default_factory=deque)

    @property
    def over(self) -> bool:
        return self.error is not None or len(self.finished) == len(self.orders)


class Pictures:
    """The requests of one server.

    Args:
        host: makes pictures.
        limits: of the queue, in requests, and of the main memory for what is finished.
        clock: tells times.
        observer: counts.
    """

    def __init__(self, host: PictureHost, limits: QueueLimits, *, clock: Clock, observer: Observer) -> None:
        self.host = host
        self.limits = limits
        self._clock = clock
        self._observer = observer
        self._kept: dict[str, Finished] = {}
        """Oldest first."""
        self._line: Line[PictureRequest] = Line(limit=limits.waiting, make=self._work)

    @property
    def waiting(self) -> int:
        """Requests that wait for another."""
        return self._line.waiting

    @property
    def kept_bytes(self) -> int:
        """Of finished pictures."""
        return sum(each.nbytes for each in self._kept.values())

    def submit(self, orders: Sequence[PictureOrder], *, file_format: str = "png") -> PictureRequest:
        """Queue a request; its orders are of one size.

        Raises:
            PictureTooLargeError: a picture of this size does not fit.
            PictureQueueFullError: as many wait as may.
            DeviceLostError: the device is out of service.
            StoppingError: the server stops.
        """
        if self.host.lost is not None:
            raise DeviceLostError(self.host.lost)
        full = self._line.full
        self.host.admit(orders[0].size)
        if full:
            raise PictureQueueFullError("requests", self.waiting, self._eta_s(self._line.jobs[:1]))
        request = PictureRequest(
            orders=tuple(orders), file_format=file_format, arrived=self._clock.monotonic()
        )
        self._line.join(request)
        self._observer.images("queued", len(orders))
        return request

    def cancel(self, request: PictureRequest) -> None:
        """Give up its place at once, or end the picture in the making before its next unit of work."""
        self._end(request, SessionEndedError("the request was given up"))

    async def watch(self, request: PictureRequest) -> AsyncIterator[Queued | Making | Finished]:
        """What happens to it, to its last picture. For one watcher.

        Raises:
            WorldloopError: why there are no more pictures.
        """
        told: int | None = None
        at = -math.inf
        while True:
            news = request.news
            now = self._clock.monotonic()
            place = len(self._line.up_to(request)) - 1
            if not request.over and (place != told or (place > 0 and now >= at + TELL_S)):
                told, at = place, now
                yield Queued(position=place, eta_s=self._eta_s(self._line.up_to(request)))
            while request.news_of_it:
                yield request.news_of_it.popleft()
            if request.error is not None:
                raise request.error
            if request.over:
                return
            await news.wait()

    async def result(self, request: PictureRequest) -> Sequence[Finished]:
        """Its pictures, once all are there; raises as `watch`."""
        async for _ in self.watch(request):
            pass
        return request.finished

    def get(self, picture_id: str) -> Picture:
        """A finished picture that is not forgotten. Raises `NoSuchPictureError`."""
        return self.kept(picture_id).picture

    def kept(self, picture_id: str) -> Finished:
        """The same with its file and receipt."""
        self._expire()
        if picture_id not in self._kept:
            raise NoSuchPictureError(f"no picture {picture_id[:64]!r}: it was forgotten, or never was")
        return self._kept[picture_id]

    def drain(self) -> None:
        """The server stops: take no more requests and end those that wait. What is being made goes on."""
        self._line.close()
        for request in self._line.jobs:
            if request.begun is None:
                self._end(request, StoppingError(STOPPING))

    async def close(self) -> None:
        """End every request and forget every picture."""
        self._line.close()
        for request in self._line.jobs:
            self._end(request, StoppingError(STOPPING))
        await self._line.ended()
        self._kept.clear()

    # -- making ---------------------------------------------------------------------------------------------------
    async def _work(self, request: PictureRequest) -> None:
        """Make its pictures, to their end whatever that is."""
        request.begun = self._clock.monotonic()
        self._observer.image_phase("queue", request.begun - request.arrived)
        self._tell_all()
        try:
            for index, order in enumerate(request.orders):
                made = await self._make(request, index, order)
                self._kept[made.id] = made
                request.finished.append(made)
                request.news_of_it.append(made)
                self._count(made)
                self._expire()
                request.tell()
        except WorldloopError as error:
            self._end(request, error)
        except Exception as error:  # noqa: BLE001 -- one request's failure is not another's
            log_event(_log, "picture.broke", level=logging.ERROR, error=type(error).__name__)
            self._end(request, EngineError("the picture could not be made"))
        self._tell_all()

    async def _make(self, request: PictureRequest, index: int, order: PictureOrder) -> Finished:
        request.done, previews = 0, 0
        request.job = job = await asyncio.to_thread(self.host.start, order)
        try:
            while True:
                _check_wanted(request)
                news = await asyncio.wrap_future(job.take())
                _check_wanted(request)
                if isinstance(news, Picture):
                    return await self._finish(request, index, news)
                request.done = news.done
                self._tell(request, index, news, previews)
                previews += news.preview is not None
        finally:
            request.job = None
            job.close()

    def _tell(self, request: PictureRequest, index: int, news: Step, nth: int) -> None:
        request.news_of_it.append(
            Making(
                index=index,
                done=news.done,
                steps=news.steps,
                eta_s=self._eta_s((request,)),
                at=self._clock.time(),
                preview=news.preview,
                nth=nth,
            )
        )
        self._tell_all()

    async def _finish(self, request: PictureRequest, index: int, picture: Picture) -> Finished:
        began = self._clock.monotonic()
        file, receipt = await asyncio.to_thread(self._write, picture, request.file_format)
        _check_wanted(request)
        now = self._clock.monotonic()
        return Finished(
            id=f"image_{secrets.token_hex(16)}",
            index=index,
            picture=picture,
            file=file,
            file_format=request.file_format,
            receipt=receipt,
            created_at=self._clock.time(),
            queued_s=(request.begun or now) - request.arrived,
            file_s=now - began,
            total_s=now - request.arrived,
        )

    def _write(self, picture: Picture, file_format: str) -> tuple[bytes, Receipt]:
        file = encode_picture(picture.pixels, file_format)
        return file, receipt_of(picture, self.host, format=file_format, file=file)

    def _end(self, request: PictureRequest, error: WorldloopError) -> None:
        """There will be no more pictures of this request; once."""
        if request.over:
            return
        request.error = error
        self._line.leave(request)
        if request.job is not None:
            request.job.close()
        cancelled = isinstance(error, SessionEndedError)
        left = len(request.orders) - len(request.finished)
        self._observer.images("cancelled" if cancelled else "failed", left)
        # An error of the device has its line from the engine; a lost device fails every request, and has one line.
        event = "picture.cancelled" if cancelled else "picture.failed"
        log_event(_log, event, error=type(error).__name__, pictures=left)
        self._tell_all()
        request.tell()

    def _count(self, made: Finished) -> None:
        self._observer.images("made", 1)
        for phase, seconds in (*made.picture.device_s.items(), ("file", made.file_s)):
            self._observer.image_phase(phase, seconds)
        log_event(_log, "picture.done", id=made.id, steps=made.picture.steps, total_s=made.total_s)

    def _eta_s(self, requests: Sequence[PictureRequest]) -> float | None:
        total = 0.0
        for request in requests:
            left = request.orders[len(request.finished) :]
            # They differ by their seeds alone.
            now, later = self.host.seconds_left(left[0], request.done), self.host.seconds_left(left[0])
            if now is None or later is None:
                return None
            total += now + later * (len(left) - 1)
        return total

    def _tell_all(self) -> None:
        """Places and times have changed."""
        for request in self._line.jobs:
            request.tell()

    def _expire(self) -> None:
        """Forget what is too old, or too much."""
        finished = [(each.created_at, each.nbytes) for each in self._kept.values()]
        for name in list(self._kept)[: self.limits.outdated(finished, self._clock.time())]:
            del self._kept[name]


def _check_wanted(request: PictureRequest) -> None:
    if request.error is not None:
        raise request.error
