"""The server's games: who may play, with which start picture, and from the first byte to the last.

Owns the order of the checks, and that a slot comes back on every path. Does not own routes or sockets
(`server`), the device (`session.host`) or the flow of one game (`session.game`). One instance a server, used
on its event loop; what blocks runs on a small pool of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.h264 import H264Encoder
from worldloop.codec.still import cover_crop, read_picture
from worldloop.core.clock import Clock, within
from worldloop.core.errors import BusyError, InvalidInputError, NotReadyError, TooLargeError, WorldloopError
from worldloop.core.settings import Settings
from worldloop.core.telemetry import SessionLog, log_event, session_log
from worldloop.session.game import Encoder, GameSession
from worldloop.session.host import Game, GameOptions, Host, StartFrame
from worldloop.session.leases import Lease, Leases
from worldloop.session.observer import Observer
from worldloop.session.occupancy import Occupancy
from worldloop.session.socket import Ending, PlayerSocket, describe
from worldloop.session.stash import Stash, Stashed
from worldloop.session.tickets import Tickets
from worldloop.wire.forms import StartForm
from worldloop.wire.world import (
    BUSY_HTTP,
    BUSY_SOCKET,
    ModelsAnswer,
    ReserveAnswer,
    StartAnswer,
    StatusAnswer,
    SwitchAnswer,
    check_user_id,
    close_reason,
    hello_message,
)

SMALL_PICTURE_ROWS = 240
"""Pictures with fewer rows are streamed at twice their size: 4:2:0 then loses no colour."""

FREE_GRACE_S = 5.0
"""How long a slot waits for the device to say that it is free, before it is given to others anyway."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Arena:
    """Every game of one process."""

    def __init__(
        self,
        host: Host,
        settings: Settings,
        *,
        clock: Clock,
        observer: Observer,
        make_encoder: Callable[[], Encoder] | None = None,
    ) -> None:
        self._host, self._settings, self._clock, self._observer = host, settings, clock, observer
        self._make_encoder = make_encoder or self._h264
        self._leases = Leases(slots=settings.slots, clock=clock, stale_s=settings.lease_stale_s)
        self._occupancy = Occupancy(
            self._leases, slots=settings.slots, clock=clock, pending_s=settings.pending_z0_s
        )
        self._stash = Stash(clock=clock, ttl_s=settings.stash_s, limit=settings.stash_max)
        secret = settings.ticket_secret.get_secret_value() if settings.ticket_secret is not None else None
        self.tickets = Tickets(secret=secret, server_id=settings.server_id, clock=clock)
        self._sessions: set[GameSession] = set()
        self._device = asyncio.Lock()
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="arena")
        # Fewer than the threads: pictures that take long to read must not keep a game from starting.
        self._reading = asyncio.Semaphore(2)
        self._sockets = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing: str | None = None

    @property
    def ready(self) -> bool:
        """Whether a model is in service and games may begin."""
        return self._closing is None and self._host.active_model_id is not None

    def models(self) -> ModelsAnswer:
        """What can be served, and the choices of the active model."""
        return ModelsAnswer(
            models=self._host.model_ids(),
            default_model_id=self._host.default_model_id,
            active_model_id=self._host.active_model_id,
            **self._host.describe(),
        )

    def status(self) -> StatusAnswer:
        """Health and occupancy, from memory."""
        occupancy = self._occupancy.report()
        active = self._host.active_model_id
        return StatusAnswer(
            busy=occupancy.busy,
            occupancy=occupancy,
            ws_active=self._leases.live > 0,
            server_id=self._settings.server_id,
            tickets_required=self.tickets.required,
            session_limit_s=self._settings.session_limit_s,
            active_model_id=active,
            active_profile=str(self._host.active_profile["name"]) if active is not None else None,
        )

    async def prepare(
        self,
        user_id: str,
        *,
        ticket: str,
        data: bytes,
        filename: str,
        model_id: str,
        form: Callable[[], StartForm],
    ) -> StartAnswer:
        """Encode a start picture and keep it for this player's next game.

        Raises:
            WorldloopError: refused; its class says why.
        """
        self._admit(user_id, ticket)
        with self._occupancy.inflight():
            self._refuse_when_busy()
            choices = form()
            options = GameOptions(
                nfe=choices.nfe,
                nfe_mode=choices.nfe_mode,
                sphere=choices.sphere,
                reprefill_every=choices.reprefill_every,
                focus=choices.focus,
            )
            self._resolve(model_id)
            async with self._reading:
                picture = await self._call(lambda: self._read(data, filename))
            async with self._device:
                self._refuse_when_busy()
                await self._serve(self._resolve(model_id), user_id)
                focus = await self._call(lambda: self._host.configure(options))
                frame = await self._call(lambda: self._host.encode(picture))
                described, profile = self._host.describe(), self._host.active_profile
            self._stash.put(user_id, Stashed(frame=frame, options=options))
            self._occupancy.expect(user_id)
        log_event(_log, "z0.ready", user=user_id, model=frame.model_id, bytes=len(data))
        return StartAnswer(
            model_id=frame.model_id,
            z0_shape=list(frame.shape),
            nfe=described["nfe"],
            sphere=described["sphere"],
            reprefill=described["reprefill"],
            focus=focus,
            profile=profile,
        )

    async def switch(self, user_id: str, *, ticket: str, model_id: str) -> SwitchAnswer:
        """Serve another model. Raises `WorldloopError` when refused."""
        if user_id:
            check_user_id(user_id)
        self.tickets.check(user_id, ticket)
        with self._occupancy.inflight():
            self._refuse_when_busy()
            async with self._device:
                wanted = self._resolve(model_id)
                await self._serve(wanted, user_id or "-")
        return SwitchAnswer(model_id=wanted)

    def reserve(self, user_id: str, *, ticket: str) -> ReserveAnswer:
        """Hold a slot until the player's socket opens. Raises `WorldloopError` when refused."""
        self._admit(user_id, ticket)
        self._refuse_when_busy()
        lease = self._leases.claim(user_id)
        if lease is None:
            raise BusyError(BUSY_HTTP)
        if user_id not in self._stash:
            self._leases.release(lease)
            raise NotReadyError(f"no start picture yet: POST /z0/{user_id} first")
        log_event(_log, "slot.reserved", user=user_id)
        return ReserveAnswer()

    async def play(self, user_id: str, *, ticket: str, socket: PlayerSocket) -> None:
        """One open socket, from the checks to its close. The slot comes back however this ends."""
        self._sockets += 1
        self._idle.clear()
        try:
            await self._play(user_id, ticket, socket)
        finally:
            self._sockets -= 1
            if self._sockets == 0:
                self._idle.set()

    async def _play(self, user_id: str, ticket: str, socket: PlayerSocket) -> None:
        try:
            lease, stashed = self._seat(user_id, ticket)
        except WorldloopError as error:
            await self._turn_away(socket, error)
            return
        freed = asyncio.Event()
        session: GameSession | None = None
        try:
            try:
                game = await self._start(stashed, freed)
            except Exception as error:  # noqa: BLE001 (told to the player and logged; the slot is freed below)
                freed.set()
                await self._turn_away(socket, error)
                return
            log = SessionLog() if self._settings.log_streaming else None
            session = self._session(game, socket, stashed.frame, log)
            ending = await self._run(session, user_id, log or SessionLog())
            await self._await_free(freed, user_id)
        finally:
            self._leases.release(lease)
        await session.close(ending)

    async def stop(self, message: str) -> None:
        """Refuse what comes, end every game with `message`, and wait until every socket is closed."""
        self._closing = message
        for session in tuple(self._sessions):
            session.stop(message)
        await self._idle.wait()

    def close(self) -> None:
        """After `stop`, when no request is left: forget the start pictures and end the threads."""
        self._stash.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _admit(self, user_id: str, ticket: str) -> None:
        check_user_id(user_id)
        self.tickets.check(user_id, ticket)

    def _refuse_when_busy(self) -> None:
        if self._closing is not None or self._leases.busy:
            raise BusyError(BUSY_HTTP)

    def _resolve(self, model_id: str) -> str:
        wanted = model_id.strip() or self._host.active_model_id or self._host.default_model_id
        valid = self._host.model_ids()
        if wanted not in valid:
            wanted = wanted.lower()
        if wanted not in valid:
            raise InvalidInputError(f"unknown model_id {wanted[:64]!r}; valid: {', '.join(valid)}")
        return wanted

    async def _serve(self, model_id: str, user_id: str) -> None:
        if model_id == self._host.active_model_id:
            return
        # The weights are shared: no game may be live on them while they change.
        if self._leases.live > 0:
            raise BusyError(BUSY_HTTP)
        log_event(_log, "model.switch", user=user_id, model=model_id)
        await self._call(lambda: self._host.switch(model_id))

    def _read(self, data: bytes, filename: str) -> NDArray[np.uint8]:
        limit = self._settings.max_upload_bytes
        if len(data) > limit:
            raise TooLargeError(f"the picture has {len(data)} bytes; the limit is {limit}")
        height, width = self._host.frame_size
        picture = read_picture(data, filename=filename, max_bytes=limit, max_pixels=self._settings.max_pixels)
        return cover_crop(picture, height=height, width=width)

    def _seat(self, user_id: str, ticket: str) -> tuple[Lease, Stashed]:
        self._admit(user_id, ticket)
        lease = None if self._closing is not None else self._leases.claim(user_id)
        if lease is None or not self._leases.mark_live(lease):
            raise BusyError(BUSY_SOCKET)
        stashed = self._stash.use(user_id)
        active = self._host.active_model_id
        if stashed is not None and stashed.frame.model_id == active:
            self._occupancy.arrived(user_id)
            return lease, stashed
        self._leases.release(lease)
        if stashed is None:
            raise NotReadyError("no start picture yet: POST /z0 first")
        raise NotReadyError(
            f"the model is now {active!r}, your picture is for {stashed.frame.model_id!r}: POST /z0 again"
        )

    async def _turn_away(self, socket: PlayerSocket, error: Exception) -> None:
        known = isinstance(error, WorldloopError)
        code = error.close_code if isinstance(error, WorldloopError) else 1011
        self._observer.refused(reason_of(error))
        level = logging.INFO if known and code != 1011 else logging.ERROR
        log_event(_log, "game.refused", level=level, code=code, why=describe(error))
        text = str(error) if known and code != 1011 else describe(error)
        with contextlib.suppress(TimeoutError):
            await within(self._clock, self._settings.slow_client_s, socket.close(code, close_reason(text)))

    async def _start(self, stashed: Stashed, freed: asyncio.Event) -> Game:
        loop = asyncio.get_running_loop()

        def on_close() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(freed.set)

        seed = self._settings.seed
        starting = asyncio.ensure_future(
            self._call(
                lambda: self._host.start(stashed.frame, options=stashed.options, seed=seed, on_close=on_close)
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close_late)
            raise

    def _session(
        self, game: Game, socket: PlayerSocket, frame: StartFrame, log: SessionLog | None
    ) -> GameSession:
        height, width = self._host.frame_size
        scale = self._scale
        return GameSession(
            game=game,
            socket=socket,
            make_encoder=self._make_encoder,
            clock=self._clock,
            settings=self._settings,
            observer=self._observer,
            hello=hello_message(
                height=height * scale,
                width=width * scale,
                fps=self._settings.stream_fps,
                session_limit_s=self._settings.session_limit_s,
                model_id=frame.model_id,
                profile=self._host.active_profile,
            ),
            log=log,
        )

    async def _run(self, session: GameSession, user_id: str, log: SessionLog) -> Ending:
        self._sessions.add(session)
        self._observer.game_opened()
        ending: Ending | None = None
        try:
            with session_log(log):
                log_event(_log, "game.open", user=user_id)
                if self._closing is not None:
                    session.stop(self._closing)
                ending = await session.run()
            return ending
        finally:
            kind = ending.kind if ending is not None else "failed"
            self._observer.game_ended(kind)
            level = logging.ERROR if kind == "failed" else logging.INFO
            reason = ending.reason if ending is not None else "cancelled"
            log_event(
                _log,
                "game.end",
                level=level,
                user=user_id,
                how=kind,
                why=reason,
                pictures=session.pictures_sent,
            )
            self._sessions.discard(session)

    async def _await_free(self, freed: asyncio.Event, user_id: str) -> None:
        try:
            await within(self._clock, FREE_GRACE_S, freed.wait())
        except TimeoutError:
            log_event(_log, "slot.unconfirmed", level=logging.WARNING, user=user_id, after_s=FREE_GRACE_S)

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

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


def reason_of(error: BaseException) -> str:
    """One word for metrics: the error's class without its suffix, in lower case."""
    return (
        type(error).__name__.removesuffix("Error").lower() if isinstance(error, WorldloopError) else "error"
    )


def _close_late(starting: asyncio.Future[Game]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
