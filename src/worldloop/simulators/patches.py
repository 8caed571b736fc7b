"""Every moving picture that one cell of the meadow can show during a step, as one table.

Owns the layout of the table and the slides in it. Does not own the world (`meadow`). Called by `meadow` and
by whoever keeps training data as patch indices.

A cell's patch depends on the direction of the step, the kind it showed before and the kind it shows after;
the walker's own cell also on his facing and on whether he walks.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.tiles import KINDS, TILE_SIZE, TILES
from worldloop.simulators.walker import FACINGS, STAND, WALK_CYCLE, lay_over

FRAMES_PER_STEP: Final = 4

OFFSETS: Final[NDArray[np.int64]] = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])
"""int64 [5, 2]: rows and columns walked in direction none, north, south, west, east."""

_K: Final = len(KINDS)

GROUND_PATCHES: Final = _K + 4 * _K * _K
"""Patches without a walker: one rest for each kind, one slide for each direction and pair of kinds."""


def ground_index(
    direction: NDArray[np.int64], old: NDArray[np.int8], new: NDArray[np.int8]
) -> NDArray[np.int32]:
    """Table row of a cell without a walker; at rest (direction 0) only `new` counts. Arrays broadcast."""
    slide = _K + (direction.astype(np.int32) - 1) * _K * _K + old.astype(np.int32) * _K + new
    return np.where(direction == 0, new, slide).astype(np.int32)


def walker_index(
    ground: NDArray[np.int32], facing: NDArray[np.int8], walking: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Table row of the walker's cell, from the row of the ground under him. Arrays broadcast."""
    return (ground + GROUND_PATCHES * (1 + 2 * facing.astype(np.int32) + walking)).astype(np.int32)


def _slide(direction: int, old: int, new: int) -> NDArray[np.uint8]:
    """uint8 [4, 16, 16, 3]: the old tile leaves against the direction while the new one follows it in."""
    dy, dx = (int(v) for v in OFFSETS[direction])
    axis, forward = (0, dy > 0) if dy else (1, dx > 0)
    pair = np.concatenate([TILES[old], TILES[new]] if forward else [TILES[new], TILES[old]], axis)
    shift = TILE_SIZE // FRAMES_PER_STEP
    frames = []
    for frame in range(1, FRAMES_PER_STEP + 1):
        start = shift * frame if forward else TILE_SIZE - shift * frame
        frames.append(np.take(pair, np.arange(start, start + TILE_SIZE), axis))
    return np.stack(frames)


@cache
def patch_table() -> NDArray[np.uint8]:
    """The table: uint8 [3690, 4, 16, 16, 3], read-only, built once (11 MB)."""
    rests = [np.repeat(tile[None], FRAMES_PER_STEP, 0) for tile in TILES]
    slides = [_slide(d, old, new) for d in range(1, 5) for old in range(_K) for new in range(_K)]
    ground = np.stack([*rests, *slides])
    blocks = [ground]
    for facing in range(len(FACINGS)):
        for poses in ((STAND,) * FRAMES_PER_STEP, WALK_CYCLE):
            frames = [lay_over(ground[:, frame], facing, pose) for frame, pose in enumerate(poses)]
            blocks.append(np.stack(frames, 1))
    table = np.concatenate(blocks)
    table.flags.writeable = False
    return table


def render(indices: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Pictures of whole windows of patches: int32 [..., rows, columns] to uint8 [..., 4, H, W, 3]."""
    *batch, rows, columns = indices.shape
    patches = patch_table()[indices.reshape(-1, rows, columns)]
    frames = patches.transpose(0, 3, 1, 4, 2, 5, 6)
    return frames.reshape(*batch, FRAMES_PER_STEP, rows * TILE_SIZE, columns * TILE_SIZE, 3)
