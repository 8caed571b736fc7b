"""One game on one socket: controls in, pictures out, at the player's rate.

Owns the flow between a host's game, an encoder and a socket:

    receive   newest controls; a message that is wrong is answered and changes nothing
    generate  waits until few pictures are queued and the next frame can just be made in time, reads the controls as
              late as that, asks for the frame
    send      encodes, waits until the picture is due, sends; drops only what a player who goes back has left

Does not own leases, start pictures, the transport, or what outlives the socket (`session.progress`). Built and run by
`session.table`, on its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.h264 import AccessUnit
from worldloop.core.clock import Clock, within
from worldloop.core.errors import BusyError, NoGameError, SessionEndedError, WorldloopError
from worldloop.core.memory import give_memory_back
from worldloop.core.settings import Settings
from worldloop.engine.contract import Emit
from worldloop.session.host import Game
from worldloop.session.lead import Lead
from worldloop.session.observer import Observer
from worldloop.session.pacer import FramePacer
from worldloop.session.progress import Heard, Making, Picture, Progress
from worldloop.session.socket import (
    BROKEN,
    BROKEN_CODE,
    LEFT,
    Ending,
    PlayerSocket,
    SocketClosedError,
    failed,
    over,
)
from worldloop.wire.controls import BadControlsError, ControlState, parse_controls, parse_rewind
from worldloop.wire.world import (
    ack_message,
    close_reason,
    error_message,
    log_message,
    pack_access_unit,
    rewound_message,
)
from worldloop.wire.world import session_over_message as over_message

LOG_POLL_S = 0.1
LATE_TURN_S = 0.05
LATENT_PICTURES = 4
"""Of every latent frame after the start picture."""
TIMER_S = 0.001
"""Shorter waits are none: no timer is that fine, and a clock's own rounding could make one last for ever."""


class Encoder(Protocol):
    """Makes one access unit of each picture, in order; used from one thread."""

    def encode(self, frame: NDArray[np.uint8], /) -> AccessUnit: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Back:
    """A wish to go back; `answer` is for who asked from outside, None for the player."""

    seconds: float
    answer: asyncio.Future[int] | None


class SlowClientError(SessionEndedError):
    """The socket took longer than allowed for one message."""


