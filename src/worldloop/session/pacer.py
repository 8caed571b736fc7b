"""When the next picture is due on the wire.

Owns the schedule of one socket. Reads no clock and never waits: `session.game` passes the time in and sleeps.
"""

from __future__ import annotations


class FramePacer:
    """One picture every 1/fps seconds.

    A picture that is late by at most one interval keeps the schedule, so timer jitter doesn't slow it.
    A later one starts a new schedule, and a new rate counts from the last picture: neither makes a burst.
    """

    def __init__(self) -> None:
        self._due: float | None = None

    def delay(self, fps: float, now: float) -> float:
        """Seconds to wait at `now` (monotonic) before the next picture goes out. Counts that picture."""
        interval = 1.0 / fps
        due = now if self._due is None else self._due + interval
        self._due = due if now - due <= interval else now
        return max(0.0, self._due - now)

    def due(self, fps: float, now: float, ahead: int) -> float:
        """When a picture is due that has `ahead` others before it, those not counted yet; `now` before the first."""
        return now if self._due is None else self._due + (ahead + 1) / fps
