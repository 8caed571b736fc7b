"""Videos on order: a queue of jobs, made one at a time, and their files until they expire.

    submit -> queued -> in_progress -> completed | failed       delete at any time: it stops within one pass

Owns progress, files and their end. Does not own order (`session.line`), the model (`VideoHost`), containers
(`codec.fmp4`) or HTTP shapes (`wire.videos`). Everything public is the event loop's; what blocks runs in a thread. A
job's file grows fragment by fragment, so that it can be read while it is made. Files lie in a temporary folder that
goes with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.fmp4 import FragmentWriter
from worldloop.core.clock import Clock
from worldloop.core.errors import CapacityError, SessionEndedError, WorldloopError
from worldloop.core.telemetry import log_event
from worldloop.session.line import Job, Line, QueueFullError, QueueLimits

READ_BYTES = 256 * 1024
_log = logging.getLogger(__name__)

Status = Literal["queued", "in_progress", "completed", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoOrder:
    """What a video is made from. The same order gives the same bytes on one machine and build.

    Attributes:
        seconds: its length.
        seed: in [0, 2**32).
        first: first picture, uint8 `[H, W, 3]` at the host's size, or None.
        drawn: whether the host's picture model, where it has one, draws the first picture that is not given.
    """

    prompt: str
    seconds: int
    seed: int
    first: NDArray[np.uint8] | None = None
    drawn: bool = True

    @property
    def draws(self) -> bool:
        """Whether a host that has a picture model draws the first picture."""
        return self.drawn and self.first is None


class Rollout(Protocol):
    """A video in the making."""

    def take(self) -> Future[NDArray[np.uint8] | None]:
        """The next pictures, uint8 `[T, H, W, 3]`; None after the last."""
        ...

    def close(self) -> None:
        """End it before its next pass. May be called twice, from any thread."""
        ...


class VideoHost(Protocol):
    """The device side.

    Attributes:
        model_id: what is served.
        frame_size: (height, width) of its pictures.
        fps: pictures a second.
        draws_with: id of the picture model that draws first pictures, or None.
    """

    @property
    def model_id(self) -> str: ...

    @property
    def draws_with(self) -> str | None: ...

    @property
    def frame_size(self) -> tuple[int, int]: ...

    @property
    def fps(self) -> float: ...

    def start(self, order: VideoOrder) -> Rollout:
        """Begin; blocks for a moment. CapacityError when it does not fit beside what runs."""
        ...

    def seconds_left(self, order: VideoOrder, made: int) -> float | None:
        """How long an order takes from `made` pictures on, as measured; None while that is unknown."""
        ...


class NoSuchVideoError(WorldloopError):
    """There is no video of this id, or no model that makes any."""

    http_status = 404


@dataclass(kw_only=True, slots=True, eq=False)
class Video(Job):
    """One job.

    Attributes:
        path: its file; there from the first fragment on.
        pictures: how many it will have; `made` of them are in the file, whose size is `nbytes`.
        completed_at: when it was over, seconds since the epoch.
        error: (code, message) of a failed one.
    """

    id: str
    order: VideoOrder
    path: Path
    pictures: int
    created_at: float
    remixed_from: str | None = None
    status: Status = "queued"
    made: int = 0
    nbytes: int = 0
    completed_at: float | None = None
    error: tuple[str, str] | None = None
    deleted: bool = False
    rollout: Rollout | None = None

    @property
    def over(self) -> bool:
        return self.deleted or self.status in ("completed", "failed")

    @property
    def progress(self) -> int:
        """Percent; 100 only when it is complete."""
        return 100 if self.status == "completed" else min(99, 100 * self.made // self.pictures)


class Videos:
    """The jobs of one server.

    Args:
        host: makes them.
        limits: of the queue.
        clock: tells creation and expiry.
    """

    def __init__(self, host: VideoHost, limits: QueueLimits, *, clock: Clock) -> None:
        self.host = host
        self.limits = limits
        self._clock = clock
        self._videos: dict[str, Video] = {}
        """In order of creation."""
        self._line: Line[Video] = Line(limit=limits.waiting, make=self._work)
        self._folder: Path | None = None

    @property
    def waiting(self) -> int:
        """Jobs that wait for another."""
        return self._line.waiting

    @property
    def kept_bytes(self) -> int:
        """Of finished videos."""
        return sum(video.nbytes for video in self._videos.values() if video.over)

    def check_room(self) -> None:
        """Whether one more may wait, asked before work is put into its order. Raises `QueueFullError`."""
        if self._line.full:
            raise QueueFullError("videos", self.waiting, self.eta_s(self._line.jobs[0]))

    def submit(self, order: VideoOrder, *, remixed_from: str | None = None) -> Video:
        """Queue a job.

        Raises:
            QueueFullError: as many wait as may.
            StoppingError: the server stops.
        """
        self._expire()
        self.check_room()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="worldloop-videos-"))
        name = f"video_{secrets.token_hex(16)}"
        video = Video(
            id=name,
            order=order,
            path=self._folder / f"{name}.mp4",
            pictures=pictures_of(order.seconds, self.host.fps),
            created_at=self._clock.time(),
            remixed_from=remixed_from,
        )
        self._videos[name] = video
        self._line.join(video)
        return video

    def remix(self, video_id: str, prompt: str) -> Video:
        """Queue another video's order with another prompt; errors as `get` and `submit`."""
        return self.submit(replace(self.get(video_id).order, prompt=prompt), remixed_from=video_id)

    def get(self, video_id: str) -> Video:
        """A job that is not gone. Raises `NoSuchVideoError`."""
        self._expire()
        if video_id not in self._videos:
            raise NoSuchVideoError(f"no video {video_id[:64]!r}: it was deleted, has expired, or never was")
        return self._videos[video_id]

    def page(self, *, limit: int, newest_first: bool, after: str | None) -> tuple[Sequence[Video], bool]:
        """At most `limit` jobs that come after the job `after`, and whether more follow."""
        self._expire()
        videos = list(self._videos.values())
        if newest_first:
            videos.reverse()
        if after is not None:
            videos = videos[videos.index(self.get(after)) + 1 :]
        return videos[:limit], len(videos) > limit

    def delete(self, video_id: str) -> None:
        """Stop a job, or forget a finished one, and free all that it holds. Raises `NoSuchVideoError`."""
        video = self.get(video_id)
        video.deleted = True
        del self._videos[video.id]
        self._line.leave(video)
        if video.rollout is not None:
            video.rollout.close()
        video.path.unlink(missing_ok=True)
        video.tell()

    def position(self, video: Video) -> int | None:
        """0 for the one that is being made, 1 for the next; None when it is over."""
        return None if video.over else self._line.position(video)

    def eta_s(self, video: Video) -> float | None:
        """Seconds until it is complete, by measured costs; None while they are unknown, and when it is over."""
        if video.over:
            return None
        left = [self.host.seconds_left(each.order, each.made) for each in self._line.up_to(video)]
        return None if None in left else sum(seconds for seconds in left if seconds is not None)

    def first_frame(self, video: Video) -> str:
        """Where its first picture is from: `given`, the picture model's id, or `none` for the video model itself."""
        return first_frame_of(video.order, self.host.draws_with)

    def expires_at(self, video: Video) -> float | None:
        """When a finished video is forgotten, seconds since the epoch."""
        return None if video.completed_at is None else video.completed_at + self.limits.keep_s

    async def fragments(self, video: Video) -> AsyncIterator[bytes]:
        """The file's bytes as they come, from the first to the last.

        Raises:
            SessionEndedError: it failed or was deleted before it was complete.
        """
        sent = 0
        while True:
            news = video.news
            _check_wanted(video)
            if sent < video.nbytes:
                data = _read(video.path, sent)
                sent += len(data)
                yield data
            elif video.status == "completed":
                return
            elif video.error is not None:
                raise SessionEndedError(video.error[1])
            else:
                await news.wait()

    async def close(self) -> None:
        """Stop every job and remove every file."""
        self._line.close()
        for name in list(self._videos):
            with contextlib.suppress(NoSuchVideoError):  # it expired just now
                self.delete(name)
        await self._line.ended()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # -- making ---------------------------------------------------------------------------------------------------
    async def _work(self, video: Video) -> None:
        """Make one, to its end whatever that is."""
        video.status = "in_progress"
        video.tell()
        try:
            await self._make(video)
            video.status = "completed"
        except Exception as error:  # noqa: BLE001 -- one job's failure is not another's
            self._failed(video, error)
        finally:
            if video.rollout is not None:
                video.rollout.close()
                video.rollout = None
        if video.deleted:
            video.path.unlink(missing_ok=True)
        else:
            video.completed_at = self._clock.time()
            log_event(_log, "video.done", id=video.id, status=video.status, pictures=video.made)
        video.tell()
        self._expire()

    async def _make(self, video: Video) -> None:
        height, width = self.host.frame_size
        writer = FragmentWriter(height=height, width=width, fps=self.host.fps)
        video.rollout = await asyncio.to_thread(self.host.start, video.order)
        while True:
            _check_wanted(video)
            frames = await asyncio.wrap_future(video.rollout.take())
            if frames is None:
                return
            data = await asyncio.to_thread(writer.write, frames)
            _check_wanted(video)
            _append(video.path, data)
            video.made += len(frames)
            video.nbytes += len(data)
            video.tell()

    def _failed(self, video: Video, error: Exception) -> None:
        video.status = "failed"
        known = isinstance(error, WorldloopError)
        code = "capacity" if isinstance(error, CapacityError) else "generation_failed"
        video.error = code, str(error) if known else "the video could not be made"
        video.path.unlink(missing_ok=True)
        video.nbytes = 0
        if not video.deleted:
            log_event(_log, "video.failed", level=logging.ERROR, id=video.id, error=type(error).__name__)

    def _expire(self) -> None:
        """Forget what is over and too old, or too much."""
        over = sorted(
            (video for video in self._videos.values() if video.completed_at is not None),
            key=lambda video: video.completed_at or 0.0,
        )
        sizes = [(video.completed_at or 0.0, video.nbytes) for video in over]
        for video in over[: self.limits.outdated(sizes, self._clock.time())]:
            video.deleted = True
            del self._videos[video.id]
            video.path.unlink(missing_ok=True)
            video.tell()


def pictures_of(seconds: int, fps: float) -> int:
    """Pictures of a video of this length."""
    return max(1, round(seconds * fps))


def first_frame_of(order: VideoOrder, draws_with: str | None) -> str:
    """Where the first picture of an order is from: `given`, `draws_with`, or `none`."""
    if order.first is not None:
        return "given"
    return draws_with if order.draws and draws_with is not None else "none"


def _check_wanted(video: Video) -> None:
    if video.deleted:
        raise SessionEndedError("the video was deleted")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _read(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(READ_BYTES)