class GameSession:
    """Plays a game on one socket until either ends. `run` once, then `close`.

    Args:
        progress: the game; what was queued before this socket is sent first. It stays the caller's to end.
        make_encoder: called on this session's own encoder thread.
        hello: first text of the socket.
        greeted: called once the transport has taken `hello`.
        threads: where pictures are encoded, one at a time; shut down at the end. A thread when None.

    Attributes:
        finished: set when `run` is over.
    """

    def __init__(
        self,
        *,
        progress: Progress,
        socket: PlayerSocket,
        make_encoder: Callable[[], Encoder],
        clock: Clock,
        settings: Settings,
        observer: Observer,
        hello: str,
        greeted: Callable[[], None] = lambda: None,
        threads: Executor | None = None,
    ) -> None:
        self._progress, self._socket, self._clock = progress, socket, clock
        self._game, self._log = progress.game, progress.log
        self._make_encoder = make_encoder
        self._encoder: Encoder | None = None
        self._settings, self._observer, self._hello, self._greeted = settings, observer, hello, greeted
        self._queue = progress.queue
        self._room, self._filled, self._first_sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._first_sent_at = 0.0
        self.finished = asyncio.Event()
        self._stopped: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._pacer, self._lead = FramePacer(), Lead()
        self._back: Back | None = None
        self._in_hand = 0
        self._unsent: Picture | None = None
        self._sending = asyncio.Lock()
        self._sent = 0
        self._threads = threads or ThreadPoolExecutor(1, thread_name_prefix="encode")

    @property
    def game(self) -> Game:
        """The world on the device."""
        return self._game

    def end(self, ending: Ending) -> None:
        """End from outside. Any number of calls, on the event loop; the first counts."""
        if not self._stopped.done():
            self._stopped.set_result(ending)

    async def rewind(self, seconds: float) -> int:
        """Take the player back, from outside; the latent frame that they are at then.

        Raises:
            BusyError: they are going back already.
            WorldloopError: the host's refusal; the game goes on.
            NoGameError: the game ended meanwhile.
        """
        if self._back is not None:
            raise BusyError("this game is going back already")
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._turn(Back(seconds, answer))
        return await answer

    async def run(self) -> Ending:
        """Play until something ends it; then nothing of this socket touches the game any more."""
        parts = [self._receive, self._generate, self._send, self._await_stop]
        if self._settings.session_limit_s > 0:
            parts.append(self._limit)
        if self._log is not None:
            parts.append(self._stream_log)
        try:
            return await self._first_ending(parts)
        finally:
            if self._unsent is not None:
                self._queue.appendleft(self._unsent)
            if self._first_sent.is_set():
                self._progress.played_s += self._clock.monotonic() - self._first_sent_at
            if self._back is not None and self._back.answer is not None and not self._back.answer.done():
                self._back.answer.set_exception(NoGameError("the game ended before it went back"))
            self.finished.set()
            self._threads.submit(self._close_encoder)
            self._threads.shutdown(wait=False)

    async def close(self, ending: Ending) -> None:
        """Tell the player, then close the socket; gives up on a client that doesn't take it."""
        if ending in (LEFT, BROKEN):
            return
        try:
            if ending.announce is not None:
                limit_s = self._settings.session_limit_s
                await self._deliver(over_message(message=ending.announce, limit_s=limit_s))
            wait = self._settings.slow_client_s
            await within(self._clock, wait, self._socket.close(ending.code, close_reason(ending.reason)))
        except (SocketClosedError, SlowClientError, TimeoutError):
            return

    async def _first_ending(self, parts: list[Callable[[], Coroutine[Any, Any, Ending]]]) -> Ending:
        tasks = [asyncio.ensure_future(_guarded(part)) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task for task in tasks if task in done).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self) -> Ending:
        # A send that finds the socket closed doesn't know how; `receive` does.
        with contextlib.suppress(SocketClosedError):
            await self._deliver(self._hello)
            self._greeted()
        limit = self._settings.max_message_bytes
        while True:
            try:
                message = await self._socket.receive()
            except SocketClosedError as error:
                return BROKEN if error.code == BROKEN_CODE else LEFT
            try:
                state = parse_controls(message, self._progress.heard.state, max_bytes=limit)
                seconds = parse_rewind(message, max_bytes=limit) if state is None else None
            except BadControlsError as error:
                self._observer.refused(error.code)
                with contextlib.suppress(SocketClosedError):
                    await self._deliver(error_message(code=error.code, message=str(error)))
                continue
            if state is not None:
                self._take(state)
            elif seconds is not None and self._back is None:
                self._turn(Back(seconds, None))

    def _take(self, state: ControlState) -> None:
        before, making = self._progress.heard, self._progress.making
        changed = state.controls.pressed != before.state.controls.pressed
        heard = Heard(state, self._clock.monotonic() if changed else before.pressed_at)
        self._progress.heard = heard
        if making is not None and self._game.update(state.controls):
            making.heard = heard

    async def _generate(self) -> Ending:
        while True:
            making, began = self._progress.making, None
            if making is None:
                await self._until_room()
                await self._until_late()
                if self._back is not None and not await self._go_back(self._back):
                    continue
                making = self._progress.making
            if making is None:
                began = self._clock.monotonic()
                heard = self._progress.heard
                making = Making(self._game.submit(heard.state.controls, due=self._due()), heard)
                self._progress.making = making
            try:
                emit = await _settled(making.future)
            except SessionEndedError as error:
                return await self._let_drain(over("over", str(error) or "the game is over"))
            self._progress.making = None
            if making.rewound:
                await self._gone_back(emit)
            # A frame that an earlier socket asked for says nothing about how long one takes.
            if began is not None:
                self._observe(emit, self._clock.monotonic() - began)
            self._enqueue(emit, making.heard)

    def _turn(self, back: Back) -> None:
        self._back = back
        self._room.set()

    async def _go_back(self, back: Back) -> bool:
        """Have the host go back, from what the player sees; whether it does."""
        unseen = (len(self._queue) + self._in_hand) // LATENT_PICTURES
        frames = self._game.frames_of(back.seconds) + unseen
        due = self._clock.monotonic()
        try:
            future = await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: self._game.rewind(frames, due=due)
            )
        except WorldloopError as error:
            self._back = None
            if back.answer is None:
                self._observer.refused("rewind")
                await self._deliver(error_message(code="rewind", message=str(error)))
            elif not back.answer.done():
                back.answer.set_exception(error)
            return False
        self._queue.clear()
        self._unsent = None
        self._progress.making = Making(future, self._progress.heard, rewound=True)
        return True

    async def _gone_back(self, emit: Emit) -> None:
        """What follows starts anew for the decoder too."""
        self._threads.submit(self._close_encoder)
        await self._deliver(rewound_message(frame=emit.index))
        back, self._back = self._back, None
        if back is not None and back.answer is not None and not back.answer.done():
            back.answer.set_result(emit.index)

    async def _until_room(self) -> None:
        while len(self._queue) > self._settings.frames_low_watermark and self._back is None:
            self._room.clear()
            await self._room.wait()

    def _observe(self, emit: Emit, seconds: float) -> None:
        self._lead.took(seconds)
        self._observer.stage("generate", seconds)
        if emit.device_s:
            denoise, decode = (emit.device_s.get(op, 0.0) for op in ("denoise", "decode"))
            self._observer.stage("denoise", denoise)
            self._observer.stage("decode", decode)
            self._observer.stage("memory", sum(emit.device_s.values()) - denoise - decode)

    async def _until_late(self) -> None:
        """Wait until the next frame can just be made in time, so that it shows the newest keys."""
        while self._settings.just_in_time and self._back is None:
            wait = self._lead.wait(self._clock.monotonic(), self._due())
            if wait < TIMER_S:
                return
            # In short turns: the rate may change meanwhile.
            await self._clock.sleep(min(wait, LATE_TURN_S))

    def _due(self) -> float:
        """When the first picture of the next frame is wanted."""
        fps = self._progress.heard.state.stream_fps
        return self._pacer.due(fps, self._clock.monotonic(), len(self._queue) + self._in_hand)

    def _enqueue(self, emit: Emit, made_with: Heard) -> None:
        # The start picture is the player's own: no keys shaped it.
        shows = made_with if emit.index > 0 else None
        for number, pixels in enumerate(emit.frames):
            self._queue.append(Picture(pixels, shows if number == 0 else None))
        self._filled.set()

    async def _let_drain(self, ending: Ending) -> Ending:
        self._progress.drained = ending
        self._filled.set()
        return await _never()

    async def _send(self) -> Ending:
        loop = asyncio.get_running_loop()
        shown: Heard | None = None
        while True:
            while not self._queue:
                if self._progress.drained is not None:
                    return self._progress.drained
                self._filled.clear()
                await self._filled.wait()
            picture = self._unsent = self._queue.popleft()
            self._in_hand = 1
            self._room.set()
            began = self._clock.monotonic()
            unit = await loop.run_in_executor(self._threads, self._encode, picture.pixels)
            now = self._clock.monotonic()
            self._observer.stage("encode", now - began)
            delay = self._pacer.delay(self._progress.heard.state.stream_fps, now)
            self._in_hand = 0
            await self._clock.sleep(delay)
            if self._unsent is not picture:
                continue  # the player went back: it is of the time that was forgotten
            messages: list[str | bytes] = [pack_access_unit(key=unit.key, data=unit.data)]
            if picture.shows is not None and picture.shows is not shown:
                messages[:0] = self._acknowledge(picture.shows, shown)
                shown = picture.shows
            began = self._clock.monotonic()
            await self._deliver(*messages)
            self._observer.stage("send", self._clock.monotonic() - began)
            self._count()

    def _count(self) -> None:
        self._unsent = None
        self._sent += 1
        self._progress.pictures += 1
        self._observer.picture_sent()
        if not self._first_sent.is_set():
            self._first_sent_at = self._clock.monotonic()
            self._first_sent.set()

    def _acknowledge(self, shows: Heard, before: Heard | None) -> list[str]:
        pressed_at = shows.pressed_at
        if pressed_at is not None and (before is None or before.pressed_at != pressed_at):
            self._observer.key_to_picture(self._clock.monotonic() - pressed_at)
        seq = shows.state.seq
        return [] if seq is None else [ack_message(seq=seq, frame=self._sent)]

    async def _limit(self) -> Ending:
        await self._first_sent.wait()
        await self._clock.sleep(self._settings.session_limit_s - self._progress.played_s)
        return over("limit", self._settings.session_limit_message)

    async def _stream_log(self) -> Ending:
        while True:
            while self._log is not None and (line := self._log.take()) is not None:
                await self._deliver(log_message(tag=line.tag, msg=line.msg, ts=self._clock.time()))
            await self._clock.sleep(LOG_POLL_S)

    async def _await_stop(self) -> Ending:
        return await self._stopped

    async def _deliver(self, *messages: str | bytes) -> None:
        try:
            await within(self._clock, self._settings.slow_client_s, self._deliver_in_order(messages))
        except TimeoutError:
            limit = self._settings.slow_client_s
            raise SlowClientError(f"the connection took more than {limit:g} s for one message") from None

    async def _deliver_in_order(self, messages: tuple[str | bytes, ...]) -> None:
        async with self._sending:
            for message in messages:
                if isinstance(message, bytes):
                    await self._socket.send_bytes(message)
                else:
                    await self._socket.send_text(message)

    def _encode(self, pixels: NDArray[np.uint8]) -> AccessUnit:
        if self._encoder is None:
            self._encoder = self._make_encoder()
        return self._encoder.encode(pixels)

    def _close_encoder(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None
            give_memory_back()


async def _guarded(part: Callable[[], Coroutine[Any, Any, Ending]]) -> Ending:
    """Run one part; its error becomes the ending of the game."""
    try:
        return await part()
    except SocketClosedError:
        return await _never()  # the part that receives knows how it was closed, and ends the game
    except SlowClientError as error:
        return Ending(kind="slow", code=1008, reason=str(error))
    except Exception as error:  # noqa: BLE001 (the ending carries it, to the log and to the player)
        return failed(error)


async def _never() -> Ending:
    never: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
    return await never


async def _settled(future: Future[Emit]) -> Emit:
    """Await the host's future. Leaving early doesn't cancel it: it is the host's to settle."""
    loop = asyncio.get_running_loop()
    waiter = asyncio.Event()

    def wake(_: Future[Emit]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(waiter.set)

    future.add_done_callback(wake)
    await waiter.wait()
    return future.result()
