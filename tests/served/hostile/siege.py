"""Runs hostile cases while a bystander plays, then looks for harm."""

from __future__ import annotations

from collections.abc import Sequence

from .bystander import Alone, bystander
from .case import Case, Scene
from .footprint import at_rest, forget_peak, left_over, peak_mb, resident_mb

MEMORY_MB = 300


def besiege(scene: Scene, alone: Alone, cases: Sequence[Case], *, memory_mb: float = MEMORY_MB) -> None:
    """Every case gets its right answer, the bystander the bytes of a game alone, and nothing is left.

    Args:
        memory_mb: the most that the process may grow at any moment.
    """
    before = at_rest(scene.live)
    start = resident_mb()
    forget_peak()
    with bystander(scene.live) as player:
        wrong = [problem for case in cases if (problem := case.wrong(scene)) is not None]
    grown = peak_mb() - start
    assert wrong == [], "\n".join(["", *wrong])
    disturbed = first_difference(player.units, alone.units(len(player.units)))
    assert disturbed is None, (
        f"the bystander's game was disturbed from picture {disturbed} of {len(player.units)}"
    )
    left = left_over(scene.live, before)
    assert left == {}, f"left over: {left}"
    assert grown < memory_mb, f"{grown:.0f} MB more at the peak"


def first_difference(units: Sequence[bytes], others: Sequence[bytes]) -> int | None:
    """Where two games part, or None."""
    pairs = enumerate(zip(units, others, strict=True))
    return next((number for number, (unit, other) in pairs if unit != other), None)
