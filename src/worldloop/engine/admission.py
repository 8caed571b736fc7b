"""Who may begin: by the bytes that are free, and by the real time that the device has left.

Owns the sums and the refusals. Does not own sessions (`engine`) or what they cost (`cost`, and each loop's `price`).
Plain arithmetic: no tensors, no clock. Called by `engine.Engine.open`; sums may be read from any thread.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from worldloop.core.errors import CapacityError


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one session holds while it lives.

    Attributes:
        resident_bytes: on the device, from its beginning to its end.
        peak_bytes: further bytes while one of its plans runs.
        load: share of the device's time that it needs to keep up; 0 for work that may wait.
    """

    resident_bytes: int = 0
    peak_bytes: int = 0
    load: float = 0.0


class Admission:
    """Shares of the sessions that live, and whether one more fits.

    Args:
        memory_bytes: of the device for everything here, or None for no limit.
        load_limit: of the device's time for sessions that must keep up, or None. A session alone is always let in: a
            slow machine plays slowly, rather than not at all.
    """

    def __init__(self, *, memory_bytes: int | None = None, load_limit: float | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.load_limit = load_limit
        self._held: dict[str, int] = {}
        self._shares: dict[Hashable, Share] = {}

    def hold(self, owner: str, size: int) -> None:
        """Bytes that an owner holds now whatever the sessions do, such as a model's weights."""
        self._held[owner] = size

    @property
    def base_bytes(self) -> int:
        """What owners hold."""
        return sum(tuple(self._held.values()))

    @property
    def _now(self) -> tuple[Share, ...]:
        """All shares at this moment: the device thread may take one in or give one back at the next."""
        return tuple(self._shares.values())

    @property
    def resident_bytes(self) -> int:
        """Of all sessions."""
        return sum(share.resident_bytes for share in self._now)

    @property
    def peak_bytes(self) -> int:
        """Of the session whose plans need most on top; one plan runs at a time, so the largest counts once."""
        return max((share.peak_bytes for share in self._now), default=0)

    @property
    def load(self) -> float:
        """Share of the device's time that is spoken for."""
        return sum(share.load for share in self._now)

    def admit(self, key: Hashable, share: Share) -> None:
        """Take a share in.

        Raises:
            CapacityError: it does not fit; the message says what is needed, what is free, and what would fit.
        """
        self.check(share)
        self._shares[key] = share

    def check(self, share: Share) -> None:
        """`admit` without taking it in."""
        self._check_memory(share)
        self._check_load(share)

    def revise(self, key: Hashable, share: Share) -> None:
        """What a share is by now, as it was measured meanwhile. Does nothing when it was given back."""
        if key in self._shares:
            self._shares[key] = share

    def release(self, key: Hashable) -> None:
        """Give a share back. Does nothing when there is none."""
        self._shares.pop(key, None)

    def free_bytes(self, peak_bytes: int = 0) -> int | None:
        """Bytes for one more session whose plans need `peak_bytes` on top; None without a limit."""
        if self.memory_bytes is None:
            return None
        return self.memory_bytes - self.base_bytes - self.resident_bytes - max(self.peak_bytes, peak_bytes)

    def _check_memory(self, share: Share) -> None:
        free = self.free_bytes(share.peak_bytes)
        if free is None or share.resident_bytes <= free:
            return
        assert self.memory_bytes is not None
        alone = self.memory_bytes - self.base_bytes - share.peak_bytes
        remedy = (
            f"it would fit beside fewer sessions ({len(self._shares)} live now)"
            if share.resident_bytes <= alone
            else f"at most {_mib(max(alone, 0))} would fit even alone"
        )
        raise CapacityError(
            f"this needs {_mib(share.resident_bytes)} and {_mib(share.peak_bytes)} at its peak; "
            f"{_mib(max(free, 0))} of {_mib(self.memory_bytes)} are free: {remedy}"
        )

    def _check_load(self, share: Share) -> None:
        limit, load = self.load_limit, self.load
        if limit is None or share.load == 0 or load == 0 or load + share.load <= limit:
            return
        raise CapacityError(
            f"the device has {max(limit - load, 0):.0%} of its time left and this needs {share.load:.0%}: "
            "try again later, or ask for less"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
