"""Who holds a slot. One lease a player: reserved until its socket opens, live while it is open, held after a break.

Owns the rules of claiming. Does not own what is played (`session.arena`) or what `/status` calls busy
(`session.occupancy`). Called by `session.arena`; safe from any thread.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from typing import Literal

from worldloop.core.clock import Clock


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A hold on one slot. The token, not the user's name, is what holds it."""

    token: str
    user_id: str


@dataclass(slots=True)
class _Place:
    lease: Lease
    since: float
    state: Literal["reserved", "live", "held"] = "reserved"


class Leases:
    """`slots` places at once.

    A player may replace their own lease while it has no socket, never while it is live. When no slot is free, the
    oldest reservation that is older than `stale_s` seconds is taken over. A held game is never taken over by others:
    whoever holds it releases it in time.
    """

    def __init__(self, *, slots: int, clock: Clock, stale_s: float) -> None:
        self._slots = slots
        self._clock = clock
        self._stale_s = stale_s
        self._places: dict[str, _Place] = {}
        self._lock = threading.Lock()

    def admits(self, user_id: str) -> bool:
        """Whether `claim` would give a lease now."""
        with self._lock:
            return self._admits(user_id)

    def claim(self, user_id: str) -> Lease | None:
        """A new lease, or None when every slot is taken or this player's game is live."""
        with self._lock:
            if not self._admits(user_id):
                return None
            if self._places.pop(user_id, None) is None and len(self._places) >= self._slots:
                del self._places[self._stale()[0].lease.user_id]
            lease = Lease(token=secrets.token_hex(16), user_id=user_id)
            self._places[user_id] = _Place(lease=lease, since=self._clock.monotonic())
            return lease

    def mark_live(self, lease: Lease) -> bool:
        """Its socket is open. False when the lease has been replaced or taken over."""
        return self._mark(lease, "live")

    def hold(self, lease: Lease) -> bool:
        """Its socket broke and its game waits. False as of `mark_live`."""
        return self._mark(lease, "held")

    def release(self, lease: Lease) -> bool:
        """Give the slot back. False when this lease no longer had it."""
        with self._lock:
            if self._find(lease) is None:
                return False
            del self._places[lease.user_id]
            return True

    @property
    def live(self) -> int:
        """Number of games whose socket is open."""
        with self._lock:
            return sum(place.state == "live" for place in self._places.values())

    @property
    def taken(self) -> int:
        """Number of games: live, or held after a break."""
        with self._lock:
            return sum(place.state != "reserved" for place in self._places.values())

    def full(self, user_id: str = "") -> bool:
        """Whether games fill every slot, not counting a held game of `user_id`, which they may replace."""
        with self._lock:
            own = self._places.get(user_id)
            spare = own is not None and own.state == "held"
            return sum(place.state != "reserved" for place in self._places.values()) - spare >= self._slots

    def _find(self, lease: Lease) -> _Place | None:
        place = self._places.get(lease.user_id)
        return place if place is not None and place.lease.token == lease.token else None

    def _mark(self, lease: Lease, state: Literal["live", "held"]) -> bool:
        with self._lock:
            place = self._find(lease)
            if place is None:
                return False
            place.state, place.since = state, self._clock.monotonic()
            return True

    def _admits(self, user_id: str) -> bool:
        own = self._places.get(user_id)
        if own is not None:
            return own.state != "live"
        return len(self._places) < self._slots or bool(self._stale())

    def _stale(self) -> list[_Place]:
        now = self._clock.monotonic()
        old = [p for p in self._places.values() if p.state == "reserved" and now - p.since > self._stale_s]
        return sorted(old, key=lambda place: place.since)
