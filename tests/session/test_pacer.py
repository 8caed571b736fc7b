"""The schedule of one socket."""

from __future__ import annotations

from worldloop.session.pacer import FramePacer


def test_the_first_goes_at_once_and_the_next_an_interval_later() -> None:
    pacer = FramePacer()
    assert pacer.delay(10, 5.0) == 0
    assert round(pacer.delay(10, 5.0), 9) == 0.1


def test_a_little_lateness_keeps_the_schedule() -> None:
    pacer = FramePacer()
    pacer.delay(10, 0.0)
    assert pacer.delay(10, 0.15) == 0
    assert round(pacer.delay(10, 0.15), 9) == 0.05


def test_much_lateness_starts_anew() -> None:
    pacer = FramePacer()
    pacer.delay(10, 0.0)
    assert pacer.delay(10, 3.0) == 0
    assert round(pacer.delay(10, 3.0), 9) == 0.1


def test_a_higher_rate_counts_from_the_last_picture() -> None:
    pacer = FramePacer()
    pacer.delay(1, 0.0)
    assert round(pacer.delay(100, 0.0), 9) == 0.01
