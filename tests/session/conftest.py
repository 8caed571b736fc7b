"""Doubles for one game: a host's game by script, a socket in memory, an encoder and threads, all inline."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from worldloop.codec.h264 import AccessUnit
from worldloop.core.clock import ManualClock
from worldloop.core.settings import Settings
from worldloop.core.types import Controls
from worldloop.engine.contract import Emit
from worldloop.session.game import GameSession
from worldloop.session.progress import Progress
from worldloop.session.socket import Ending, SocketClosedError
from worldloop.wire.controls import ControlState


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class InlineGame:
    """Frame k has pictures of value k. Answers at once unless `held`; `script` maps k to an error."""

    def __init__(
        self, script: dict[int, Exception] | None = None, *, held: bool = False, updates: bool = True
    ) -> None:
        self.script, self.held, self.updates = script or {}, held, updates
        self.controls: list[Controls] = []
        self.closed = 0
        self.waiting: Future[Emit] | None = None

    def submit(self, controls: Controls, *, due: float = 0.0) -> Future[Emit]:
        self.controls.append(controls)
        self.waiting = Future()
        future = self.waiting
        if not self.held:
            self.answer()
        return future

    def answer(self) -> None:
        future, self.waiting = self.waiting, None
        assert future is not None
        index = len(self.controls) - 1
        if index in self.script:
            future.set_exception(self.script[index])
            return
        frames = np.full((1 if index == 0 else 4, 2, 2, 3), index, np.uint8)
        future.set_result(Emit(frames=frames, media_time=index / 12, input_ids=(), index=index))

    def update(self, controls: Controls) -> bool:
        if self.updates:
            self.controls[-1] = controls
        return self.updates

    def close(self) -> None:
        self.closed += 1


class TimedGame(InlineGame):
    """Each frame takes `making_s` of `clock`, which the test sets; `begun` has the times of asking."""

    def __init__(self, making_s: float) -> None:
        super().__init__(held=True)
        self.making_s = making_s
        self.clock: ManualClock
        self.begun: list[float] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def submit(self, controls: Controls, *, due: float = 0.0) -> Future[Emit]:
        self.begun.append(self.clock.monotonic())
        future = super().submit(controls, due=due)
        self.tasks.add(asyncio.ensure_future(self._answer_later()))
        return future

    async def _answer_later(self) -> None:
        await self.clock.sleep(self.making_s)
        self.answer()


class MemorySocket:
    """What was sent, with the times; what is to be received: a number closes it with that code.

    `stuck` makes sends wait for ever, `gone` makes them fail.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.inbox: asyncio.Queue[str | bytes | int] = asyncio.Queue()
        self.sent: list[tuple[float, str | bytes]] = []
        self.stuck = False
        self.gone = False
        self.closed: tuple[int, str] | None = None

    async def receive(self) -> str | bytes:
        message = await self.inbox.get()
        if isinstance(message, int):
            raise SocketClosedError("gone", code=message)
        return message

    async def send_text(self, text: str) -> None:
        await self._send(text)

    async def send_bytes(self, data: bytes) -> None:
        await self._send(data)

    async def _send(self, message: str | bytes) -> None:
        if self.gone:
            raise SocketClosedError("gone")
        if self.stuck:
            await asyncio.Event().wait()
        self.sent.append((self.clock.monotonic(), message))

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    @property
    def pictures(self) -> list[tuple[float, bytes]]:
        return [(at, message) for at, message in self.sent if isinstance(message, bytes)]

    def texts(self, kind: str) -> list[dict[str, Any]]:
        messages = [json.loads(message) for _, message in self.sent if isinstance(message, str)]
        return [message for message in messages if message["type"] == kind]


class InlineThreads(Executor):
    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (an executor keeps every error)
            future.set_exception(error)
        return future


class PlainEncoder:
    """One byte a picture: its first pixel. The first is key."""

    def __init__(self) -> None:
        self.count = 0
        self.closed = False

    def encode(self, frame: np.ndarray) -> AccessUnit:
        self.count += 1
        return AccessUnit(data=bytes([frame[0, 0, 0]]), key=self.count == 1)

    def close(self) -> None:
        self.closed = True


class Counts:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.latencies: list[float] = []
        self.stages: list[str] = []
        self.endings: list[str] = []
        self.resumed = 0
        self.pictures: Counter[str] = Counter()
        self.phases: list[str] = []

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)

    def game_resumed(self) -> None:
        self.resumed += 1

    def game_ended(self, kind: str) -> None:
        self.endings.append(kind)

    def picture_sent(self) -> None: ...

    def stage(self, name: str, seconds: float) -> None:
        self.stages.append(name)

    def key_to_picture(self, seconds: float) -> None:
        self.latencies.append(seconds)

    def images(self, event: str, count: int) -> None:
        self.pictures[event] += count

    def image_phase(self, phase: str, seconds: float) -> None:
        self.phases.append(phase)


class Table:
    """One game with all its doubles, running on its first socket."""

    def __init__(self, game: InlineGame, **settings: Any) -> None:
        self.clock = ManualClock()
        self.game = game
        self.counts = Counts()
        self.settings = Settings(
            **{"stream_fps": 10, "session_limit_s": 0, "just_in_time": False, **settings}
        )
        start = ControlState.start(stream_fps=self.settings.stream_fps, fps_embedding=12.0)
        self.progress = Progress(game, start)
        self.greetings = 0
        self.connect()

    def connect(self) -> None:
        """Play on a socket of its own from now on."""
        self.socket = MemorySocket(self.clock)
        self.encoder = PlainEncoder()
        self.session = GameSession(
            progress=self.progress,
            socket=self.socket,
            make_encoder=lambda: self.encoder,
            clock=self.clock,
            settings=self.settings,
            observer=self.counts,
            hello='{"type":"hello"}',
            greeted=self._greeted,
            threads=InlineThreads(),
        )
        self.task = asyncio.ensure_future(self.session.run())

    def _greeted(self) -> None:
        self.greetings += 1

    async def say(self, message: Any) -> None:
        await self.socket.inbox.put(message if isinstance(message, str | bytes) else json.dumps(message))
        await self.clock.advance(0)

    async def leave(self, code: int = 1001) -> Ending:
        """The client goes with this code; 1006 is a connection that broke."""
        await self.socket.inbox.put(code)
        await self.clock.advance(0)
        return await self.task


@pytest.fixture
def table() -> Any:
    return Table


@pytest.fixture
def doubles() -> SimpleNamespace:
    """The parts, for a test that puts them together itself."""
    return SimpleNamespace(
        Counts=Counts, InlineThreads=InlineThreads, MemorySocket=MemorySocket, PlainEncoder=PlainEncoder
    )


@pytest.fixture
def inline_game() -> Any:
    return InlineGame


@pytest.fixture
def timed_game() -> Any:
    return TimedGame
