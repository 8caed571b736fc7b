"""What a meadow picture shows, read from its pixels alone, so that dreams can be measured like drawings.

Owns the nearest-tile reading, the bound of legality and the reading of motion. Needs no simulator state.
Called by the evaluation. All functions take tile-aligned pictures (the last frame of a step), one or any
batch.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worldloop.core.errors import PictureError
from worldloop.simulators.meadow import FRAME_SIZE, VIEW, WALKER_CELL
from worldloop.simulators.patches import OFFSETS
from worldloop.simulators.tiles import KINDS, TILE_SIZE, TILES
from worldloop.simulators.walker import FACINGS, STAND, lay_over

LEGAL_RMSE: Final = 10.0
"""A cell is legal when it differs by less than this from a tile: root mean square over pixels, 0..255.

A quarter of the distance between the two most alike kinds (39.8), so a mixture of two is never legal, and
below the deviation of the plainest texture (grass, 13.2), so a flat colour is never legal either.
"""


class Motion(NamedTuple):
    """Which way pictures moved.

    Attributes:
        direction: int64 [...]: 0 none, 1 north (w), 2 south (s), 3 west (a), 4 east (d).
        margin: float32 [...]: how much worse the next best direction explains them, in RMSE units; 0 when
            the picture is the same all over and cannot tell.
    """

    direction: NDArray[np.int64]
    margin: NDArray[np.float32]


def tile_kinds(frame: NDArray[np.uint8]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """The nearest tile of every cell.

    Args:
        frame: uint8 [..., 96, 160, 3].

    Returns:
        kinds int8 [..., 6, 10], and the distance to the nearest picture, float32 [..., 6, 10], in 0..255. The
        walker's cell is compared with every kind under every facing.

    Raises:
        PictureError: the picture has another size or type.
    """
    cells = _cells(frame)
    kinds, rmse = _nearest(cells, TILES)
    at_walker, walker_rmse = _nearest(_walker_cell(cells), _walkers())
    kinds[(..., *WALKER_CELL)] = at_walker % len(KINDS)
    rmse[(..., *WALKER_CELL)] = walker_rmse
    return kinds.astype(np.int8), rmse


def walker_facing(frame: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The nearest facing in the walker's cell, as its place in "nswe": int8 [...]."""
    nearest, _ = _nearest(_walker_cell(_cells(frame)), _walkers())
    return np.asarray(nearest // len(KINDS), np.int8)


def walker_cells(frame: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which cells show a standing walker, on any kind and with any facing, within `LEGAL_RMSE`: bool [..., 6, 10]."""
    return _nearest(_cells(frame), _walkers())[1] < LEGAL_RMSE


def legal(frame: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which cells show a tile of the meadow within `LEGAL_RMSE`: bool [..., 6, 10]."""
    return tile_kinds(frame)[1] < LEGAL_RMSE


def motion(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> Motion:
    """Which step of one tile (or none) best explains two pictures, uint8 [..., 96, 160, 3] each.

    Every cell that was in view before and still is gets compared at its shifted place; the walker's cell of
    either picture is left out, and so is what came into view.

    Raises:
        PictureError: a picture has another size or type, or the two batches differ.
    """
    if before.shape != after.shape:
        raise PictureError(f"pictures of shapes {before.shape} and {after.shape}; equal ones are needed")
    old, new = (_cells(frame).astype(np.float32) for frame in (before, after))
    scores = np.stack([_mismatch(old, new, int(dy), int(dx)) for dy, dx in OFFSETS], -1)
    ranked = np.sort(scores, -1)
    return Motion(np.asarray(scores.argmin(-1), np.int64), np.asarray(ranked[..., 1] - ranked[..., 0]))


def _mismatch(old: NDArray[np.float32], new: NDArray[np.float32], dy: int, dx: int) -> NDArray[np.float32]:
    """RMSE [...] of new cells against the old cells one step further, where both are known."""
    rows, columns = np.mgrid[: VIEW[0], : VIEW[1]]
    known = (rows + dy >= 0) & (rows + dy < VIEW[0]) & (columns + dx >= 0) & (columns + dx < VIEW[1])
    for y, x in (WALKER_CELL, (WALKER_CELL[0] - dy, WALKER_CELL[1] - dx)):
        known &= (rows != y) | (columns != x)
    rows, columns = rows[known], columns[known]
    error = new[..., rows, columns, :] - old[..., rows + dy, columns + dx, :]
    return np.asarray(np.sqrt((error * error).mean((-2, -1))), np.float32)


@cache
def _walkers() -> NDArray[np.uint8]:
    """uint8 [40, 16, 16, 3]: the standing walker, facing by facing, on each kind."""
    return np.concatenate([lay_over(TILES, facing, STAND) for facing in range(len(FACINGS))])


def _cells(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 [..., 6, 10, 768] of a picture."""
    if frame.dtype != np.uint8 or frame.shape[-3:] != (*FRAME_SIZE, 3):
        raise PictureError(
            f"a {frame.dtype} picture of shape {frame.shape}; uint8 [..., 96, 160, 3] is needed"
        )
    batch = frame.shape[:-3]
    split = frame.reshape(*batch, VIEW[0], TILE_SIZE, VIEW[1], TILE_SIZE * 3)
    return split.swapaxes(-3, -2).reshape(*batch, *VIEW, -1)


def _walker_cell(cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(cells[(..., *WALKER_CELL, slice(None))])


def _nearest(
    cells: NDArray[np.uint8], pictures: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Index of, and RMSE to, the nearest of `pictures` [M, 16, 16, 3] for cells [..., 768]."""
    x = cells.astype(np.float32) - 128
    y = pictures.reshape(len(pictures), -1).astype(np.float32) - 128
    # |x|^2 is the same for every picture, so the ranking needs no full distances.
    nearest = np.argmin((y * y).sum(-1) - 2 * (x @ y.T), -1)
    error = x - y[nearest]
    return nearest, np.asarray(np.sqrt((error * error).mean(-1)), np.float32)
