"""Runs the application on a port until it is told to stop.

Owns the listening socket, uvicorn's settings and the stop. Prints nothing. Called by the command line.

A stop has `drain_s` seconds: games are told and ended first, then requests get the time to be answered; what is still
running after that is given up, and the process ends all the same. A device that is lost stops the process too, for a
supervisor to start it anew, after a moment in which `/readyz` says why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from worldloop.core.errors import DeviceLostError, SettingsError
from worldloop.core.memory import lasting
from worldloop.core.settings import Settings
from worldloop.core.telemetry import log_event
from worldloop.server.app import STOPPING, create_app
from worldloop.server.http_transport import HttpTransport
from worldloop.server.transport import PING_S, PlayTransport
from worldloop.session.arena import Arena
from worldloop.session.host import Host
from worldloop.session.picture_host import PictureHost
from worldloop.session.pictures import Pictures
from worldloop.session.videos import VideoHost

SOCKET_SLACK = 16
"""A message may be this many times the limit before the transport closes the socket. Below, an error text
refuses it and the game goes on."""

GAMES_SHARE, REQUESTS_SHARE, PROCESS_SHARE = 0.5, 0.75, 0.95
"""When games, requests and the process itself are given up, in parts of `drain_s`."""

LOST_S = 2.0
"""From the loss of the device to the stop: answers are sent, and whoever asks hears the reason."""

_log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Uvicorn that ends the games before it closes their sockets, and that ends in time after a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        arena: Arena,
        pictures: Pictures | None,
        drain_s: float,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._arena, self._pictures, self._drain_s, self._on_ready = arena, pictures, drain_s, on_ready
        self._signalled_at: float | None = None
        self._lost_at = 0.0
        self.lost: str | None = None

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        if self.lost is None:
            ill = None if self._pictures is None else self._pictures.host.lost
            self.lost, self._lost_at = self._arena.lost or ill, now
        elif self._signalled_at is None and now - self._lost_at >= LOST_S:
            self._signalled_at, self.should_exit = now, True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler)
        # The base class would raise the signal again after a clean stop.
        if self._signalled_at is not None:
            os._exit(128 + sig)
        self._signalled_at = time.monotonic()
        self._arena.refuse(STOPPING)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        began = time.monotonic() if self._signalled_at is None else self._signalled_at

        def left(share: float) -> float:
            return max(0.0, began + share * self._drain_s - time.monotonic())

        if self._signalled_at is not None:
            # A thread that loads a model can't be interrupted, and would keep the process.
            status = 0 if self.lost is None else DeviceLostError.exit_code
            last = threading.Timer(left(PROCESS_SHARE), _give_up, [status])
            last.daemon = True
            last.start()
        if self._pictures is not None:
            self._pictures.drain()
        await self._arena.stop(STOPPING, limit_s=left(GAMES_SHARE))
        # A request that is given up would leave a traceback, though nothing is wrong.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.config.timeout_graceful_shutdown = left(REQUESTS_SHARE)  # type: ignore[assignment]
        await super().shutdown(sockets)


def _give_up(status: int) -> None:
    log_event(_log, "stop.forced", level=logging.WARNING)
    os._exit(status)


def make_server(app: FastAPI, settings: Settings, on_ready: Callable[[], None]) -> Server:
    """A server for `app`, which `create_app` made."""
    config = uvicorn.Config(
        app,
        http=HttpTransport,
        ws=PlayTransport,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_max_size=settings.max_message_bytes * SOCKET_SLACK,
        # H.264 doesn't compress further.
        ws_per_message_deflate=False,
        # Uvicorn's own lines would hold whole URLs, and so tickets.
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    return Server(config, app.state.arena, app.state.pictures, settings.drain_s, on_ready)


def serve(
    host: Host,
    settings: Settings,
    *,
    video_host: VideoHost | None = None,
    picture_host: PictureHost | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Listen and serve until SIGINT or SIGTERM; running games are told.

    `on_ready` gets the URL once the port listens. The hosts stay the caller's to close, as the last thing: the process
    ends within `drain_s` of the signal, with status 0, whatever is still running. A second signal ends it at once.

    Raises:
        SettingsError: the address can't be listened on.
        DeviceLostError: the device was lost, and the server has stopped because of that.
    """
    listener = listen(settings.host, settings.port)
    try:
        url = url_of(listener)
        app = create_app(host, settings, video_host=video_host, picture_host=picture_host)
        server = make_server(app, settings, lambda: on_ready(url))
        with lasting():
            asyncio.run(server.serve(sockets=[listener]))
    finally:
        listener.close()
    if server.lost is not None:
        raise DeviceLostError(server.lost)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 chooses a free one. Raises `SettingsError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"host {host!r}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
