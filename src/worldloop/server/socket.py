"""Starlette's WebSocket as a `PlayerSocket`. Used by `server.world_routes`."""

from __future__ import annotations

from collections.abc import Awaitable

from fastapi import WebSocket, WebSocketDisconnect

from worldloop.session.socket import SocketClosedError


class WebSocketPlayer:
    """An accepted socket. Every way of being closed is a `SocketClosedError`."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise SocketClosedError("the player's side is closed", code=message.get("code", 1005))
        text = message.get("text")
        return text if text is not None else message.get("bytes") or b""

    async def send_text(self, text: str) -> None:
        await _sent(self._websocket.send_text(text))

    async def send_bytes(self, data: bytes) -> None:
        await _sent(self._websocket.send_bytes(data))

    async def close(self, code: int, reason: str) -> None:
        try:
            await _sent(self._websocket.close(code, reason))
        except SocketClosedError:
            return


async def _sent(sending: Awaitable[None]) -> None:
    try:
        await sending
    except (WebSocketDisconnect, RuntimeError) as error:
        # Starlette says RuntimeError for a send after either side has closed.
        raise SocketClosedError("the socket is closed") from error
