"""The manual clock, and waiting with a limit."""

from __future__ import annotations

import asyncio

import pytest

from worldloop.core.clock import ManualClock, SystemClock, within

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_sleepers_wake_in_order_at_their_times() -> None:
    clock, woken = ManualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    tasks = [asyncio.ensure_future(sleeper(seconds)) for seconds in (3, 1, 2)]
    await clock.advance(2.5)
    assert woken == [(1, 1), (2, 2)]
    assert clock.sleepers == 1
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert woken[-1] == (3, 3)
    assert clock.monotonic() == 3.5


async def test_time_follows_the_same_hand() -> None:
    clock = ManualClock(epoch=100)
    clock.shift(5)
    assert (clock.monotonic(), clock.time()) == (5, 105)


async def test_within_gives_the_result() -> None:
    async def work() -> int:
        return 3

    assert await within(ManualClock(), 1, work()) == 3


async def test_within_passes_the_error_on() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await within(ManualClock(), 1, work())


async def test_within_cancels_what_takes_too_long() -> None:
    clock, cancelled = ManualClock(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiting = asyncio.ensure_future(within(clock, 2, work()))
    await clock.advance(1.9)
    assert not waiting.done()
    await clock.advance(0.2)
    with pytest.raises(TimeoutError, match="2 s"):
        await waiting
    assert cancelled.is_set()
    assert clock.sleepers == 0


async def test_the_system_clock_moves() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.time() > 1_700_000_000


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancellation_is_never_lost_whenever_it_comes(turns: int) -> None:
    async def play() -> None:
        await within(ManualClock(), 1, asyncio.sleep(0))
        await asyncio.Event().wait()

    playing = asyncio.ensure_future(play())
    for _ in range(turns):
        await asyncio.sleep(0)
    playing.cancel()
    done, _ = await asyncio.wait({playing}, timeout=30)
    playing.cancel()
    assert done == {playing}
    assert playing.cancelled()
