"""A host by script, and clients of the application that need no network.

`ScriptedHost` is a double of the host contract only: numbered colour pictures from a worker thread.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from numpy.typing import NDArray
from PIL import Image

from worldloop.core.errors import InvalidInputError
from worldloop.core.settings import Settings
from worldloop.core.types import Controls
from worldloop.engine.contract import Emit
from worldloop.server.app import create_app
from worldloop.session.host import GameOptions, HostReport, StartFrame
from worldloop.session.picture_host import Picture

HEIGHT, WIDTH = 48, 64
WAIT_S = 60


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class ScriptedGame:
    """Frame k is of grey level 16 + k. `fail_at` maps k to an error."""

    def __init__(self, host: ScriptedHost, on_close: Callable[[], None] | None) -> None:
        self.host, self.on_close = host, on_close
        self.controls: list[Controls] = []
        self.closed = False

    def submit(self, controls: Controls, *, due: float = 0.0) -> Future[Emit]:
        self.controls.append(controls)
        return self.host.worker.submit(self._make, len(self.controls) - 1)

    def _make(self, index: int) -> Emit:
        if index in self.host.fail_at:
            raise self.host.fail_at[index]
        count = 1 if index == 0 else 4
        frames = np.full((count, HEIGHT, WIDTH, 3), 16 + index % 200, np.uint8)
        return Emit(frames=frames, media_time=index / 12, input_ids=(), index=index)

    def update(self, controls: Controls) -> None:
        return None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.on_close is not None:
                self.on_close()


class ScriptedHost:
    """Two models, no device. `gate` closed makes `encode` wait; `encoding` says that it has begun. `load` and `loading`
    are the same for `switch`."""

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(1)
        self.gate = threading.Event()
        self.gate.set()
        self.encoding = threading.Event()
        self.fail_at: dict[int, Exception] = {}
        self.start_error: Exception | None = None
        self.games: list[ScriptedGame] = []
        self.pictures: list[NDArray[np.uint8]] = []
        self.adopted: list[Picture] = []
        self.options: list[GameOptions] = []
        self.active: str | None = "alpha"
        self.frame_size = (HEIGHT, WIDTH)
        self.loading = threading.Event()
        self.load = threading.Event()
        self.load.set()
        self.switches = 0
        self.default_model_id = "alpha"

    @property
    def active_model_id(self) -> str | None:
        return self.active

    @property
    def active_profile(self) -> dict[str, Any]:
        return {"name": "walker", "jump_sprint": False, "controls": ["w", "a", "s", "d"]}

    def model_ids(self) -> list[str]:
        return ["alpha", "beta"]

    def describe(self) -> dict[str, Any]:
        return {
            "details": {name: {"steps": 3} for name in self.model_ids()},
            "nfe": {"override": None, "max": 32},
            "sphere": {"mode": "off"},
            "reprefill": {"every": 0},
            "focus": {"trained": False},
        }

    def report(self) -> HostReport:
        playing = sum(not game.closed for game in self.games)
        return HostReport(
            weights_bytes=1000,
            session_bytes=50 * playing,
            sessions=playing,
            queued=int(self.encoding.is_set()),
            switches=self.switches,
            reprefills=5,
            drift_reprefills=3,
        )

    def switch(self, model_id: str) -> None:
        self.active = None
        self.loading.set()
        self.load.wait()
        self.active = model_id
        self.switches += 1

    def configure(self, options: GameOptions) -> dict[str, Any]:
        if isinstance(options.focus, tuple):
            raise InvalidInputError("focus_mask: this checkpoint has no focus region")
        self.options.append(options)
        return {"mode": "none", "tokens": 0, "grid": None, "coverage": 0.0}

    def encode(self, picture: NDArray[np.uint8]) -> StartFrame:
        self.encoding.set()
        assert self.gate.wait(WAIT_S)
        self.pictures.append(picture)
        return StartFrame(value=picture, shape=(1, 8, 3, 4), model_id=str(self.active))

    def adopt(self, picture: Picture) -> StartFrame:
        self.adopted.append(picture)
        return StartFrame(value=picture, shape=(1, 8, 3, 4), model_id=str(self.active))

    def start(
        self,
        frame: StartFrame,
        *,
        options: GameOptions,
        seed: int | None,
        on_close: Callable[[], None] | None = None,
    ) -> ScriptedGame:
        if self.start_error is not None:
            raise self.start_error
        self.games.append(ScriptedGame(self, on_close))
        return self.games[-1]

    def close(self) -> None:
        self.worker.shutdown()


class AsgiSocket:
    """A WebSocket client that talks to the application directly."""

    def __init__(self, app: FastAPI, path: str, headers: dict[str, str]) -> None:
        path, _, query = path.partition("?")
        named = {"host": "test", **headers}
        self._scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "subprotocols": [],
            "root_path": "",
            "scheme": "ws",
        }
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_app.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.ensure_future(app(self._scope, self._to_app.get, self._from_app.put))
        self.texts: list[dict[str, Any]] = []
        self.units: list[bytes] = []
        self.accepted = False

    async def say(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        await self._to_app.put({"type": "websocket.receive", "text": text})

    async def leave(self, code: int = 1001) -> None:
        """Go with this code; 1006 is a connection that broke."""
        await self._to_app.put({"type": "websocket.disconnect", "code": code})
        await asyncio.wait_for(self.task, WAIT_S)

    async def next(self) -> dict[str, Any]:
        message = await asyncio.wait_for(self._from_app.get(), WAIT_S)
        self.accepted |= message["type"] == "websocket.accept"
        if message.get("text") is not None:
            self.texts.append(json.loads(message["text"]))
        if message.get("bytes") is not None:
            self.units.append(message["bytes"])
        return message

    async def unit(self) -> bytes:
        """The next picture."""
        while True:
            if (await self.next()).get("bytes") is not None:
                return self.units[-1]

    async def text(self, kind: str) -> dict[str, Any]:
        """The next text of this type, within a few seconds of play."""
        for _ in range(1000):
            message = await self.next()
            if message.get("text") is not None and self.texts[-1]["type"] == kind:
                return self.texts[-1]
        raise AssertionError(f"no text of type {kind}; got {self.texts}")

    async def closed(self) -> tuple[int, str]:
        """Code and reason of the close."""
        while True:
            message = await self.next()
            if message["type"] == "websocket.close":
                await asyncio.wait_for(self.task, WAIT_S)
                return message["code"], message.get("reason", "")


class Site:
    """One application with its host and an HTTP client."""

    def __init__(self, app: FastAPI, host: ScriptedHost, http: httpx.AsyncClient) -> None:
        self.app, self.host, self.http = app, host, http
        self.sockets: list[AsgiSocket] = []

    def socket(self, user: str, query: str = "", **headers: str) -> AsgiSocket:
        self.sockets.append(AsgiSocket(self.app, f"/ws/{user}{query}", headers))
        return self.sockets[-1]

    async def upload(
        self, user: str, data: bytes | None = None, name: str = "a.png", **fields: str
    ) -> httpx.Response:
        files = {"z0_image": (name, png() if data is None else data)}
        return await self.http.post(f"/z0/{user}", files=files, data=fields)

    async def playing(self, user: str) -> AsgiSocket:
        """A socket whose first picture has come."""
        assert (await self.upload(user)).status_code == 200
        assert (await self.http.get(f"/create-game/{user}")).status_code == 200
        socket = self.socket(user)
        await socket.unit()
        return socket


def png(width: int = 80, height: int = 60, colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, "PNG")
    return out.getvalue()


@asynccontextmanager
async def open_site(**settings: Any) -> AsyncIterator[Site]:
    clock = settings.pop("clock", None)
    gallery = settings.pop("gallery", None)
    host = ScriptedHost()
    app = create_app(
        host, Settings(**{"stream_fps": 120, "stream_scale": 1, **settings}), clock=clock, gallery=gallery
    )
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        site = Site(app, host, http)
        try:
            yield site
        finally:
            host.gate.set()
            host.load.set()
            for socket in site.sockets:
                if not socket.task.done():
                    await socket.leave()
            await app.state.arena.stop("the test is over")
            app.state.arena.close()
            host.close()


@pytest.fixture
def site() -> Callable[..., Any]:
    return open_site


@pytest.fixture
def make_png() -> Callable[..., bytes]:
    return png


@pytest.fixture
def scripted_host() -> type[ScriptedHost]:
    return ScriptedHost
