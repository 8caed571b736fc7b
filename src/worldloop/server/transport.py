"""Uvicorn's WebSocket connection, with breaks told apart from closes, and none that lingers.

Owns what the base class leaves open: a connection that was lost without a close frame reports 1006; a peer that is gone
or doesn't read can't keep a connection, its buffer and its file descriptor for ever. Used by `server.run`.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from worldloop.session.socket import BROKEN_CODE

PING_S = 10.0
"""How often a connection is asked for a sign of life, and how long it has to answer: a dead one is noticed in both."""

LINGER_S = 3.0
"""How long what is already written may take to leave once the application is done with the socket."""


BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class PlayTransport(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # The base class leaves a handshake that can't be read without an answer, and open.
            self.transport.write(b"".join(self.conn.data_to_send()) or BAD_REQUEST)
            self.transport.close()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            # Answers that this client doesn't read would pile up here.
            self.conn.data_to_send()

    def connection_lost(self, exc: Exception | None) -> None:
        # What it still had to say no longer matters, and may be tens of thousands of messages.
        unread = [self.queue.get_nowait() for _ in range(self.queue.qsize())]
        for event in unread:
            if event["type"] != "websocket.receive":
                self.queue.put_nowait(event)
        # The base class says 1005 for this, which a close frame without a code has as well.
        if self.handshake_complete and self.conn.close_rcvd is None:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": BROKEN_CODE})
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        if self.writable.is_set():
            super().keepalive_timeout()
            # A close waits until everything is written, which a dead peer never lets happen.
            self.transport.abort()
        else:
            # Nothing has reached this client for a while, pings neither: the rule for slow clients is at work.
            self.schedule_ping()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
