"""Words for what a meadow window shows, from its true labels.

Owns the phrasing. Called by `meadow` for captions of training data and start pictures.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.tiles import BRIDGE, FLOWERS, PATH, PINE, ROCK, SAND, TALL_GRASS, TREE, WATER

_SUBJECTS: Final = (
    ("a lake", (WATER, BRIDGE), 5),
    ("a sandy shore", (SAND,), 4),
    ("broad-leaved forest", (TREE,), 5),
    ("pine forest", (PINE,), 5),
    ("rocks", (ROCK,), 4),
    ("flowers", (FLOWERS,), 5),
    ("tall grass", (TALL_GRASS,), 5),
)
"""What is told, of which kinds it consists, and how many cells of them are worth telling."""


def _side(rows: NDArray[np.int64], columns: NDArray[np.int64], walker: tuple[int, int]) -> str:
    """Where the cells lie as seen from the walker, or "" when on all sides of him."""
    down, right = float(np.mean(rows)) - walker[0], float(np.mean(columns)) - walker[1]
    vertical = "" if abs(down) < 0.8 else "south" if down > 0 else "north"
    horizontal = "" if abs(right) < 1.3 else "east" if right > 0 else "west"
    return vertical + horizontal


def describe(window: NDArray[np.int8], walker: tuple[int, int]) -> str:
    """One line such as "a lake in the east, pine forest in the north, a path"; "open grass" when bare.

    Args:
        window: int8 [rows, columns] of tile kinds.
        walker: the walker's row and column in it.
    """
    found = []
    for name, kinds, least in _SUBJECTS:
        rows, columns = np.nonzero(np.isin(window, kinds))
        if len(rows) >= least:
            side = _side(rows, columns, walker)
            found.append((len(rows), f"{name} in the {side}" if side else name))
    phrases = [phrase for _, phrase in sorted(found, key=lambda pair: -pair[0])]
    phrases += ["a path"] * bool((window == PATH).any()) + ["a bridge"] * bool((window == BRIDGE).any())
    return ", ".join(phrases) if phrases else "open grass"
