"""A server on a real port in a thread of its own, and a player who talks to it over real sockets.

Owns starting and stopping, uploads, and reading a game's messages. Shares no code with the server's wire layer.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av
import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from websockets.sync.client import ClientConnection, connect

from worldloop.core.clock import Clock
from worldloop.core.settings import Settings
from worldloop.server.app import create_app
from worldloop.server.run import listen, make_server, url_of
from worldloop.session.host import Host
from worldloop.session.observer import Levels
from worldloop.session.picture_host import PictureHost
from worldloop.session.videos import VideoHost

WAIT_S = 30.0
SERVER_THREAD = "server under test"


class Live:
    """One running server.

    Attributes:
        url: without a slash at its end.
        host: what it serves; the test may look, and close nothing.
        clock: that was given to it, or None.
        arena, pictures, videos: the server's games, and its pictures and videos on order or None.
    """

    def __init__(
        self,
        host: Host,
        video_host: VideoHost | None = None,
        picture_host: PictureHost | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.host, self.clock = host, clock
        self.settings = Settings(port=0, **{"log_level": "warning", **settings})
        self._listener = listen(self.settings.host, self.settings.port)
        self.url = url_of(self._listener)
        self._app = create_app(
            host, self.settings, clock=clock, video_host=video_host, picture_host=picture_host
        )
        state = self._app.state
        self.arena, self.pictures, self.videos = state.arena, state.pictures, state.videos
        self._ready = threading.Event()
        self._server = make_server(self._app, self.settings, self._ready.set)
        self._thread = threading.Thread(target=self._run, name=SERVER_THREAD, daemon=True)
        self._thread.start()
        assert self._ready.wait(WAIT_S), "the server did not come up"

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._listener])

    def close(self) -> None:
        """Stop as a signal would, and wait. The host stays open."""
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server did not stop"
        self._listener.close()

    def levels(self) -> Levels:
        """What the metrics would show now. Read on the server's loop: it changes on no other thread."""

        async def read() -> Levels:
            return self.arena.levels()

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(WAIT_S)

    def http(self) -> httpx.Client:
        # Plain HTTP needs no certificates, and reading them takes longer than a request.
        return httpx.Client(base_url=self.url, timeout=WAIT_S, verify=False)

    def get(self, path: str, **query: str) -> httpx.Response:
        with self.http() as http:
            return http.get(path, params=query)

    def upload(
        self, user: str, data: bytes | None = None, name: str = "a.png", **fields: str
    ) -> httpx.Response:
        """`POST /z0/{user}`; a small picture when `data` is None."""
        files = {"z0_image": (name, png() if data is None else data)}
        with self.http() as http:
            return http.post(f"/z0/{user}", files=files, data=fields)

    @contextmanager
    def socket(self, user: str, query: str = "", **options: Any) -> Iterator[Stream]:
        """`WS /ws/{user}` with `query` such as `?ticket=...`.

        Messages are read as they come, however late the test asks for them: a client that closes with unread ones
        resets its connection, and the server then holds the game as one that broke off.
        """
        options = {"max_queue": None, **options}
        address = f"{self.url.replace('http', 'ws', 1)}/ws/{user}{query}"
        with connect(address, max_size=2**22, open_timeout=WAIT_S, **options) as connection:
            yield Stream(connection)

    @contextmanager
    def playing(self, user: str, data: bytes | None = None, **fields: str) -> Iterator[Stream]:
        """Upload, reserve, connect. A place whose player is still leaving is waited for.

        Of several places one may be free for an upload, and still not for a player whose own last game is leaving.
        """
        for ask in (lambda: self.upload(user, data, **fields), lambda: self.get(f"/create-game/{user}")):
            deadline = time.monotonic() + WAIT_S
            while (answer := ask()).status_code == 423:
                assert time.monotonic() < deadline, answer.text
                time.sleep(0.01)
            assert answer.status_code == 200, answer.text
        with self.socket(user) as stream:
            yield stream


class Stream:
    """A game's messages as they come.

    Attributes:
        texts: every text so far, parsed.
        units: every binary message so far.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.texts: list[dict[str, Any]] = []
        self.units: list[bytes] = []
        self._decoder = av.CodecContext.create("h264", "r")

    def say(self, message: Any) -> None:
        """Send text or bytes as they are, anything else as JSON."""
        self.connection.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def hold(self, *keys: str, **more: Any) -> None:
        """Send a keys message."""
        self.say({"type": "keys", "pressed": {key: True for key in keys}, **more})

    def next(self) -> str | bytes:
        """The next message; raises `websockets.exceptions.ConnectionClosed`, with the code and the reason."""
        message = self.connection.recv(timeout=WAIT_S)
        if isinstance(message, str):
            self.texts.append(json.loads(message))
        else:
            self.units.append(message)
        return message

    def text(self, kind: str) -> dict[str, Any]:
        """The next text of this type."""
        while True:
            if isinstance(self.next(), str) and self.texts[-1]["type"] == kind:
                return self.texts[-1]

    def unit(self) -> bytes:
        """The next binary message."""
        while True:
            if isinstance(self.next(), bytes):
                return self.units[-1]

    def picture(self) -> NDArray[np.uint8]:
        """The next picture, decoded, `[H, W, 3]`. Every unit must go through here, or none."""
        frames = self._decoder.decode(av.Packet(self.unit()[1:]))
        assert len(frames) == 1, f"a unit held {len(frames)} pictures"
        return frames[0].to_ndarray(format="rgb24")


def png(width: int = 80, height: int = 60, colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """A flat picture as a PNG file."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, "PNG")
    return out.getvalue()
