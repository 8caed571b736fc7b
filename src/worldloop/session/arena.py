"""The door of a server: who may play, with which start picture and which model.

Owns the order of the checks. Does not own routes or sockets (`server`), the device (`session.host`) or the games
themselves (`session.table`). One instance a server, used on its event loop; what blocks runs on a few threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.sandbox import read_stranger
from worldloop.core.clock import Clock, within
from worldloop.core.errors import (
    BusyError,
    InvalidInputError,
    NotReadyError,
    TicketError,
    TooLargeError,
    WorldloopError,
)
from worldloop.core.settings import Settings
from worldloop.core.telemetry import log_event
from worldloop.session.game import Encoder
from worldloop.session.host import Game, GameOptions, Host, StartFrame
from worldloop.session.leases import Leases
from worldloop.session.observer import Levels, Observer
from worldloop.session.occupancy import Occupancy
from worldloop.session.picture_host import Picture
from worldloop.session.pictures import NoSuchPictureError
from worldloop.session.socket import PlayerSocket, describe
from worldloop.session.stash import Stash, Stashed
from worldloop.session.table import Seat, Table
from worldloop.session.tickets import Tickets
from worldloop.wire.controls import check_seconds
from worldloop.wire.forms import StartForm
from worldloop.wire.world import (
    BUSY_HTTP,
    BUSY_SOCKET,
    ModelsAnswer,
    MomentAnswer,
    ReserveAnswer,
    RewindAnswer,
    StartAnswer,
    StatusAnswer,
    SwitchAnswer,
    check_user_id,
    close_reason,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """A start picture's file, as a stranger sent it."""

    data: bytes
    filename: str


