"""Uvicorn's HTTP connection, with limits to how long a request may take to arrive and an answer may lie unread.

Owns these two timers, and that a body which breaks off in the middle gets one answer. Does not own how long an answer
takes to make, nor idle connections, which the base class closes. Used by `server.run`.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0
"""How long a new connection has to say what it wants."""

BODY_S = 120.0
"""How long a request has from its head to the last byte of its body."""

UNREAD_S = 60.0
"""How often a client that is behind with reading is looked at: one that took nothing since the last look is let go."""


class HttpTransport(H11Protocol):
    """One HTTP connection. Clients that send a byte now and then, or read nothing, can't hold it for ever."""

    _timer: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _unread: int | None = None
    """Bytes that the client was behind at the last look; None when it kept up at any time since."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(HEAD_S)
        self._look = self.loop.call_later(UNREAD_S, self._look_at_client)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._unread = None
        super().resume_writing()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._expect(BODY_S)

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)
            return
        # The body went wrong while the application reads it: to the application, the client is gone.
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _expect(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        upgraded = self.transport.get_protocol() is not self
        if upgraded or self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self.transport.abort()
        else:
            self._expect(BODY_S)

    def _look_at_client(self) -> None:
        if self.transport.get_protocol() is not self:
            return
        # Nothing is added to what waits: the application waits as well, or has said everything.
        behind = self.flow.write_paused or self.transport.is_closing()
        unread = self.transport.get_write_buffer_size() if behind else None
        if unread is not None and self._unread is not None and unread >= self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._look = self.loop.call_later(UNREAD_S, self._look_at_client)
