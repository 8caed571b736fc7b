"""The queue of videos, made by a host that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.codec.mp4 import read_video
from worldloop.core.clock import ManualClock
from worldloop.core.errors import CapacityError, EngineError, SessionEndedError
from worldloop.session.line import QueueFullError, QueueLimits
from worldloop.session.videos import NoSuchVideoError, Video, VideoOrder, Videos

FPS, CHUNK = 4, 4

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class ScriptedRollout:
    """Gives a chunk for each `step`, until it is as long as it has to be."""

    def __init__(self, order: VideoOrder) -> None:
        self.order = order
        self.left = order.seconds * FPS
        self.closed = False
        self.taker: Future[NDArray[np.uint8] | None] | None = None

    def take(self) -> Future[NDArray[np.uint8] | None]:
        self.taker = Future()
        if self.left == 0:
            self.taker.set_result(None)
        elif self.closed:
            self.taker.set_exception(SessionEndedError("closed"))
        return self.taker

    def close(self) -> None:
        self.closed = True
        if self.taker is not None and not self.taker.done():
            self.taker.set_exception(SessionEndedError("closed"))

    def step(self) -> None:
        assert self.taker is not None
        self.left -= CHUNK
        level = (self.order.seed + self.left) % 256
        self.taker.set_result(np.full((CHUNK, 32, 32, 3), level, np.uint8))

    def fail(self, error: Exception) -> None:
        assert self.taker is not None
        self.taker.set_exception(error)


class ScriptedVideoHost:
    """`per_picture` seconds a picture; `refuse` is what `start` raises."""

    model_id = "scripted"
    frame_size = (32, 32)
    fps = float(FPS)
    draws_with: str | None = None

    def __init__(self) -> None:
        self.rollouts: list[ScriptedRollout] = []
        self.per_picture: float | None = 0.5
        self.refuse: Exception | None = None

    def start(self, order: VideoOrder) -> ScriptedRollout:
        if self.refuse is not None:
            raise self.refuse
        self.rollouts.append(ScriptedRollout(order))
        return self.rollouts[-1]

    def seconds_left(self, order: VideoOrder, made: int) -> float | None:
        return None if self.per_picture is None else (order.seconds * FPS - made) * self.per_picture


class Desk:
    """A queue with its host and clock."""

    def __init__(self, **limits: Any) -> None:
        self.host, self.clock = ScriptedVideoHost(), ManualClock(100.0)
        chosen = QueueLimits(**{"waiting": 3, "keep_s": 60.0, "keep_bytes": 10**6, **limits})
        self.videos = Videos(self.host, chosen, clock=self.clock)

    def order(self, seconds: int = 2, seed: int = 1) -> Video:
        return self.videos.submit(VideoOrder(prompt="a lake", seconds=seconds, seed=seed))

    async def asked(self, index: int = -1, *, of: int = 1) -> ScriptedRollout:
        """A rollout, once there are `of` of them and this one waits for a chunk."""
        await until(lambda: len(self.host.rollouts) >= of and self.host.rollouts[index].taker is not None)
        rollout = self.host.rollouts[index]
        await until(lambda: rollout.taker is not None and not rollout.taker.done())
        return rollout

    async def finish(self, video: Video) -> Video:
        """Make all that comes up to this one."""
        while not video.over:
            rollouts = self.host.rollouts
            if rollouts and rollouts[-1].taker is not None and not rollouts[-1].taker.done():
                rollouts[-1].step()
            await asyncio.sleep(0)
        return video

    @property
    def files(self) -> list[Path]:
        folder = self.videos._folder
        return [] if folder is None else list(folder.iterdir())


async def until(true: Callable[[], bool]) -> None:
    """Give others turns until it is so."""
    while not true():  # noqa: ASYNC110 -- what is waited for has no event
        await asyncio.sleep(0)


@asynccontextmanager
async def desk(**limits: Any) -> AsyncIterator[Desk]:
    opened = Desk(**limits)
    try:
        async with asyncio.timeout(60):
            yield opened
    finally:
        await opened.videos.close()


async def collect(videos: Videos, video: Video) -> bytes:
    return b"".join([piece async for piece in videos.fragments(video)])


async def test_a_job_is_made_chunk_by_chunk_and_its_file_plays() -> None:
    async with desk() as it:
        video = it.order(seconds=2)
        states = [(video.status, video.progress, it.videos.eta_s(video))]
        (await it.asked()).step()
        await until(lambda: video.made == CHUNK)
        states.append((video.status, video.progress, it.videos.eta_s(video)))
        await it.finish(video)
        states.append((video.status, video.progress, it.videos.eta_s(video)))

        assert states == [("queued", 0, 4.0), ("in_progress", 50, 2.0), ("completed", 100, None)]
        assert len(list(read_video(video.path))) == 2 * FPS
        assert (video.completed_at, it.videos.expires_at(video)) == (it.clock.time(), it.clock.time() + 60)


async def test_jobs_are_made_in_order_one_at_a_time() -> None:
    async with desk() as it:
        first, second, third = (it.order(seed=seed) for seed in (1, 2, 3))
        await it.asked()
        places = [it.videos.position(video) for video in (first, second, third)]
        waits = [it.videos.eta_s(video) for video in (first, second, third)]
        begun = len(it.host.rollouts)
        await it.finish(third)

        assert (places, waits, begun) == ([0, 1, 2], [4.0, 8.0, 12.0], 1)
        assert [rollout.order.seed for rollout in it.host.rollouts] == [1, 2, 3]
        assert it.videos.position(first) is None


async def test_where_the_first_picture_is_from_is_told() -> None:
    async with desk(waiting=9) as it:
        given = VideoOrder(prompt="a lake", seconds=1, seed=1, first=np.zeros((32, 32, 3), np.uint8))
        wishes = (given, replace(given, first=None), replace(given, first=None, drawn=False))
        found = []
        for it.host.draws_with in (None, "painter"):
            found += [it.videos.first_frame(it.videos.submit(wish)) for wish in wishes]

        assert found == ["given", "none", "none", "given", "painter", "none"]


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async with desk(waiting=1) as it:
        it.order()
        it.order()
        with pytest.raises(QueueFullError, match="about 4 s") as known:
            it.order()
        it.host.per_picture = None
        with pytest.raises(QueueFullError) as unknown:
            it.order()

        assert (known.value.retry_s, unknown.value.retry_s) == (4.0, None)
        assert known.value.http_status == 503


async def test_deleting_what_waits_takes_it_out_of_the_queue() -> None:
    async with desk() as it:
        first, second, third = (it.order(seed=seed) for seed in (1, 2, 3))
        await it.asked()
        it.videos.delete(second.id)
        place = it.videos.position(third)
        await it.finish(third)

        assert place == 1
        assert [rollout.order.seed for rollout in it.host.rollouts] == [1, 3]
        assert first.status == "completed"
        with pytest.raises(NoSuchVideoError, match="was deleted"):
            it.videos.get(second.id)


@pytest.mark.parametrize("chunks", [0, 1])
async def test_deleting_what_is_made_ends_it_and_frees_everything(chunks: int) -> None:
    async with desk() as it:
        video, after = it.order(seconds=3), it.order(seed=2)
        rollout = await it.asked()
        watching = asyncio.ensure_future(collect(it.videos, video))
        for made in range(chunks):
            rollout.step()
            await until(lambda made=made: video.made == CHUNK * (made + 1))
        it.videos.delete(video.id)

        assert rollout.closed
        with pytest.raises(SessionEndedError, match="deleted"):
            await watching
        await it.finish(after)
        assert it.files == [after.path]
        assert it.videos.kept_bytes == after.nbytes


async def test_deleting_before_the_first_pass_closes_what_was_just_begun() -> None:
    async with desk() as it:
        video, after = it.order(), it.order(seed=2)
        await until(lambda: video.status == "in_progress")
        it.videos.delete(video.id)
        await it.finish(after)

        assert [rollout.closed for rollout in it.host.rollouts[:-1]] == [True] * (len(it.host.rollouts) - 1)
        assert it.files == [after.path]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineError("out of luck"), "generation_failed", "out of luck"),
        (CapacityError("no room"), "capacity", "no room"),
        (RuntimeError("/a/secret/path"), "generation_failed", "the video could not be made"),
    ],
)
async def test_a_failure_is_told_and_is_its_own_jobs_only(error: Exception, code: str, message: str) -> None:
    async with desk() as it:
        video, after = it.order(), it.order(seed=2)
        rollout = await it.asked()
        rollout.step()
        await until(lambda: video.made == CHUNK)
        (await it.asked()).fail(error)
        await it.finish(after)

        assert (video.status, video.error) == ("failed", (code, message))
        assert after.status == "completed"
        assert it.files == [after.path]
        with pytest.raises(SessionEndedError, match=message):
            await collect(it.videos, video)


async def test_a_refused_start_is_a_failure() -> None:
    async with desk() as it:
        it.host.refuse = CapacityError("no room")
        video = it.order()
        await until(lambda: video.over)

        assert video.error == ("capacity", "no room")


async def test_whoever_reads_gets_the_same_bytes_early_or_late() -> None:
    async with desk() as it:
        video = it.order(seconds=3)
        early = asyncio.ensure_future(collect(it.videos, video))
        (await it.asked()).step()
        await until(lambda: video.made == CHUNK)
        middle = asyncio.ensure_future(collect(it.videos, video))
        await it.finish(video)

        late = await collect(it.videos, video)
        assert await early == await middle == late == video.path.read_bytes()
        assert len(late) == video.nbytes


async def test_the_same_order_gives_the_same_bytes() -> None:
    async with desk() as it:
        first, same, other = it.order(seed=1), it.order(seed=1), it.order(seed=9)
        await it.finish(other)

        assert first.path.read_bytes() == same.path.read_bytes() != other.path.read_bytes()


async def test_finished_videos_expire() -> None:
    async with desk(keep_s=60.0) as it:
        video = await it.finish(it.order())
        await it.clock.advance(59)
        assert it.videos.get(video.id) is video

        await it.clock.advance(1)
        with pytest.raises(NoSuchVideoError, match="expired"):
            it.videos.get(video.id)
        assert it.files == []


async def test_the_oldest_goes_when_there_are_too_many_bytes_and_the_newest_stays() -> None:
    async with desk(keep_bytes=1) as it:
        first = await it.finish(it.order(seed=1))
        second = await it.finish(it.order(seed=2))

        assert [video.id for video in it.videos.page(limit=9, newest_first=True, after=None)[0]] == [
            second.id
        ]
        assert it.files == [second.path]
        assert first.deleted


async def test_pages_follow_each_other() -> None:
    async with desk() as it:
        ids = [it.order().id for _ in range(4)]

        def page(**wishes: Any) -> tuple[list[str], bool]:
            found, more = it.videos.page(**{"limit": 2, "newest_first": False, "after": None, **wishes})
            return [video.id for video in found], more

        assert page() == (ids[:2], True)
        assert page(after=ids[1]) == (ids[2:], False)
        assert page(newest_first=True) == ([ids[3], ids[2]], True)
        with pytest.raises(NoSuchVideoError):
            page(after="video_none")


async def test_a_remix_keeps_all_but_the_prompt() -> None:
    async with desk() as it:
        first = it.order(seconds=1, seed=5)
        again = it.videos.remix(first.id, "a meadow")

        assert (again.order.prompt, again.order.seed, again.order.seconds) == ("a meadow", 5, 1)
        assert again.remixed_from == first.id


async def test_closing_stops_everything_and_leaves_no_file() -> None:
    it = Desk()
    done = await it.finish(it.order())
    folder = done.path.parent
    it.order()
    rollout = await it.asked(of=2)
    closing: Awaitable[None] = it.videos.close()
    await closing

    assert rollout.closed
    assert not folder.exists()
    with pytest.raises(SessionEndedError, match="stopping"):
        it.order()
