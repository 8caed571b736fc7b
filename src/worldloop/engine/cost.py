"""What work costs on this device, measured while it is done.

Owns a moving average of seconds a unit for each (op, shape). Does not own a clock or what is done with the numbers
(`admission`, estimates of when something is ready). Fed by `engine.Engine` after every plan; asked from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from worldloop.engine.contract import Work

NEWEST = 0.1
"""Weight of the newest measurement once there are ten."""


class CostModel:
    """Seconds of a unit of work by (op, shape); work without units counts as one."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, tuple[int, ...]], tuple[float, int]] = {}

    def seen(self, work: Work, seconds: float) -> None:
        """One piece of work took this long."""
        key = work.op, work.shape
        average, count = self._seconds.get(key, (0.0, 0))
        count += 1
        per_unit = seconds / (work.cost or 1.0)
        self._seconds[key] = average + (per_unit - average) * max(NEWEST, 1 / count), count

    def seconds(self, work: Iterable[Work]) -> float | None:
        """Seconds that all of `work` takes; None while one of its kinds has never been seen.

        A shape that is new borrows the slowest seconds a unit of its op.
        """
        total = 0.0
        for each in work:
            known = self._seconds.get((each.op, each.shape))
            if known is None:
                # A copy: the device thread may see something new meanwhile.
                seen = self._seconds.copy()
                others = [average for (op, _), (average, _) in seen.items() if op == each.op]
                if not others:
                    return None
                known = max(others), 0
            total += known[0] * (each.cost or 1.0)
        return total
