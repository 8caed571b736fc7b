"""What the page sends: its start pictures, and its messages on each socket. Owns no browser."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, Request, WebSocket


class Wiretap:
    """Listens from its making on.

    Attributes:
        starts: start pictures sent.
        sockets: the messages of each socket, in order.
    """

    def __init__(self, page: Page) -> None:
        self.starts = 0
        self.sockets: list[list[dict[str, Any]]] = []
        page.on("request", self._request)
        page.on("websocket", self._socket)

    def _request(self, request: Request) -> None:
        self.starts += "/z0/" in request.url

    def _socket(self, socket: WebSocket) -> None:
        sent: list[dict[str, Any]] = []
        self.sockets.append(sent)
        socket.on("framesent", lambda text: sent.append(json.loads(text)))