class Arena:
    """Every game of one process.

    Args:
        find_picture: gives a picture that was made here by its id, or raises; None: none are made.
    """

    def __init__(
        self,
        host: Host,
        settings: Settings,
        *,
        clock: Clock,
        observer: Observer,
        make_encoder: Callable[[], Encoder] | None = None,
        find_picture: Callable[[str], Picture] | None = None,
    ) -> None:
        self._host, self._settings, self._clock, self._observer = host, settings, clock, observer
        self._find_picture = find_picture
        self._leases = Leases(slots=settings.slots, clock=clock, stale_s=settings.lease_stale_s)
        self._occupancy = Occupancy(
            self._leases, slots=settings.slots, clock=clock, pending_s=settings.pending_z0_s
        )
        self._stash = Stash(clock=clock, ttl_s=settings.stash_s, limit=settings.stash_max)
        secret = settings.ticket_secret.get_secret_value() if settings.ticket_secret is not None else None
        self.tickets = Tickets(secret=secret, server_id=settings.server_id, clock=clock)
        self._device = asyncio.Lock()
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="arena")
        # Fewer than the threads: pictures that take long to read must not keep a game from starting.
        self._reading = asyncio.Semaphore(2)
        self._table = Table(
            host,
            settings,
            clock=clock,
            observer=observer,
            leases=self._leases,
            threads=self._threads,
            make_encoder=make_encoder,
        )
        self._playing: set[asyncio.Task[None]] = set()
        self._switching = False
        self._closing: str | None = None

    @property
    def lost(self) -> str | None:
        """Why the device is out of service, or None."""
        return self._host.report().lost

    @property
    def unready(self) -> str | None:
        """Why no game may begin whatever the slots, or None."""
        if self._closing is not None:
            return "the server is stopping"
        if self.lost is not None:
            return self.lost
        return "no model is in service" if self._host.active_model_id is None else None

    def models(self) -> ModelsAnswer:
        """What can be served, and the choices of the active model."""
        return ModelsAnswer(
            models=self._host.model_ids(),
            default_model_id=self._host.default_model_id,
            active_model_id=self._host.active_model_id,
            **self._describe(),
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

    def levels(self) -> Levels:
        """What the metrics show of this moment, from memory."""
        return Levels(
            ready=self.unready is None,
            live=self._leases.live,
            held=self._table.held,
            pictures=self._table.pictures,
            requests=self._occupancy.requests,
            stash=len(self._stash),
            stash_bytes=self._stash.nbytes,
            host=self._host.report(),
        )

    async def prepare(
        self,
        user_id: str,
        *,
        ticket: str,
        upload: Upload | None,
        model_id: str,
        form: Callable[[], StartForm],
    ) -> StartAnswer:
        """Encode a start picture and keep it for this player's next game.

        Args:
            upload: the picture; None when the form names one that was made here.

        Raises:
            WorldloopError: refused; its class says why.
        """
        self._admit(user_id, ticket)
        with self._occupancy.inflight():
            self._refuse_when_busy(user_id)
            choices = form()
            options = GameOptions(
                nfe=choices.nfe,
                nfe_mode=choices.nfe_mode,
                sphere=choices.sphere,
                reprefill_every=choices.reprefill_every,
                focus=choices.focus,
            )
            self._resolve(model_id)
            begin = await self._beginning(upload, choices.picture_id)
            async with self._device:
                self._refuse_when_busy(user_id)
                await self._serve(self._resolve(model_id), user_id)
                focus = await self._call(lambda: self._host.configure(options))
                frame = await self._call(begin)
                described, profile = self._describe(), self._host.active_profile
            self._stash.put(user_id, Stashed(frame=frame, options=options))
            self._occupancy.expect(user_id)
        source = {"made": True} if upload is None else {"bytes": len(upload.data)}
        log_event(_log, "z0.ready", user=user_id, model=frame.model_id, **source)
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
                self._refuse_when_busy()
                wanted = self._resolve(model_id)
                await self._serve(wanted, user_id or "-")
        return SwitchAnswer(model_id=wanted)

    def reserve(self, user_id: str, *, ticket: str) -> ReserveAnswer:
        """Hold a slot until the player's socket opens. Raises `WorldloopError` when refused."""
        self._admit(user_id, ticket)
        self._refuse_when_busy(user_id)
        if not self._leases.admits(user_id):
            raise BusyError(BUSY_HTTP)
        if user_id not in self._stash:
            raise NotReadyError(f"no start picture yet: POST /z0/{user_id} first")
        self._table.clear(user_id)
        if self._leases.claim(user_id) is None:
            raise BusyError(BUSY_HTTP)
        log_event(_log, "slot.reserved", user=user_id)
        return ReserveAnswer()

    async def snapshot(self, user_id: str, *, ticket: str) -> bytes:
        """The file of this moment of the player's game. Raises `NoGameError` and what `_admit` does."""
        game = self._game(user_id, ticket)
        return await self._call(lambda: game.snapshot().pack())

    async def tape(self, user_id: str, *, ticket: str) -> bytes:
        """The file of what was played; raises as `snapshot`."""
        game = self._game(user_id, ticket)
        return await self._call(lambda: game.tape().pack())

    async def rewind(self, user_id: str, *, ticket: str, seconds: float) -> RewindAnswer:
        """Take the player back. Raises as `snapshot`, and the host's refusal."""
        self._admit(user_id, ticket)
        return RewindAnswer(frame=await self._table.playing(user_id).rewind(check_seconds(seconds)))

    async def fork(self, user_id: str, *, ticket: str, to: str) -> MomentAnswer:
        """Have the next game of `to` begin where this player's game is now. Raises as `snapshot`.

        With tickets on, `to` is the player.
        """
        game = self._game(user_id, ticket)
        if check_user_id(to) != user_id and self.tickets.required:
            raise TicketError("with tickets, a fork is for yourself: leave out 'to'")
        frame = await self._call(lambda: self._host.moment(game.snapshot()))
        return self._keep(to, frame)

    async def restore(self, user_id: str, *, ticket: str, data: bytes) -> MomentAnswer:
        """Have this player's next game begin from a snapshot's file. Raises `WorldloopError` when refused."""
        self._admit(user_id, ticket)
        with self._occupancy.inflight():
            self._refuse_when_busy(user_id)
            async with self._device:
                frame = await self._call(lambda: self._host.moment(data))
            answer = self._keep(user_id, frame)
            self._occupancy.expect(user_id)
        return answer

    async def play(self, user_id: str, *, ticket: str, socket: PlayerSocket, resume: str = "") -> None:
        """One open socket, from the checks to its close.

        Args:
            resume: the token of a game to go on with; empty begins a new one.
        """
        task = asyncio.ensure_future(self._play(user_id, ticket, socket, resume))
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        # `stop` cancels what does not end.
        if not task.cancelled():
            task.result()

    async def _play(self, user_id: str, ticket: str, socket: PlayerSocket, resume: str) -> None:
        try:
            self._admit(user_id, ticket)
            if self._closing is not None:
                raise BusyError(BUSY_SOCKET)
            seat = await (self._table.take_up(user_id, resume) if resume else self._begin(user_id))
        except Exception as error:  # noqa: BLE001 (told to the player and logged)
            await self._turn_away(socket, error)
            return
        await self._table.play(seat, socket)

    def refuse(self, message: str) -> None:
        """No new games from now on; a stop is to follow. May be called from a signal handler."""
        self._closing = message

    async def stop(self, message: str, *, limit_s: float | None = None) -> None:
        """Refuse what comes, end every game with `message`, and wait until every socket is closed.

        Sockets that are still open after `limit_s` seconds are given up.
        """
        self._closing = message
        try:
            work = self._stop(message)
            await (work if limit_s is None else within(self._clock, limit_s, work))
        except TimeoutError:
            for task in tuple(self._playing):
                task.cancel()
            if self._playing:
                await asyncio.wait(tuple(self._playing))

    async def _stop(self, message: str) -> None:
        await self._table.stop(message)
        while self._playing:
            await asyncio.wait(tuple(self._playing))

    def close(self) -> None:
        """After `stop`, when no request is left: forget the start pictures and end the threads."""
        self._stash.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _admit(self, user_id: str, ticket: str) -> None:
        check_user_id(user_id)
        self.tickets.check(user_id, ticket)

    def _game(self, user_id: str, ticket: str) -> Game:
        self._admit(user_id, ticket)
        return self._table.playing(user_id).game

    def _keep(self, user_id: str, frame: StartFrame) -> MomentAnswer:
        self._stash.put(user_id, Stashed(frame=frame, options=GameOptions()))
        log_event(_log, "moment.ready", user=user_id, model=frame.model_id)
        return MomentAnswer(model_id=frame.model_id, z0_shape=list(frame.shape))

    def _describe(self) -> dict[str, Any]:
        """The host's facts, with this server's own limit of denoising calls."""
        facts = self._host.describe()
        return {**facts, "nfe": {**facts["nfe"], "max": self._settings.nfe_max}}

    def _refuse_when_busy(self, user_id: str = "") -> None:
        if self._closing is not None or self._leases.full(user_id):
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
        # The weights are shared: no game may be live or held on them while they change.
        if self._leases.taken > 0:
            raise BusyError(BUSY_HTTP)
        log_event(_log, "model.switch", user=user_id, model=model_id)
        self._switching = True
        try:
            await self._call(lambda: self._host.switch(model_id))
        finally:
            self._switching = False

    async def _beginning(self, upload: Upload | None, picture_id: str | None) -> Callable[[], StartFrame]:
        """What gives the start frame, on a thread, once the wanted model is served."""
        if upload is None:
            if self._find_picture is None:
                raise NoSuchPictureError("no picture model is served here: send the file z0_image")
            made = self._find_picture(picture_id or "")
            return lambda: self._host.adopt(made)
        async with self._reading:
            picture = await self._call(lambda: self._read(upload))
        return lambda: self._host.encode(picture)

    def _read(self, upload: Upload) -> NDArray[np.uint8]:
        limit = self._settings.max_upload_bytes
        if len(upload.data) > limit:
            raise TooLargeError(f"the picture has {len(upload.data)} bytes; the limit is {limit}")
        height, width = self._host.frame_size
        return read_stranger(
            upload.data,
            filename=upload.filename,
            height=height,
            width=width,
            max_bytes=limit,
            max_pixels=self._settings.max_pixels,
        )

    async def _begin(self, user_id: str) -> Seat:
        # A game that began during a switch would run on weights that change under it.
        if self._switching or not self._leases.admits(user_id):
            raise BusyError(BUSY_SOCKET)
        stashed = self._stash.use(user_id)
        active = self._host.active_model_id
        if stashed is None:
            raise NotReadyError("no start picture yet: POST /z0 first")
        if stashed.frame.model_id != active:
            raise NotReadyError(
                f"the model is now {active!r}, your picture is for {stashed.frame.model_id!r}: POST /z0 again"
            )
        self._table.clear(user_id)
        lease = self._leases.claim(user_id)
        if lease is None:
            raise BusyError(BUSY_SOCKET)
        self._leases.mark_live(lease)
        self._occupancy.arrived(user_id)
        return await self._table.open(lease, stashed)

    async def _turn_away(self, socket: PlayerSocket, error: Exception) -> None:
        known = isinstance(error, WorldloopError)
        code = error.close_code if isinstance(error, WorldloopError) else 1011
        self._observer.refused(reason_of(error))
        level = logging.INFO if known and code != 1011 else logging.ERROR
        log_event(_log, "game.refused", level=level, code=code, why=describe(error))
        text = str(error) if known and code != 1011 else describe(error)
        with contextlib.suppress(TimeoutError):
            await within(self._clock, self._settings.slow_client_s, socket.close(code, close_reason(text)))

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def reason_of(error: BaseException) -> str:
    """One word for metrics: the error's class without its suffix, in lower case."""
    return (
        type(error).__name__.removesuffix("Error").lower() if isinstance(error, WorldloopError) else "error"
    )
