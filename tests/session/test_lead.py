"""Beginning a frame as late as it can be made in time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from worldloop.session.lead import MARGIN_S, Lead

MAKING_S = 0.03


def test_nothing_is_waited_for_before_the_first_frame() -> None:
    assert Lead().wait(now=5.0, due=9.0) == 0.0


def test_the_slowest_of_late_counts_and_fades() -> None:
    lead = Lead()
    lead.took(0.2)
    lead.took(0.1)
    assert lead.wait(now=0.0, due=1.0) == pytest.approx(1.0 - 0.19 - MARGIN_S)
    for _ in range(100):
        lead.took(0.1)
    assert lead.wait(now=0.0, due=1.0) == pytest.approx(1.0 - 0.1 - MARGIN_S)
    assert lead.wait(now=0.95, due=1.0) == 0.0


async def _leads(table: Any, game: Any, *, just_in_time: bool) -> tuple[list[float], list[float]]:
    """(gaps between pictures, times from beginning a frame to its first picture), past the first frames."""
    t = table(game, just_in_time=just_in_time)
    game.clock = t.clock
    for _ in range(400):
        await t.clock.advance(0.01)
    shown: dict[int, float] = {}
    for at, message in t.socket.pictures:
        shown.setdefault(message[1], at)
    times = [at for at, _ in t.socket.pictures]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[8:])]
    leads = [shown[frame] - game.begun[frame] for frame in range(3, len(game.begun)) if frame in shown]
    await t.leave()
    return gaps, leads


@pytest.mark.anyio
async def test_a_frame_begins_just_in_time_and_no_picture_is_late(table: Any, timed_game: Any) -> None:
    gaps, leads = await _leads(table, timed_game(MAKING_S), just_in_time=True)
    assert len(leads) >= 5
    assert max(leads) <= MAKING_S + MARGIN_S + 0.011
    assert max(gaps) == pytest.approx(0.1, abs=0.011)


@pytest.mark.anyio
async def test_without_it_a_frame_begins_as_soon_as_there_is_room(table: Any, timed_game: Any) -> None:
    gaps, leads = await _leads(table, timed_game(MAKING_S), just_in_time=False)
    assert min(leads) > 0.25
    assert max(gaps) == pytest.approx(0.1, abs=0.011)
