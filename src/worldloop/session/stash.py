"""Encoded start pictures that wait for their game, one a player.

Owns their expiry and number. Called by `session.arena` on the event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass

from worldloop.core.clock import Clock
from worldloop.session.host import GameOptions, StartFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class Stashed:
    """A start picture with the choices that were made for its game."""

    frame: StartFrame
    options: GameOptions


class Stash:
    """At most `limit` entries, each for `ttl_s` seconds after its last use."""

    def __init__(self, *, clock: Clock, ttl_s: float, limit: int) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._limit = limit
        self._entries: dict[str, tuple[float, Stashed]] = {}

    def __len__(self) -> int:
        self._expire()
        return len(self._entries)

    def __contains__(self, user_id: str) -> bool:
        self._expire()
        return user_id in self._entries

    def put(self, user_id: str, stashed: Stashed) -> None:
        """Keep, in place of this player's earlier one; when full, the least recently used entry goes."""
        self._expire()
        self._entries.pop(user_id, None)
        while len(self._entries) >= self._limit:
            del self._entries[next(iter(self._entries))]
        self._entries[user_id] = (self._clock.monotonic(), stashed)

    def use(self, user_id: str) -> Stashed | None:
        """This player's entry, or None. It stays, for another game from the same picture."""
        self._expire()
        entry = self._entries.pop(user_id, None)
        if entry is None:
            return None
        self._entries[user_id] = (self._clock.monotonic(), entry[1])
        return entry[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the encoded pictures, as far as the host's values tell theirs."""
        return sum(getattr(stashed.frame.value, "nbytes", 0) for _, stashed in self._entries.values())

    def clear(self) -> None:
        self._entries.clear()

    def _expire(self) -> None:
        # Insertion order is order of use, so the old ones are in front.
        now = self._clock.monotonic()
        while self._entries:
            user_id, (used, _) = next(iter(self._entries.items()))
            if now - used <= self._ttl_s:
                return
            del self._entries[user_id]
