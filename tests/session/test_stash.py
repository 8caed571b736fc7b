"""Start pictures expire and are bounded."""

from __future__ import annotations

from worldloop.core.clock import ManualClock
from worldloop.session.host import GameOptions, StartFrame
from worldloop.session.stash import Stash, Stashed


def entry(model: str = "m") -> Stashed:
    return Stashed(frame=StartFrame(value=None, shape=(1, 1, 1, 1), model_id=model), options=GameOptions())


def test_an_entry_is_forgotten_after_its_time() -> None:
    clock = ManualClock()
    stash = Stash(clock=clock, ttl_s=10, limit=4)
    stash.put("ann", entry())
    clock.shift(10)
    assert "ann" in stash
    clock.shift(0.1)
    assert "ann" not in stash
    assert len(stash) == 0
    assert stash.use("ann") is None


def test_using_an_entry_keeps_it() -> None:
    clock = ManualClock()
    stash = Stash(clock=clock, ttl_s=10, limit=4)
    stash.put("ann", entry("a"))
    clock.shift(9)
    assert stash.use("ann") == entry("a")
    clock.shift(9)
    assert "ann" in stash


def test_the_least_recently_used_goes_when_it_is_full() -> None:
    stash = Stash(clock=ManualClock(), ttl_s=10, limit=2)
    stash.put("ann", entry())
    stash.put("bob", entry())
    stash.use("ann")
    stash.put("cat", entry())
    assert ["ann" in stash, "bob" in stash, "cat" in stash] == [True, False, True]


def test_a_newer_picture_takes_the_older_ones_place() -> None:
    stash = Stash(clock=ManualClock(), ttl_s=10, limit=2)
    stash.put("ann", entry("a"))
    stash.put("ann", entry("b"))
    assert len(stash) == 1
    assert stash.use("ann") == entry("b")
