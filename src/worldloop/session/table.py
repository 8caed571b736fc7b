"""The games of a server: begun, played over one socket after another, held while a connection is broken, and ended.

    open -> play -> (break) hold -> take_up -> play -> ... -> end

Owns the tokens that take a game up again, and that a slot comes back on every path. Does not own who may play
(`session.arena`) or the flow on one socket (`session.game`). One instance a server, used on its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Executor

from worldloop.codec.h264 import H264Encoder
from worldloop.core.clock import Clock, within
from worldloop.core.errors import NoGameError, NotReadyError
from worldloop.core.settings import Settings
from worldloop.core.telemetry import SessionLog, log_event, session_log
from worldloop.session.game import Encoder, GameSession
from worldloop.session.host import Game, Host
from worldloop.session.leases import Lease, Leases
from worldloop.session.observer import Observer
from worldloop.session.progress import Progress
from worldloop.session.socket import EXPIRED, MOVED, REPLACED, Ending, PlayerSocket, failed, over
from worldloop.session.stash import Stashed
from worldloop.wire.controls import ControlState
from worldloop.wire.world import hello_message

SMALL_PICTURE_ROWS = 240
"""Pictures with fewer rows are streamed at twice their size: 4:2:0 then loses no colour."""

FREE_GRACE_S = 5.0
"""How long a slot waits for the device to say that it is free, before it is given to others anyway."""

_log = logging.getLogger(__name__)


class ResumeError(NotReadyError):
    """The token takes up no game: it is unknown, used, expired or another player's."""


class Seat:
    """One game and its place.

    Attributes:
        session: the game on its present socket; None while it is held.
        timer: ends the game when it is held for too long.
        token: what takes the game up again; None until a socket has been told it.
        spent: the token that brought the present socket; good again if that breaks before it is told the next one.
        freed: set once the device has given the game's share back.
    """

    def __init__(self, lease: Lease, progress: Progress, model_id: str, freed: asyncio.Event) -> None:
        self.lease, self.progress, self.model_id, self.freed = lease, progress, model_id, freed
        self.session: GameSession | None = None
        self.timer: asyncio.Task[None] | None = None
        self.token: str | None = None
        self.spent: str | None = None
        self.sockets = 0

    @property
    def user_id(self) -> str:
        return self.lease.user_id

    def admits(self, token: str) -> bool:
        """Compared in constant time."""
        given = token.encode(errors="replace")
        return self.token is not None and secrets.compare_digest(self.token.encode(), given)

    def renew(self, token: str) -> None:
        self.token = token


