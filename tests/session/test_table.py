"""Games at the table: what holds a place, for how long, and what takes it up again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from worldloop.core.clock import ManualClock
from worldloop.core.errors import BusyError, EngineError
from worldloop.core.settings import Settings
from worldloop.session.host import GameOptions, HostReport, StartFrame
from worldloop.session.leases import Leases
from worldloop.session.stash import Stashed
from worldloop.session.table import ResumeError, Seat, Table

pytestmark = pytest.mark.anyio


class InlineHost:
    """Games from a list, one after another; the device says that it is free when a game is closed, unless `deaf`."""

    frame_size = (2, 2)
    active_profile = {"name": "walker", "jump_sprint": False, "controls": ["w"]}  # noqa: RUF012

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.games: list[Any] = []
        self.deaf = False
        self.error: Exception | None = None

    def start(self, frame: StartFrame, *, on_close: Callable[[], None], **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        game = self.make()
        close = game.close

        def closed() -> None:
            close()
            if not self.deaf and game.closed == 1:
                on_close()

        game.close = closed
        self.games.append(game)
        return game

    def report(self) -> HostReport:
        return HostReport()


class Hall:
    """A table with its doubles, on a clock that is moved by hand."""

    def __init__(self, doubles: Any, make_game: Callable[[], Any], **settings: Any) -> None:
        self.doubles = doubles
        self.clock = ManualClock()
        self.host = InlineHost(make_game)
        self.counts = doubles.Counts()
        self.leases = Leases(slots=settings.get("slots", 1), clock=self.clock, stale_s=20)
        self.table = Table(
            self.host,
            Settings(**{"stream_fps": 10, "session_limit_s": 0, "just_in_time": False, **settings}),
            clock=self.clock,
            observer=self.counts,
            leases=self.leases,
            threads=doubles.InlineThreads(),
            make_encoder=doubles.PlainEncoder,
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def play(self, seat: Seat) -> Any:
        """A new socket, on which the seat's game is played."""
        socket = self.doubles.MemorySocket(self.clock)
        self.tasks.append(asyncio.ensure_future(self.table.play(seat, socket)))
        await self.clock.advance(0)
        return socket

    async def open(self, user: str = "ann") -> Any:
        lease = self.leases.claim(user)
        assert lease is not None
        assert self.leases.mark_live(lease)
        frame = StartFrame(value=None, shape=(1,), model_id="alpha")
        return await self.play(await self.table.open(lease, Stashed(frame=frame, options=GameOptions())))

    async def resume(self, token: str, user: str = "ann") -> Any:
        return await self.play(await self.table.take_up(user, token))

    async def leave(self, socket: Any, code: int) -> None:
        await socket.inbox.put(code)
        await self.clock.advance(0)

    def events(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records]


def token(socket: Any) -> str:
    return str(socket.texts("hello")[0]["resume"]["token"])


@pytest.fixture
def hall(doubles: Any, inline_game: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("worldloop.session.game.ThreadPoolExecutor", lambda *_, **__: doubles.InlineThreads())

    @asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Hall]:
        before = asyncio.all_tasks()
        hall = Hall(doubles, settings.pop("make_game", inline_game), **settings)
        try:
            yield hall
        finally:
            stopping = asyncio.ensure_future(hall.table.stop("the test is over"))
            await hall.clock.advance(30)
            await stopping
            await asyncio.gather(*hall.tasks, return_exceptions=True)
            assert hall.leases.taken == 0
            assert asyncio.all_tasks() <= before, "a task is left"

    return make


async def test_a_break_holds_the_place_and_the_world(hall, caplog) -> None:
    caplog.set_level("INFO", "worldloop")
    async with hall() as h:
        socket = await h.open()
        await h.clock.advance(0.3)
        await h.leave(socket, 1006)
        assert (h.leases.live, h.leases.taken, h.table.held) == (0, 1, 1)
        assert h.host.games[0].closed == 0
        asked = len(h.host.games[0].controls)
        await h.clock.advance(19)
        assert len(h.host.games[0].controls) == asked, "nothing is made while nobody looks"
        again = await h.resume(token(socket))
        await h.clock.advance(0.5)
        assert (h.leases.live, h.leases.taken, h.table.held) == (1, 1, 0)
        assert len(h.host.games) == 1
        assert again.pictures[0][1][:1] == b"\x01"
        await h.leave(again, 1001)
        assert h.events(caplog) == ["game.open", "game.held", "game.resumed", "game.end"]
        assert h.counts.resumed == 1
        assert h.counts.endings == ["left"]


async def test_hello_says_how_to_come_back_and_what_is_played(hall) -> None:
    async with hall(session_limit_s=60, resume_s=7) as h:
        socket = await h.open()
        await h.clock.advance(2)
        await h.leave(socket, 1006)
        again = await h.resume(token(socket))
        (first,), (second,) = socket.texts("hello"), again.texts("hello")
        assert first["resume"]["within_s"] == second["resume"]["within_s"] == 7
        assert first["resume"]["token"] != second["resume"]["token"]
        assert (first["played_s"], second["played_s"]) == (0, 2)


