"""Where the tiles of the meadow lie: an endless map as a pure function of seed and coordinates.

Owns the hash, the lattice noise and the rules from noise to tile kinds. Keeps nothing: any window of any
world can be asked for in any order, at negative coordinates too. Called by `meadow`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.tiles import (
    BRIDGE,
    FLOWERS,
    GRASS,
    PATH,
    PINE,
    ROCK,
    SAND,
    TALL_GRASS,
    TREE,
    WATER,
)

WATER_LEVEL: Final = 0.37
SHORE_LEVEL: Final = 0.425
HILL_LEVEL: Final = 0.67
FOREST_LEVEL: Final = 0.585
FLOWER_LEVEL: Final = 0.655
TALL_GRASS_LEVEL: Final = 0.665


def _mix(h: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Wellons' `lowbias32` integer hash, elementwise, wrapping at 32 bits."""
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
    h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
    return h ^ (h >> np.uint32(16))


class _Field:
    """Hash and noise fields over the windows of N worlds; rows [N, h, 1] and columns [N, 1, w]."""

    def __init__(self, seeds: NDArray[np.int64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        self._seeds = seeds.astype(np.uint32)[:, None, None]
        self._rows = rows
        self._columns = columns

    def _hash(self, channel: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float32]:
        key = _mix(self._seeds + np.uint32(channel * 0x9E3779B9 & 0xFFFFFFFF))
        h = _mix(_mix(key + rows.astype(np.uint32)) + columns.astype(np.uint32))
        return (h >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)

    def white(self, channel: int) -> NDArray[np.float32]:
        """Independent numbers in [0, 1): float32 [N, h, w]."""
        return self._hash(channel, self._rows, self._columns)

    def smooth(self, channel: int, wavelength: int) -> NDArray[np.float32]:
        """Value noise in [0, 1) with lattice points every `wavelength` tiles: float32 [N, h, w]."""
        rows, columns = self._rows // wavelength, self._columns // wavelength
        v = ((self._rows - rows * wavelength) / wavelength).astype(np.float32)
        u = ((self._columns - columns * wavelength) / wavelength).astype(np.float32)
        v, u = v * v * (3 - 2 * v), u * u * (3 - 2 * u)
        corners = [self._hash(channel, rows + dy, columns + dx) for dy in (0, 1) for dx in (0, 1)]
        near = corners[0] * (1 - u) + corners[1] * u
        far = corners[2] * (1 - u) + corners[3] * u
        return np.asarray(near * (1 - v) + far * v, np.float32)


def _paths(field: _Field) -> NDArray[np.bool_]:
    """Cells of one side of a noise contour that touch the other side, corners included.

    That makes paths one tile wide and never broken at a diagonal. The fields have an apron of one cell, which
    the result [N, h - 2, w - 2] has lost.
    """
    high = field.smooth(5, 19) * np.float32(0.8) + field.smooth(6, 7) * np.float32(0.2) > np.float32(0.5)
    low = ~high
    low = low[:, :-2] | low[:, 1:-1] | low[:, 2:]
    low = low[:, :, :-2] | low[:, :, 1:-1] | low[:, :, 2:]
    return high[:, 1:-1, 1:-1] & low


def windows(
    seeds: NDArray[np.int64], tops: NDArray[np.int64], lefts: NDArray[np.int64], size: tuple[int, int]
) -> NDArray[np.int8]:
    """Tile kinds of one window in each of N worlds.

    Args:
        seeds: [N], the worlds.
        tops: [N], row of each window's first cell; any integer.
        lefts: [N], column of each window's first cell; any integer.
        size: rows and columns of a window, in tiles.

    Returns:
        int8 [N, rows, columns] of `tiles.KINDS` numbers.
    """
    rows = (tops[:, None] + np.arange(-1, size[0] + 1))[:, :, None]
    columns = (lefts[:, None] + np.arange(-1, size[1] + 1))[:, None, :]
    paths = _paths(_Field(seeds, rows, columns))
    field = _Field(seeds, rows[:, 1:-1], columns[:, :, 1:-1])
    height = field.smooth(1, 13) * np.float32(0.7) + field.smooth(2, 5) * np.float32(0.3)
    woods = field.smooth(3, 9) * np.float32(0.7) + field.smooth(4, 4) * np.float32(0.3)
    needles = field.smooth(7, 23) > np.float32(0.5)
    blooms = field.smooth(8, 6)
    blades = field.smooth(9, 7)
    chance = field.white(10)

    kinds = np.full(paths.shape, GRASS, np.int8)
    kinds[(blooms > FLOWER_LEVEL) | (chance > 0.985)] = FLOWERS
    kinds[blades > TALL_GRASS_LEVEL] = TALL_GRASS
    wooded = ((woods > FOREST_LEVEL) & (chance < 0.86)) | (chance < 0.012)
    kinds[wooded & needles] = PINE
    kinds[wooded & ~needles] = TREE
    kinds[(height > HILL_LEVEL) & (chance > 0.3) & (chance < 0.64)] = ROCK
    kinds[height < SHORE_LEVEL] = SAND
    kinds[paths] = PATH
    water = height < WATER_LEVEL
    kinds[water] = WATER
    kinds[water & paths] = BRIDGE
    return kinds
