"""The queue of pictures, made by a host that does what the test says."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image

from worldloop.core.clock import ManualClock
from worldloop.core.errors import (
    CapacityError,
    DeviceLostError,
    DeviceMemoryError,
    EngineError,
    SessionEndedError,
    WorldloopError,
)
from worldloop.session.line import MAX_KEPT, QueueLimits, StoppingError
from worldloop.session.picture_host import PictureOrder, PictureQueueFullError, PictureTooLargeError
from worldloop.session.pictures import (
    TELL_S,
    Finished,
    Making,
    NoSuchPictureError,
    PictureRequest,
    Pictures,
    Queued,
)

STEPS = 4

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """A queue with its host, clock and counts."""

    def __init__(self, host: Any, counts: Any, **limits: Any) -> None:
        self.host, self.clock, self.counts = host, ManualClock(100.0), counts
        chosen = QueueLimits(**{"waiting": 3, "keep_s": 60.0, "keep_bytes": 10**6, **limits})
        self.pictures = Pictures(host, chosen, clock=self.clock, observer=counts)

    def order(
        self, seed: int = 1, n: int = 1, size: tuple[int, int] = (32, 48), **more: Any
    ) -> PictureRequest:
        chosen = {"prompt": "a lake", "negative": "", "steps": STEPS, "guidance": 3.0, "shift": 5.0, **more}
        orders = [PictureOrder(size=size, seed=seed + index, **chosen) for index in range(n)]
        return self.pictures.submit(orders)

    async def asked(self, index: int = -1, *, of: int = 1) -> Any:
        """A job, once there are `of` of them and this one waits for its next pass."""
        await until(lambda: len(self.host.jobs) >= of and self.host.jobs[index].asked)
        return self.host.jobs[index]

    async def over(self, *requests: PictureRequest) -> None:
        await until(lambda: all(request.over for request in requests))


async def until(true: Callable[[], bool]) -> None:
    """Give others turns until it is so."""
    while not true():  # noqa: ASYNC110 -- what is waited for has no event
        await asyncio.sleep(0)


@pytest.fixture
def desk(scripted_pictures: Any, doubles: Any) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(*, held: bool = True, **limits: Any) -> AsyncIterator[Desk]:
        host = scripted_pictures()
        host.held = held
        it = Desk(host, doubles.Counts(), **limits)
        try:
            async with asyncio.timeout(60):
                yield it
        finally:
            await it.pictures.close()

    return opened


async def follow(it: Desk, request: PictureRequest) -> list[Any]:
    return [news async for news in it.pictures.watch(request)]


async def test_the_course_of_a_request(desk: Any) -> None:
    async with desk(held=False) as it:
        request = it.order(previews=1)
        news = await follow(it, request)

    assert news[0] == Queued(position=0, eta_s=2.0)
    steps = news[1:-1]
    assert [(each.done, each.steps, each.eta_s) for each in steps] == [
        (1, 4, 1.5),
        (2, 4, 1.0),
        (3, 4, 0.5),
        (4, 4, 0.0),
    ]
    assert [each.nth for each in steps if each.preview is not None] == [0]
    assert isinstance(news[-1], Finished)
    assert dict(it.counts.pictures) == {"queued": 1, "made": 1}
    assert it.counts.phases == ["queue", "denoise", "decode", "file"]


async def test_a_finished_picture_is_its_pixels_its_file_and_its_receipt(desk: Any) -> None:
    async with desk(held=False) as it:
        (made,) = await it.pictures.result(it.order(seed=7))
        kept = it.pictures.kept(made.id)

        assert it.pictures.get(made.id) is made.picture
    assert kept is made
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(made.file))), made.picture.pixels)
    receipt = made.receipt.to_dict()
    assert receipt["file_hash"] == hashlib.sha256(made.file).hexdigest()
    assert receipt["pixel_hash"] == hashlib.sha256(made.picture.pixels.tobytes()).hexdigest()
    assert receipt["order"]["seed"] == 7


async def test_requests_are_made_in_order_one_picture_at_a_time(desk: Any) -> None:
    async with desk() as it:
        requests = [it.order(seed=10 * k, n=2) for k in range(3)]
        for count in range(6):
            job = await it.asked(of=count + 1)
            assert [each.closed for each in it.host.jobs] == [True] * count + [False]
            it.host.held = False
            job.step()
            await until(lambda count=count: sum(len(each.finished) for each in requests) > count)
            it.host.held = True
        await it.over(*requests)

    assert [job.order.seed for job in it.host.jobs] == [0, 1, 10, 11, 20, 21]


async def test_places_and_times_are_told_as_they_change(desk: Any) -> None:
    async with desk() as it:
        first, second, third = it.order(1), it.order(2), it.order(3, n=2)
        told: dict[int, list[Any]] = {1: [], 2: [], 3: []}

        async def listen(request: PictureRequest, name: int) -> None:
            async for news in it.pictures.watch(request):
                told[name].append(news)

        listeners = [
            asyncio.ensure_future(listen(each, k)) for k, each in enumerate((first, second, third), 1)
        ]
        job = await it.asked()
        await until(lambda: all(told.values()))
        start = {name: news[-1] for name, news in told.items()}
        job.step()
        await until(lambda: len(told[1]) == 2)
        quiet = len(told[3])
        # A place that stays the same is told again only after a while, with what is left then.
        it.clock.shift(TELL_S)
        (await it.asked()).step()
        await until(lambda: len(told[3]) > quiet)
        again = told[3][-1]
        it.host.held = False
        (await it.asked()).step()
        await asyncio.gather(*listeners)

    assert start == {
        1: Queued(position=0, eta_s=2.0),
        2: Queued(position=1, eta_s=4.0),
        3: Queued(position=2, eta_s=8.0),
    }
    assert quiet == 1
    assert again == Queued(position=2, eta_s=7.0)
    places = [news.position for news in told[3] if isinstance(news, Queued)]
    assert places == sorted(places, reverse=True)
    assert (places[0], places[-1]) == (2, 0)
    assert sum(isinstance(news, Making) for news in told[3]) == 2 * STEPS


async def test_times_are_unknown_until_measured(desk: Any) -> None:
    async with desk() as it:
        it.host.per_pass = None
        request = it.order()
        watching = it.pictures.watch(request)

        assert await anext(watching) == Queued(position=0, eta_s=None)
        await watching.aclose()


async def test_a_full_queue_refuses_and_says_when_to_come_back(desk: Any) -> None:
    async with desk(waiting=1) as it:
        it.order(1)
        await it.asked()
        it.order(2)
        with pytest.raises(PictureQueueFullError, match="about 2 s") as known:
            it.order(3)
        (await it.asked()).step()
        await it.asked()
        with pytest.raises(PictureQueueFullError, match=r"in about \d s"):
            it.order(3)
        it.host.per_pass = None
        with pytest.raises(PictureQueueFullError) as unknown:
            it.order(3)

    assert (known.value.retry_s, unknown.value.retry_s) == (2.0, None)
    assert known.value.http_status == 429
    assert it.counts.pictures["queued"] == 2


async def test_a_size_that_does_not_fit_is_refused_before_it_waits(desk: Any) -> None:
    async with desk(waiting=1) as it:
        it.order(1)
        it.order(2)
        with pytest.raises(PictureTooLargeError, match="128x128"):
            it.order(3, size=(256, 256))

        assert it.pictures.waiting == 1


async def test_what_waits_gives_up_its_place_at_once(desk: Any) -> None:
    async with desk() as it:
        first, second, third = (it.order(seed) for seed in (1, 2, 3))
        job = await it.asked()
        it.pictures.cancel(second)

        assert it.pictures.waiting == 1
        assert not job.closed
        it.host.held = False
        job.step()
        await it.over(first, third)

    assert [each.order.seed for each in it.host.jobs] == [1, 3]
    assert dict(it.counts.pictures) == {"queued": 3, "made": 2, "cancelled": 1}


@pytest.mark.parametrize("picture", [0, 1])
@pytest.mark.parametrize("done", range(STEPS + 1))
async def test_cancelling_at_any_point_ends_it_and_the_next_is_made(
    desk: Any, picture: int, done: int
) -> None:
    async with desk() as it:
        request, after = it.order(1, n=2), it.order(5)
        for index in range(picture + 1):
            for _ in range(STEPS + 1 if index < picture else done):
                (await it.asked(of=index + 1)).step()
        job = await it.asked(of=picture + 1)
        it.pictures.cancel(request)

        assert job.closed
        assert it.pictures.waiting == 0
        it.host.held = False
        await until(lambda: len(it.host.jobs) == picture + 2)
        if it.host.jobs[-1].asked:
            it.host.jobs[-1].step()
        await it.over(after)
        assert len(after.finished) == 1

    assert dict(it.counts.pictures) == {"queued": 3, "made": picture + 1, "cancelled": 2 - picture}


async def test_cancelling_before_the_first_pass_closes_what_was_just_begun(desk: Any) -> None:
    async with desk() as it:
        request = it.order()
        await until(lambda: request.begun is not None)
        it.pictures.cancel(request)
        it.host.held = False
        after = it.order(2)
        await it.over(after)

    assert [job.closed for job in it.host.jobs] == [True] * len(it.host.jobs)
    assert len(after.finished) == 1


async def test_cancelling_what_is_over_changes_nothing(desk: Any) -> None:
    async with desk(held=False) as it:
        request = it.order()
        (made,) = await it.pictures.result(request)
        it.pictures.cancel(request)

        assert it.pictures.kept(made.id) is made
    assert dict(it.counts.pictures) == {"queued": 1, "made": 1}


ERRORS = [
    (EngineError("out of luck"), EngineError, "out of luck"),
    (DeviceMemoryError("too little memory"), DeviceMemoryError, "too little memory"),
    (CapacityError("no room"), CapacityError, "no room"),
    (RuntimeError("/a/secret/path"), EngineError, "the picture could not be made"),
]


@pytest.mark.parametrize(("error", "kind", "message"), ERRORS)
@pytest.mark.parametrize("at", [0, 2, STEPS])
async def test_a_failure_is_its_own_requests_only(
    desk: Any, caplog: pytest.LogCaptureFixture, error: Exception, kind: type, message: str, at: int
) -> None:
    async with desk(held=False) as it:
        (before,) = await it.pictures.result(it.order(5))
        it.host.script[2, at] = error
        failing, after = it.order(1, n=3), it.order(5)
        news = []
        with pytest.raises(kind, match=message):
            async for each in it.pictures.watch(failing):
                news.append(each)  # noqa: PERF401 -- what came before the error counts
        (made,) = await it.pictures.result(after)

    assert [each.index for each in news if isinstance(each, Finished)] == [0]
    assert made.file == before.file, "the next one gives the same bytes as before"
    assert dict(it.counts.pictures) == {"queued": 5, "made": 3, "failed": 2}
    # What the engine knows it has told.
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == (["picture.broke"] if isinstance(error, RuntimeError) else [])


async def test_a_refused_start_is_a_failure(desk: Any) -> None:
    async with desk() as it:
        it.host.refuse = CapacityError("no room beside what runs")
        with pytest.raises(CapacityError, match="no room"):
            await it.pictures.result(it.order())


async def test_a_lost_device_fails_every_request_once_and_is_not_logged_again(
    desk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk(held=False) as it:
        it.host.script[1, 2] = DeviceLostError("the device is out of service: burnt")
        requests = [it.order(seed) for seed in (1, 2, 3)]
        ends = await asyncio.gather(*(follow(it, each) for each in requests), return_exceptions=True)
        with pytest.raises(DeviceLostError, match="burnt"):
            it.order(4)

    assert [type(end) for end in ends] == [DeviceLostError] * 3
    assert dict(it.counts.pictures) == {"queued": 3, "failed": 3}
    # Whoever lost it has said so, in one line.
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_pictures_are_forgotten_in_time(desk: Any) -> None:
    async with desk(held=False, keep_s=60.0) as it:
        (made,) = await it.pictures.result(it.order())
        it.clock.shift(59)
        assert it.pictures.get(made.id) is made.picture

        it.clock.shift(1)
        with pytest.raises(NoSuchPictureError, match="forgotten"):
            it.pictures.get(made.id)
        assert it.pictures.kept_bytes == 0


async def test_the_oldest_goes_when_there_are_too_many_bytes_and_the_newest_stays(desk: Any) -> None:
    async with desk(held=False, keep_bytes=1) as it:
        first, second = await it.pictures.result(it.order(n=2))

        assert it.pictures.kept_bytes == second.nbytes
        assert it.pictures.kept(second.id) is second
        with pytest.raises(NoSuchPictureError):
            it.pictures.get(first.id)


def test_what_is_kept() -> None:
    limits = QueueLimits(waiting=1, keep_s=10, keep_bytes=100)

    assert limits.outdated([], 0) == 0
    assert limits.outdated([(0, 50), (1, 50)], 9) == 0
    assert limits.outdated([(0, 50), (1, 51)], 9) == 1
    assert limits.outdated([(0, 999)], 9) == 0
    assert limits.outdated([(0, 1), (5, 1)], 10) == 1
    assert limits.outdated([(0, 1), (5, 1)], 15) == 2
    assert limits.outdated([(0, 0)] * (MAX_KEPT + 3), 9) == 3


async def test_ids_are_not_to_be_guessed(desk: Any) -> None:
    async with desk(held=False) as it:
        made = await it.pictures.result(it.order(n=3))

    names = [each.id.removeprefix("image_") for each in made]
    assert [len(bytes.fromhex(name)) for name in names] == [16] * 3
    assert len(set(names)) == 3


async def test_a_stop_ends_what_waits_and_lets_the_one_in_the_making_finish(desk: Any) -> None:
    async with desk() as it:
        first, second = it.order(1), it.order(2)
        job = await it.asked()
        it.pictures.drain()
        with pytest.raises(StoppingError):
            await it.pictures.result(second)
        with pytest.raises(StoppingError):
            it.order(3)
        it.host.held = False
        job.step()

        assert len(await it.pictures.result(first)) == 1


async def test_closing_ends_everything(desk: Any) -> None:
    async with desk(held=False) as it:
        await it.pictures.result(it.order(1))
        it.host.held = True
        requests = [it.order(2), it.order(3)]
        job = await it.asked(of=2)
        await it.pictures.close()

        assert job.closed
        assert it.pictures.kept_bytes == 0
        for request in requests:
            with pytest.raises(SessionEndedError, match="stopping"):
                await it.pictures.result(request)


async def test_the_same_order_gives_the_same_bytes_whatever_is_beside_it(desk: Any) -> None:
    async with desk(held=False, waiting=9) as it:
        (alone,) = await it.pictures.result(it.order(5))
        serial = [(await it.pictures.result(it.order(seed)))[0] for seed in (4, 5, 6)]
        together = await asyncio.gather(*(it.pictures.result(it.order(seed)) for seed in (4, 5, 6)))
        refused: list[WorldloopError] = []
        try:
            it.order(5, size=(256, 256))
        except WorldloopError as error:
            refused.append(error)
        (after,) = await it.pictures.result(it.order(5))

    assert refused
    assert [each.file for each in serial] == [each[0].file for each in together]
    assert alone.file == serial[1].file == after.file != serial[0].file
