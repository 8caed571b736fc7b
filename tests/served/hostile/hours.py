"""A clock that can be told that an hour has passed."""

from __future__ import annotations

from worldloop.core.clock import SystemClock

HOUR_S = 3600.0


class HourHand(SystemClock):
    """The system's clock, set forward when a test says so. Intervals go on as they are."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def time(self) -> float:
        return super().time() + self._ahead

    def an_hour_later(self) -> None:
        """The hour strikes."""
        self._ahead += HOUR_S
