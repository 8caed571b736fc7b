"""Runs the application on a port until it is told to stop.

Owns the listening socket, uvicorn's settings and a graceful stop. Prints nothing. Called by the command line.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from worldloop.core.errors import SettingsError
from worldloop.core.settings import Settings
from worldloop.server.app import STOPPING, create_app
from worldloop.session.arena import Arena
from worldloop.session.host import Host

SOCKET_SLACK = 16
"""A message may be this many times the limit before the transport closes the socket. Below, an error text
refuses it and the game goes on."""

STOP_S = 10
"""Seconds that connections have to close once the games have ended."""


class Server(uvicorn.Server):
    """Uvicorn that ends the games before it closes their sockets, and ends with status 0 after a signal."""

    def __init__(self, config: uvicorn.Config, arena: Arena, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._arena, self._on_ready = arena, on_ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (a signal handler)
        # The base class would raise the signal again after a clean stop.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._arena.stop(STOPPING)
        await super().shutdown(sockets)


def make_server(app: FastAPI, settings: Settings, on_ready: Callable[[], None]) -> Server:
    """A server for `app`, which `create_app` made."""
    config = uvicorn.Config(
        app,
        # By name: the automatic choice is a deprecated implementation in some versions.
        ws="websockets-sansio",
        ws_max_size=settings.max_message_bytes * SOCKET_SLACK,
        # H.264 doesn't compress further.
        ws_per_message_deflate=False,
        # Uvicorn's own lines would hold whole URLs, and so tickets.
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
    )
    return Server(config, app.state.arena, on_ready)


def serve(host: Host, settings: Settings, *, on_ready: Callable[[str], None] = lambda _: None) -> None:
    """Listen and serve until SIGINT or SIGTERM; running games are told. The host stays the caller's to close.

    `on_ready` gets the URL once the port listens.

    Raises:
        SettingsError: the address can't be listened on.
    """
    listener = listen(settings.host, settings.port)
    try:
        url = url_of(listener)
        server = make_server(create_app(host, settings), settings, lambda: on_ready(url))
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        listener.close()


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
