"""What `/status` calls busy: games, requests on the device, and start pictures whose socket is to come.

Owns the counts of the last two; games, live or held, come from `session.leases`. Called by `session.arena`; safe from
any thread, does no device work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from worldloop.core.clock import Clock
from worldloop.session.leases import Leases
from worldloop.wire.world import OccupancyAnswer


class Occupancy:
    """Counts for one server. A start picture counts for `pending_s` seconds, or until its socket opens."""

    def __init__(self, leases: Leases, *, slots: int, clock: Clock, pending_s: float) -> None:
        self._leases = leases
        self._slots = slots
        self._clock = clock
        self._pending_s = pending_s
        self._inflight = 0
        self._pending: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def requests(self) -> int:
        """Number of requests inside `inflight`."""
        with self._lock:
            return self._inflight

    @contextmanager
    def inflight(self) -> Iterator[None]:
        """A request that uses the device runs inside."""
        with self._lock:
            self._inflight += 1
        try:
            yield
        finally:
            with self._lock:
                self._inflight -= 1

    def expect(self, user_id: str) -> None:
        """A start picture of this player waits for its socket from now on."""
        with self._lock:
            self._drop_old()
            self._pending[user_id] = self._clock.monotonic()

    def arrived(self, user_id: str) -> None:
        """Its socket has opened."""
        with self._lock:
            self._pending.pop(user_id, None)

    def report(self) -> OccupancyAnswer:
        """Busy when games, requests and waiting pictures together fill every slot."""
        taken = self._leases.taken
        with self._lock:
            self._drop_old()
            inflight, pending = self._inflight, len(self._pending)
        return OccupancyAnswer(
            busy=taken + inflight + pending >= self._slots,
            owner=taken >= self._slots,
            inflight=inflight,
            pending_z0=pending,
        )

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        self._pending = {user: at for user, at in self._pending.items() if now - at <= self._pending_s}
