"""How late a frame can be begun and still be there in time.

Owns an estimate of how long a frame takes to be made. Reads no clock and never waits: `session.game` passes times in
and sleeps. The later a frame is begun, the newer the keys that it shows.
"""

from __future__ import annotations

MARGIN_S = 0.015
"""Spare time for encoding a picture and for timers."""

FADE = 0.95
"""A slow frame counts for a while: the estimate falls by this factor a frame at most."""


class Lead:
    """Estimate of the time from beginning a frame to having its pictures: the slowest of late."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def took(self, seconds: float) -> None:
        """A frame was made in `seconds`."""
        self._seconds = seconds if self._seconds is None else max(seconds, FADE * self._seconds)

    def wait(self, now: float, due: float) -> float:
        """Seconds from `now` until a frame must begin whose first picture is due at `due`; 0 while nothing is known."""
        if self._seconds is None:
            return 0.0
        return max(0.0, due - now - self._seconds - MARGIN_S)
