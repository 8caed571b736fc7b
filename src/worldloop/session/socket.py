"""A player's socket as a game sees it, and how a game ends.

Owns the `PlayerSocket` protocol and the `Ending` values. Does not own a transport: `server` adapts its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from worldloop.core.errors import SessionEndedError

ERROR_CHARS = 90

_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.\-]+){2,}")

BROKEN_CODE = 1006
"""Close code of a socket that broke: no close frame came (RFC 6455, section 7.4.1)."""

EndingKind = Literal[
    "left", "limit", "over", "slow", "failed", "stopped", "broken", "moved", "expired", "replaced"
]


class SocketClosedError(SessionEndedError):
    """The player's side of the socket is gone.

    Attributes:
        code: how it was closed; None when a send found it out, and `receive` is the one to say.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class PlayerSocket(Protocol):
    """Messages in order, both ways. Sends wait while the transport is full.

    Once a send has raised, `receive` raises too, after the messages that came before, and knows the close code.
    """

    async def receive(self) -> str | bytes:
        """The next message. Raises `SocketClosedError` with a code."""
        ...

    async def send_text(self, text: str) -> None:
        """Raises `SocketClosedError`."""
        ...

    async def send_bytes(self, data: bytes) -> None:
        """Raises `SocketClosedError`."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close this side. Does nothing on a socket that is gone."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a game ended, or one socket of it.

    Attributes:
        kind: for logs and metrics.
        code: WebSocket close code.
        reason: close reason, for a person.
        announce: text of the `session_over` message, or None for none.
    """

    kind: EndingKind
    code: int
    reason: str
    announce: str | None = None


LEFT = Ending(kind="left", code=1000, reason="the player left")
BROKEN = Ending(kind="broken", code=BROKEN_CODE, reason="the connection broke")
MOVED = Ending(kind="moved", code=1008, reason="taken up elsewhere")
EXPIRED = Ending(kind="expired", code=BROKEN_CODE, reason="the connection broke and nobody came back in time")
REPLACED = Ending(kind="replaced", code=BROKEN_CODE, reason="the player began a new game")


def over(kind: Literal["limit", "over", "stopped"], message: str) -> Ending:
    """An end that the player is told about. A server that stops says 1001 (going away), others 1000."""
    return Ending(kind=kind, code=1001 if kind == "stopped" else 1000, reason=message, announce=message)


def failed(error: BaseException) -> Ending:
    """Generation died: the error's name and the first of its text, without paths of this machine."""
    return Ending(kind="failed", code=1011, reason=describe(error))


def describe(error: BaseException) -> str:
    """The error's type and at most `ERROR_CHARS` of its text, paths removed."""
    text = _PATH.sub("<path>", str(error))[:ERROR_CHARS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