class Table:
    """Every game of one process, one a player."""

    def __init__(
        self,
        host: Host,
        settings: Settings,
        *,
        clock: Clock,
        observer: Observer,
        leases: Leases,
        threads: Executor,
        make_encoder: Callable[[], Encoder] | None = None,
    ) -> None:
        self._host, self._settings, self._clock, self._observer = host, settings, clock, observer
        self._leases, self._threads = leases, threads
        self._make_encoder = make_encoder or self._h264
        self._seats: dict[str, Seat] = {}
        self._closing: str | None = None

    @property
    def held(self) -> int:
        """Number of games that wait after a break."""
        return sum(seat.session is None for seat in self._seats.values())

    @property
    def pictures(self) -> int:
        """Pictures of all games that are made and not sent."""
        return sum(len(seat.progress.queue) for seat in self._seats.values())

    async def open(self, lease: Lease, stashed: Stashed) -> Seat:
        """Begin a game for a live lease. The lease is released when the host refuses. Raises what the host raises."""
        freed = asyncio.Event()
        try:
            game = await self._start(stashed, freed)
        except BaseException:
            self._leases.release(lease)
            raise
        start = ControlState.start(
            stream_fps=self._settings.stream_fps, fps_embedding=self._settings.fps_embedding
        )
        log = SessionLog() if self._settings.log_streaming else None
        seat = Seat(lease, Progress(game, start, log=log), stashed.frame.model_id, freed)
        self._seats[lease.user_id] = seat
        return seat

    def playing(self, user_id: str) -> GameSession:
        """This player's game on its present socket. NoGameError when there is none."""
        seat = self._seats.get(user_id)
        if seat is None or seat.session is None:
            raise NoGameError("you are not playing: open the game's socket first")
        return seat.session

    async def take_up(self, user_id: str, token: str) -> Seat:
        """The game that `token` belongs to, taken from its broken or still open socket; `play` must follow at once.

        Raises:
            ResumeError: see its docstring.
        """
        while True:
            seat = self._seats.get(user_id)
            if seat is None or not seat.admits(token):
                raise ResumeError(
                    "no game to resume: the token is used, too late or not yours; open without it, or POST /z0 first"
                )
            if seat.session is None:
                break
            seat.session.end(MOVED)
            await seat.session.finished.wait()
        seat.token, seat.spent = None, seat.token
        _stop_timer(seat)
        self._leases.mark_live(seat.lease)
        self._observer.game_resumed()
        return seat

    async def play(self, seat: Seat, socket: PlayerSocket) -> None:
        """Play on this socket until it or the game ends, and close it."""
        session = self._session(seat, socket)
        seat.session = session
        seat.sockets += 1
        with session_log(seat.progress.log or SessionLog()):
            log_event(_log, "game.open" if seat.sockets == 1 else "game.resumed", user=seat.user_id)
            if self._closing is not None:
                session.end(over("stopped", self._closing))
            try:
                ending = await session.run()
            except BaseException as error:
                self._leave(seat, failed(error))
                self._leases.release(seat.lease)
                raise
            seat.token = seat.token or seat.spent
            if ending.kind in ("broken", "moved") and seat.token is not None and self._closing is None:
                self._hold(seat, ending)
            else:
                await self._end(seat, ending)
        await session.close(ending)

    def clear(self, user_id: str) -> None:
        """End this player's held game, if there is one; whoever claims the slot next gets it."""
        seat = self._seats.get(user_id)
        if seat is not None and seat.session is None:
            self._leave(seat, REPLACED)
            self._leases.release(seat.lease)

    async def stop(self, message: str) -> None:
        """End every game. The sockets of those that are played are told `message` and closed by their `play`."""
        self._closing = message
        ending = over("stopped", message)
        seats = tuple(self._seats.values())
        for seat in seats:
            if seat.session is not None:
                seat.session.end(ending)
        await asyncio.gather(*(self._end(seat, ending) for seat in seats if seat.session is None))

    def _hold(self, seat: Seat, ending: Ending) -> None:
        seat.session = None
        seat.progress.let_go()
        self._leases.hold(seat.lease)
        seat.timer = asyncio.ensure_future(self._expire(seat))
        if ending.kind == "broken":
            log_event(_log, "game.held", user=seat.user_id, within_s=self._settings.resume_s)

    async def _expire(self, seat: Seat) -> None:
        await self._clock.sleep(self._settings.resume_s)
        seat.timer = None
        await self._end(seat, EXPIRED)

    async def _end(self, seat: Seat, ending: Ending) -> None:
        self._leave(seat, ending)
        try:
            await within(self._clock, FREE_GRACE_S, seat.freed.wait())
        except TimeoutError:
            log_event(
                _log, "slot.unconfirmed", level=logging.WARNING, user=seat.user_id, after_s=FREE_GRACE_S
            )
        finally:
            self._leases.release(seat.lease)

    def _leave(self, seat: Seat, ending: Ending) -> None:
        """The game is over, for everyone but the slot."""
        self._seats.pop(seat.user_id, None)
        seat.session = None
        _stop_timer(seat)
        seat.progress.game.close()
        self._observer.game_ended(ending.kind)
        log_event(
            _log,
            "game.end" if ending.kind != "expired" else "game.expired",
            level=logging.ERROR if ending.kind == "failed" else logging.INFO,
            user=seat.user_id,
            how=ending.kind,
            why=ending.reason,
            pictures=seat.progress.pictures,
        )

    async def _start(self, stashed: Stashed, freed: asyncio.Event) -> Game:
        loop = asyncio.get_running_loop()

        def on_close() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(freed.set)

        def start() -> Game:
            return self._host.start(
                stashed.frame, options=stashed.options, seed=self._settings.seed, on_close=on_close
            )

        starting = asyncio.ensure_future(loop.run_in_executor(self._threads, start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close_late)
            raise

    def _session(self, seat: Seat, socket: PlayerSocket) -> GameSession:
        height, width = self._host.frame_size
        token = secrets.token_urlsafe(24) if self._settings.resume_s > 0 else None
        return GameSession(
            progress=seat.progress,
            socket=socket,
            make_encoder=self._make_encoder,
            clock=self._clock,
            settings=self._settings,
            observer=self._observer,
            hello=hello_message(
                height=height * self._scale,
                width=width * self._scale,
                fps=seat.progress.heard.state.stream_fps,
                session_limit_s=self._settings.session_limit_s,
                model_id=seat.model_id,
                profile=self._host.active_profile,
                played_s=seat.progress.played_s,
                rewind_s=self._settings.rewind_s if self._settings.rewind_bytes else 0.0,
                resume=None if token is None else (token, self._settings.resume_s),
            ),
            greeted=(lambda: None) if token is None else lambda: seat.renew(token),
        )

    def _h264(self) -> Encoder:
        height, width = self._host.frame_size
        return H264Encoder(
            height=height,
            width=width,
            fps=self._settings.stream_fps,
            bitrate=self._settings.h264_bitrate,
            gop=self._settings.h264_gop,
            encoder=self._settings.h264_encoder,
            scale=self._scale,
        )

    @property
    def _scale(self) -> int:
        if self._settings.stream_scale:
            return self._settings.stream_scale
        return 2 if self._host.frame_size[0] < SMALL_PICTURE_ROWS else 1


def _stop_timer(seat: Seat) -> None:
    if seat.timer is not None:
        seat.timer.cancel()
        seat.timer = None


def _close_late(starting: asyncio.Future[Game]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
