"""Tickets: `user.server.expiry.signature`, for a server behind a queue.

Owns minting and checking. Called by `session.arena` for every request that touches the device, and by whoever
runs the queue (mint).
"""

from __future__ import annotations

import hashlib
import hmac
import re

from worldloop.core.clock import Clock
from worldloop.core.errors import TicketError

_DIGITS = re.compile(r"[0-9]{1,12}")


class Tickets:
    """Tickets of one server, signed with HMAC-SHA256. Without a secret, everyone is admitted."""

    def __init__(self, *, secret: str | None, server_id: str | None, clock: Clock) -> None:
        if (secret is None) != (server_id is None):
            raise ValueError("secret and server_id go together")
        self._secret = None if secret is None else secret.encode()
        self._server_id = server_id
        self._clock = clock

    @property
    def required(self) -> bool:
        return self._secret is not None

    def mint(self, user_id: str, *, ttl_s: int) -> str:
        """A ticket that admits `user_id` for `ttl_s` seconds from now. ValueError without a secret."""
        if self._secret is None:
            raise ValueError("this server has no ticket secret")
        claim = f"{user_id}.{self._server_id}.{int(self._clock.time()) + ttl_s}"
        return f"{claim}.{_sign(self._secret, claim)}"

    def check(self, user_id: str, ticket: str | None) -> None:
        """Raises `TicketError`, with a short reason, unless the ticket admits `user_id` here and now."""
        if self._secret is None:
            return
        # From the right: a user id may hold dots, the other fields don't.
        parts = (ticket or "").strip().rsplit(".", 3)
        if len(parts) != 4:
            raise _refusal("missing or malformed ticket")
        user, server, expiry, signature = parts
        if user != user_id:
            raise _refusal("ticket is for another user")
        if server != self._server_id:
            raise _refusal("ticket is for another server")
        if not _DIGITS.fullmatch(expiry):
            raise _refusal("malformed ticket expiry")
        if int(expiry) < int(self._clock.time()):
            raise _refusal("ticket expired")
        wanted = _sign(self._secret, f"{user}.{server}.{expiry}")
        if not hmac.compare_digest(wanted.encode(), signature.lower().encode()):
            raise _refusal("bad ticket signature")


def _sign(secret: bytes, claim: str) -> str:
    return hmac.new(secret, claim.encode(), hashlib.sha256).hexdigest()


def _refusal(why: str) -> TicketError:
    return TicketError(f"this server admits players with a ticket ({why})")
