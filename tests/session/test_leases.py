"""Leases: the published rules at one slot, and the same rules at several."""

from __future__ import annotations

import pytest

from worldloop.core.clock import ManualClock
from worldloop.session.leases import Lease, Leases
from worldloop.session.occupancy import Occupancy


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def leases(clock: ManualClock, slots: int = 1) -> Leases:
    return Leases(slots=slots, clock=clock, stale_s=20)


def test_a_second_player_waits(clock: ManualClock) -> None:
    held = leases(clock)
    assert held.claim("ann") is not None
    assert held.claim("bob") is None


def test_a_reservation_alone_is_not_busy(clock: ManualClock) -> None:
    held = leases(clock)
    lease = held.claim("ann")
    assert not held.full()
    assert held.mark_live(lease)
    assert held.full()
    assert held.live == 1


def test_own_reservation_is_replaced_and_the_old_one_is_worth_nothing(clock: ManualClock) -> None:
    held = leases(clock)
    first, second = held.claim("ann"), held.claim("ann")
    assert not held.mark_live(first)
    assert not held.release(first)
    assert held.mark_live(second)


def test_own_live_game_is_never_replaced(clock: ManualClock) -> None:
    held = leases(clock, slots=3)
    held.mark_live(held.claim("ann"))
    clock.shift(1000)
    assert held.claim("ann") is None


def test_a_stale_reservation_is_taken_over_after_twenty_seconds(clock: ManualClock) -> None:
    held = leases(clock)
    held.claim("ann")
    clock.shift(20)
    assert held.claim("bob") is None
    clock.shift(0.1)
    assert held.claim("bob") is not None


def test_a_live_game_is_never_stale(clock: ManualClock) -> None:
    held = leases(clock)
    held.mark_live(held.claim("ann"))
    clock.shift(10_000)
    assert held.claim("bob") is None


def test_release_frees_once(clock: ManualClock) -> None:
    held = leases(clock)
    lease = held.claim("ann")
    assert held.release(lease)
    assert not held.release(lease)
    assert held.claim("bob") is not None


def test_several_slots_are_busy_when_all_are_live(clock: ManualClock) -> None:
    held = leases(clock, slots=2)
    held.mark_live(held.claim("ann"))
    assert not held.full()
    held.mark_live(held.claim("bob"))
    assert held.full()
    assert held.claim("cat") is None


def test_the_oldest_stale_reservation_goes_first(clock: ManualClock) -> None:
    held = leases(clock, slots=2)
    ann = held.claim("ann")
    clock.shift(5)
    bob = held.claim("bob")
    clock.shift(30)
    assert held.claim("cat") is not None
    assert not held.mark_live(ann)
    assert held.mark_live(bob)


def occupancy(clock: ManualClock, slots: int = 1) -> tuple[Leases, Occupancy]:
    held = leases(clock, slots)
    return held, Occupancy(held, slots=slots, clock=clock, pending_s=45)


def test_status_is_busy_for_each_cause(clock: ManualClock) -> None:
    held, counts = occupancy(clock)
    assert not counts.report().busy
    with counts.inflight():
        assert counts.report().model_dump() == {"busy": True, "owner": False, "inflight": 1, "pending_z0": 0}
    counts.expect("ann")
    assert counts.report().model_dump() == {"busy": True, "owner": False, "inflight": 0, "pending_z0": 1}
    counts.arrived("ann")
    held.mark_live(held.claim("ann"))
    assert counts.report().model_dump() == {"busy": True, "owner": True, "inflight": 0, "pending_z0": 0}


def test_a_start_picture_stops_counting_after_its_grace(clock: ManualClock) -> None:
    _, counts = occupancy(clock)
    counts.expect("ann")
    clock.shift(45)
    assert counts.report().busy
    clock.shift(0.1)
    assert not counts.report().busy


def test_a_request_that_fails_is_no_longer_in_flight(clock: ManualClock) -> None:
    _, counts = occupancy(clock)
    with pytest.raises(RuntimeError), counts.inflight():
        raise RuntimeError("boom")
    assert counts.report().inflight == 0


def held_by(held: Leases, user: str) -> Lease:
    lease = held.claim(user)
    assert lease is not None
    assert held.mark_live(lease)
    assert held.hold(lease)
    return lease


def test_a_held_game_keeps_its_place_from_others_for_as_long_as_it_is_held(clock: ManualClock) -> None:
    held = leases(clock)
    lease = held_by(held, "ann")
    clock.shift(10_000)
    assert held.claim("bob") is None
    assert not held.admits("bob")
    assert (held.live, held.taken) == (0, 1)
    assert held.release(lease)
    assert held.claim("bob") is not None


def test_a_held_game_does_not_keep_its_own_player_from_a_new_one(clock: ManualClock) -> None:
    held = leases(clock)
    old = held_by(held, "ann")
    assert held.full()
    assert held.full("bob")
    assert not held.full("ann")
    assert held.admits("ann")
    assert held.claim("ann") is not None
    assert not held.mark_live(old)
    assert not held.hold(old)
    assert not held.release(old)


def test_a_held_game_is_live_again(clock: ManualClock) -> None:
    held = leases(clock)
    lease = held_by(held, "ann")
    assert held.mark_live(lease)
    assert (held.live, held.taken) == (1, 1)
    assert held.claim("ann") is None


def test_a_held_game_is_not_taken_for_a_stale_reservation(clock: ManualClock) -> None:
    held = leases(clock, slots=2)
    held_by(held, "ann")
    held.claim("bob")
    clock.shift(30)
    assert held.claim("cat") is not None
    assert (held.admits("ann"), held.taken) == (True, 1)


def test_status_counts_held_games(clock: ManualClock) -> None:
    held, counts = occupancy(clock)
    held_by(held, "ann")
    assert counts.report().model_dump() == {"busy": True, "owner": True, "inflight": 0, "pending_z0": 0}