@pytest.mark.parametrize("code", [1000, 1001, 1005])
async def test_a_clean_close_frees_the_place_at_once(hall, code) -> None:
    async with hall() as h:
        socket = await h.open()
        await h.leave(socket, code)
        assert h.leases.claim("bob") is not None
        assert h.host.games[0].closed >= 1
        with pytest.raises(ResumeError):
            await h.table.take_up("ann", token(socket))


async def test_too_late_is_too_late_and_frees_the_place(hall, caplog) -> None:
    caplog.set_level("INFO", "worldloop")
    async with hall(resume_s=20) as h:
        socket = await h.open()
        await h.leave(socket, 1006)
        await h.clock.advance(19.9)
        assert h.leases.claim("bob") is None
        await h.clock.advance(0.2)
        assert h.leases.claim("bob") is not None
        assert h.host.games[0].closed == 1
        with pytest.raises(ResumeError, match="POST /z0"):
            await h.table.take_up("ann", token(socket))
        assert h.events(caplog)[-1] == "game.expired"
        assert h.counts.endings == ["expired"]


async def test_a_token_is_good_once(hall) -> None:
    async with hall() as h:
        socket = await h.open()
        await h.leave(socket, 1006)
        again = await h.resume(token(socket))
        with pytest.raises(ResumeError):
            await h.table.take_up("ann", token(socket))
        await h.leave(again, 1006)
        with pytest.raises(ResumeError):
            await h.table.take_up("ann", token(socket))
        last = await h.resume(token(again))
        await h.clock.advance(0.2)
        assert last.pictures


@pytest.mark.parametrize("given", ["", "x", "é", "\ud800", "\0", "a" * 5000])
async def test_a_wrong_token_disturbs_nothing(hall, given) -> None:
    async with hall(slots=2) as h:
        ann, bob = await h.open("ann"), await h.open("bob")
        await h.leave(ann, 1006)
        for user, wrong in (("ann", given), ("ann", token(bob)), ("bob", token(ann)), ("eve", token(ann))):
            with pytest.raises(ResumeError):
                await h.table.take_up(user, wrong)
        await h.clock.advance(0.35)
        assert len(bob.pictures) == 4
        again = await h.resume(token(ann))
        await h.clock.advance(0.2)
        assert again.pictures


async def test_a_token_takes_over_from_a_socket_that_still_seems_open(hall) -> None:
    async with hall() as h:
        socket = await h.open()
        await h.clock.advance(0.35)
        taking = asyncio.ensure_future(h.resume(token(socket)))
        await h.clock.advance(0.3)
        again = await taking
        await h.clock.advance(0.5)
        assert socket.closed == (1008, "taken up elsewhere")
        shown = [unit[1] for _, unit in [*socket.pictures, *again.pictures]]
        assert shown[:9] == [0, 1, 1, 1, 1, 2, 2, 2, 2]
        assert (h.leases.live, len(h.host.games)) == (1, 1)
        # What the old connection still says is nobody's business any more.
        await h.leave(socket, 1000)
        before = len(again.pictures)
        await h.clock.advance(0.5)
        assert len(again.pictures) >= before + 4


async def test_an_old_socket_that_takes_nothing_does_not_delay_its_successor(hall) -> None:
    async with hall() as h:
        socket = await h.open()
        await h.clock.advance(0.15)
        socket.stuck = True
        await h.clock.advance(0.3)
        taking = asyncio.ensure_future(h.resume(token(socket)))
        await h.clock.advance(0.1)
        again = await taking
        await h.clock.advance(0.3)
        assert len(again.pictures) >= 3


async def test_of_two_that_bring_the_same_token_one_plays(hall) -> None:
    async with hall() as h:
        socket = await h.open()
        takers = [asyncio.ensure_future(h.resume(token(socket))) for _ in range(2)]
        await h.clock.advance(1)
        outcomes = await asyncio.gather(*takers, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, ResumeError)]
        (playing,) = [outcome for outcome in outcomes if outcome not in refused]
        assert playing.closed is None
        assert playing.pictures
        assert (h.leases.live, h.table.held, len(h.host.games)) == (1, 0, 1)


async def test_a_break_before_the_hello_was_told_ends_the_game(hall) -> None:
    async with hall() as h:
        lease = h.leases.claim("ann")
        h.leases.mark_live(lease)
        frame = StartFrame(value=None, shape=(1,), model_id="alpha")
        seat = await h.table.open(lease, Stashed(frame=frame, options=GameOptions()))
        socket = h.doubles.MemorySocket(h.clock)
        socket.gone = True
        socket.inbox.put_nowait(1006)
        await h.table.play(seat, socket)
        assert (h.leases.taken, h.table.held) == (0, 0)
        assert h.counts.endings == ["broken"]


async def test_a_successor_that_breaks_before_its_hello_leaves_the_token_good(hall) -> None:
    async with hall() as h:
        socket = await h.open()
        await h.leave(socket, 1006)
        seat = await h.table.take_up("ann", token(socket))
        lost = h.doubles.MemorySocket(h.clock)
        lost.gone = True
        lost.inbox.put_nowait(1006)
        await h.table.play(seat, lost)
        assert h.table.held == 1
        again = await h.resume(token(socket))
        await h.clock.advance(0.2)
        assert again.pictures


