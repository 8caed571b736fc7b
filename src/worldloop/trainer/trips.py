"""The ways out and back of the evaluation: does the world remember, and is it the summaries that do.

Owns their rows and curves. Does not own the comparison of places (`measures.places`). Called by `evaluate`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import numpy as np

from worldloop.loops.model import WorldModel
from worldloop.simulators.meadow import VIEW, WALKER_CELL, Meadow
from worldloop.simulators.patches import OFFSETS
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.charts import Curve
from worldloop.trainer.dreams import Dream
from worldloop.trainer.measures.places import Returns, returns
from worldloop.trainer.report import Report, Row
from worldloop.trainer.rollouts import out_and_back, place
from worldloop.trainer.sizes import FIRST_WORLD, Sizes

_ABSENCES: Final = (0, 2, 4, 8, 12, 16, 24, 40)
"""Edges of the absences that share a point of the curve."""
_ATTEMPTS: Final = 3
"""Starts that are tried for each trip that is wanted."""
_FREE_AHEAD: Final = 2

_NOTHING: Final = Returns(
    absence=np.zeros(0, np.int64),
    from_start=np.zeros(0, bool),
    was=np.zeros(0, np.int64),
    same=np.zeros(0, bool),
)
"""No cells, so that an empty list of trips still joins."""


def memory(model: WorldModel, sizes: Sizes, report: Report, tick: Callable[[str], None]) -> None:
    """Walk out and back, and add rows and curves to the report."""
    found: dict[bool, dict[int, Returns]] = {True: {}, False: {}}
    for steps in sizes.distances:
        dropped = 0
        for summaries in (True, False):
            tick(f"{steps} tiles out and back, {'with' if summaries else 'without'} summaries")
            found[summaries][steps], lost = _trips(model, steps, sizes.trips, summaries=summaries)
            dropped += lost if summaries else 0
        whole, bare = (
            found[summaries][steps].where(found[summaries][steps].from_start) for summaries in (True, False)
        )
        note = f"guessing {_percent(whole.guess)}, without summaries {_percent(bare.share)}"
        if dropped:
            note += f"; {dropped} ways out were blocked and left out"
        report.rows.append(
            Row(
                name=f"same place after {steps} out and {steps} back",
                value=whole.share,
                count=len(whole),
                note=note,
            )
        )
    report.curves += [_by_distance(sizes, found), _by_absence(model, found)]


def _trips(model: WorldModel, steps: int, wanted: int, *, summaries: bool) -> tuple[Returns, int]:
    """(cells that came back on `wanted` trips, how many further ways out were blocked)."""
    kept: list[Returns] = []
    dropped = 0
    for number in range(wanted * _ATTEMPTS):
        if len(kept) == wanted:
            break
        rng = np.random.default_rng((2, steps, number))
        world, picture = place(FIRST_WORLD + number)
        ways = open_ways(world)
        if not ways:
            continue
        dream = Dream(model, picture, seed=number, summaries=summaries)
        rollout = out_and_back(dream, dream.first, steps, int(rng.choice(ways)), rng)
        if rollout is None:
            dropped += 1
        else:
            kept.append(returns(rollout))
    return Returns.join([*kept, _NOTHING]), dropped


def open_ways(world: Meadow) -> list[int]:
    """Directions in which the next tiles in view are free."""
    kinds = world.window()
    steps = np.arange(1, _FREE_AHEAD + 1)
    cells = {
        d: (WALKER_CELL[0] + OFFSETS[d, 0] * steps, WALKER_CELL[1] + OFFSETS[d, 1] * steps)
        for d in range(1, 5)
    }
    assert WALKER_CELL[0] + _FREE_AHEAD < VIEW[0]
    return [d for d, cell in cells.items() if not SOLID[kinds[cell]].any()]


def _by_distance(sizes: Sizes, found: dict[bool, dict[int, Returns]]) -> Curve:
    whole, bare = (
        [found[summaries][n].where(found[summaries][n].from_start) for n in sizes.distances]
        for summaries in (True, False)
    )
    return Curve(
        title="memory: same place after n tiles out and n back",
        x_label="n",
        y_label="% of the start picture's cells that left the view",
        x=[float(n) for n in sizes.distances],
        series={
            "with summaries": [part.share for part in whole],
            "without": [part.share for part in bare],
            "guessing the commonest kind": [part.guess for part in whole],
        },
        y_range=(0.0, 101.0),
    )


def _by_absence(model: WorldModel, found: dict[bool, dict[int, Returns]]) -> Curve:
    config = model.config.model
    middles = [(first + 1 + last) / 2 for first, last in itertools.pairwise(_ABSENCES)]
    series: dict[str, list[float | None]] = {}
    for from_start, origin in ((True, "start picture"), (False, "dreamt")):
        for summaries, name in ((True, "with summaries"), (False, "without")):
            every = Returns.join([*found[summaries].values(), _NOTHING])
            part = every.where(every.from_start == from_start)
            bins = [
                part.where((part.absence > first) & (part.absence <= last))
                for first, last in itertools.pairwise(_ABSENCES)
            ]
            series[f"{origin}, {name}"] = [one.share for one in bins]
            if summaries:
                series[f"{origin}, guessing"] = [one.guess for one in bins]
    return Curve(
        title=f"memory by absence (kept whole: {config.raw_window_frames} latents, at all: "
        f"{config.summary_window_frames})",
        x_label="latents out of view",
        y_label="% of cells that are the same",
        x=middles,
        series=series,
        y_range=(0.0, 101.0),
    )


def _percent(value: float | None) -> str:
    return "no case" if value is None else f"{value:.0f} %"
