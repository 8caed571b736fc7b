"""Who holds a slot. One lease a player; a lease is live from the opening of its socket to its end.

Owns the rules of claiming. Does not own what is played (`session.arena`) or what `/status` calls busy
(`session.occupancy`). Called by `session.arena`; safe from any thread.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass

from worldloop.core.clock import Clock


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A hold on one slot. The token, not the user's name, is what holds it."""

    token: str
    user_id: str


@dataclass(slots=True)
class _Held:
    lease: Lease
    since: float
    live: bool = False


class Leases:
    """`slots` holds at once.

    A player may replace their own lease until its socket opens, never while it is live. When no slot is free,
    the oldest lease without a socket that is older than `stale_s` seconds is taken over.
    """

    def __init__(self, *, slots: int, clock: Clock, stale_s: float) -> None:
        self._slots = slots
        self._clock = clock
        self._stale_s = stale_s
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    def claim(self, user_id: str) -> Lease | None:
        """A new lease, or None when every slot is taken or this player's game is live."""
        with self._lock:
            now = self._clock.monotonic()
            mine = self._held.get(user_id)
            if mine is not None and mine.live:
                return None
            if mine is not None:
                del self._held[user_id]
            elif len(self._held) >= self._slots and not self._drop_stale(now):
                return None
            lease = Lease(token=secrets.token_hex(16), user_id=user_id)
            self._held[user_id] = _Held(lease=lease, since=now)
            return lease

    def mark_live(self, lease: Lease) -> bool:
        """The socket is open. False when the lease has been replaced or taken over."""
        with self._lock:
            held = self._find(lease)
            if held is None:
                return False
            held.live, held.since = True, self._clock.monotonic()
            return True

    def release(self, lease: Lease) -> bool:
        """Give the slot back. False when it was no longer held by this lease."""
        with self._lock:
            if self._find(lease) is None:
                return False
            del self._held[lease.user_id]
            return True

    @property
    def live(self) -> int:
        """Number of live leases."""
        with self._lock:
            return sum(held.live for held in self._held.values())

    @property
    def busy(self) -> bool:
        """Whether every slot is live."""
        return self.live >= self._slots

    def _find(self, lease: Lease) -> _Held | None:
        held = self._held.get(lease.user_id)
        return held if held is not None and held.lease.token == lease.token else None

    def _drop_stale(self, now: float) -> bool:
        waiting = [h for h in self._held.values() if not h.live and now - h.since > self._stale_s]
        if not waiting:
            return False
        del self._held[min(waiting, key=lambda held: held.since).lease.user_id]
        return True
