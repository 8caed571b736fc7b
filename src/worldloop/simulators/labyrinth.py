"""Floor plans of the maze: which cells are walls, and how each wall looks.

Owns the plan and its start. Does not own movement (`maze`) or pictures (`raycast`). Called by `maze`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SIZE: Final = 17
"""Cells along each side of a plan, walls included; odd."""

COLOURS: Final = 6
"""How many wall colours there are; neighbouring walls mostly share one."""

EMBLEMS: Final = 5
"""How many emblems there are, 0 being a bare wall; the others are landmarks."""

_LANDMARK_SHARE: Final = 0.22
_LOOP_SHARE: Final = 0.14


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One labyrinth.

    Attributes:
        walls: bool [17, 17]; the rim is always wall.
        colours: int8 [17, 17], below `COLOURS`.
        emblems: int8 [17, 17], below `EMBLEMS`.
        start: x and y of the start, in cells; the middle of an open cell.
        angle: direction of the start in radians, clockwise from east: down the longest corridor.
    """

    walls: NDArray[np.bool_]
    colours: NDArray[np.int8]
    emblems: NDArray[np.int8]
    start: tuple[float, float]
    angle: float


def plan(seed: int) -> Plan:
    """The labyrinth of a seed: a spanning tree of corridors, then some walls opened into loops."""
    rng = np.random.default_rng(seed)
    walls = _corridors(rng)
    inner = np.zeros_like(walls)
    inner[1:-1, 1:-1] = True
    walls &= ~(inner & (rng.random(walls.shape) < _LOOP_SHARE))
    # One colour per block of 3x3 cells gives each part of the maze a look of its own.
    blocks = rng.integers(0, COLOURS, (SIZE // 3 + 1,) * 2)
    colours = blocks.repeat(3, 0).repeat(3, 1)[:SIZE, :SIZE].astype(np.int8)
    landmark = rng.random(walls.shape) < _LANDMARK_SHARE
    emblems = np.where(landmark, rng.integers(1, EMBLEMS, walls.shape), 0).astype(np.int8)
    start, angle = _start(walls, rng)
    return Plan(walls=walls, colours=colours, emblems=emblems, start=start, angle=angle)


def _corridors(rng: np.random.Generator) -> NDArray[np.bool_]:
    """A maze by depth-first carving over the odd cells; walls are True."""
    walls = np.ones((SIZE, SIZE), bool)
    walls[1, 1] = False
    trail = [(1, 1)]
    while trail:
        y, x = trail[-1]
        steps = [
            (dy, dx)
            for dy, dx in ((-2, 0), (2, 0), (0, -2), (0, 2))
            if 0 < y + dy < SIZE and 0 < x + dx < SIZE and walls[y + dy, x + dx]
        ]
        if not steps:
            trail.pop()
            continue
        dy, dx = steps[int(rng.integers(len(steps)))]
        walls[y + dy // 2, x + dx // 2] = walls[y + dy, x + dx] = False
        trail.append((y + dy, x + dx))
    return walls


def _start(walls: NDArray[np.bool_], rng: np.random.Generator) -> tuple[tuple[float, float], float]:
    """The cell and direction with the longest clear view out of a few drawn ones."""
    open_cells = np.argwhere(~walls)
    best, start, angle = -1, (1.5, 1.5), 0.0
    for y, x in open_cells[rng.integers(0, len(open_cells), 12)]:
        for quarter, (dy, dx) in enumerate(((0, 1), (1, 0), (0, -1), (-1, 0))):
            length = 0
            while not walls[y + dy * (length + 1), x + dx * (length + 1)]:
                length += 1
            if length > best:
                best, start, angle = length, (float(x) + 0.5, float(y) + 0.5), quarter * np.pi / 2
    return start, angle