async def test_without_resume_a_break_is_an_end(hall) -> None:
    async with hall(resume_s=0) as h:
        socket = await h.open()
        assert "resume" not in socket.texts("hello")[0]
        await h.leave(socket, 1006)
        assert (h.leases.taken, h.table.held) == (0, 0)
        with pytest.raises(ResumeError):
            await h.table.take_up("ann", "x")


async def test_limit_slow_and_failed_games_are_over(hall, inline_game) -> None:
    async def limit(h: Hall) -> Any:
        socket = await h.open()
        await h.clock.advance(3.5)
        return socket

    async def slow(h: Hall) -> Any:
        socket = await h.open()
        socket.stuck = True
        await h.clock.advance(25)
        return socket

    for reach, kind, settings in (
        (limit, "limit", {"session_limit_s": 3}),
        (slow, "slow", {"slow_client_s": 4}),
        (limit, "failed", {"make_game": lambda: inline_game({2: EngineError("boom")})}),
    ):
        async with hall(**settings) as h:
            socket = await reach(h)
            assert h.counts.endings == [kind]
            assert h.leases.taken == 0
            with pytest.raises(ResumeError):
                await h.table.take_up("ann", token(socket))


async def test_a_game_that_fails_while_held_says_so_to_who_comes_back(hall, inline_game) -> None:
    game = inline_game({1: EngineError("boom")}, held=True)
    async with hall(make_game=lambda: game) as h:
        socket = await h.open()
        game.answer()
        await h.clock.advance(0)
        await h.leave(socket, 1006)
        game.answer()
        again = await h.resume(token(socket))
        await h.clock.advance(0.5)
        assert again.closed == (1011, "EngineError: boom")
        assert h.leases.taken == 0


async def test_the_limit_counts_play_only(hall) -> None:
    async with hall(session_limit_s=3) as h:
        socket = await h.open()
        await h.clock.advance(2)
        await h.leave(socket, 1006)
        await h.clock.advance(15)
        again = await h.resume(token(socket))
        await h.clock.advance(0.9)
        assert again.closed is None
        await h.clock.advance(0.3)
        assert again.closed is not None
        assert again.closed[0] == 1000


async def test_clear_ends_a_held_game_and_only_that(hall) -> None:
    async with hall(slots=2) as h:
        ann, bob = await h.open("ann"), await h.open("bob")
        await h.leave(ann, 1006)
        for user in ("ann", "bob", "eve"):
            h.table.clear(user)
        assert [game.closed for game in h.host.games] == [1, 0]
        assert h.counts.endings == ["replaced"]
        await h.clock.advance(0.35)
        assert len(bob.pictures) == 4
        await h.clock.advance(30)
        assert h.counts.endings == ["replaced"], "the timer of the cleared game is gone"


async def test_a_stop_ends_held_games_and_lets_nobody_back(hall) -> None:
    async with hall(slots=2) as h:
        ann, bob = await h.open("ann"), await h.open("bob")
        await h.leave(ann, 1006)
        await h.table.stop("going down")
        await h.clock.advance(0.1)
        assert h.leases.taken == 0
        assert bob.closed == (1001, "going down")
        with pytest.raises(ResumeError):
            await h.table.take_up("ann", token(ann))


async def test_a_host_that_refuses_gives_the_place_back(hall) -> None:
    async with hall() as h:
        h.host.error = BusyError("no room on the device")
        with pytest.raises(BusyError):
            await h.open()
        assert h.leases.taken == 0


async def test_a_device_that_never_confirms_keeps_a_place_for_a_while_only(hall) -> None:
    async with hall() as h:
        h.host.deaf = True
        socket = await h.open()
        await h.leave(socket, 1001)
        await h.clock.advance(4.9)
        assert h.leases.taken == 1
        await h.clock.advance(0.2)
        assert h.leases.taken == 0


async def test_a_play_that_is_cancelled_leaves_nothing(hall) -> None:
    async with hall() as h:
        await h.open()
        h.tasks[0].cancel()
        await h.clock.advance(0)
        assert (h.leases.taken, h.host.games[0].closed) == (0, 1)


async def test_pictures_that_wait_are_counted_over_all_games(hall) -> None:
    async with hall(slots=2) as h:
        ann = await h.open("ann")
        await h.open("bob")
        assert h.table.pictures == 6
        await h.leave(ann, 1006)
        assert h.table.pictures == 7, "and the one that was in hand"


async def test_two_hundred_breaks_and_returns_leave_one_game(hall) -> None:
    async with hall() as h:
        socket = await h.open()
        for _ in range(200):
            await h.leave(socket, 1006)
            socket = await h.resume(token(socket))
        assert (h.leases.taken, len(h.host.games)) == (1, 1)
        assert h.clock.sleepers <= 3
        running = [task for task in h.tasks if not task.done()]
        assert len(running) == 1
