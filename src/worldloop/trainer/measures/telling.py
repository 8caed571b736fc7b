"""How well pictures show what a text says, and how well a walk goes where it says.

Shapes: B pictures, or T + 1 aligned pictures of one walk.

Texts are phrases of `simulators.captions`; what a picture shows is told in the same phrases and compared. Owns the
comparing and its counts. Called by `text_evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators import captions
from worldloop.simulators.meadow import VIEW, WALKER_CELL
from worldloop.simulators.measure import LEGAL_RMSE, motion, tile_kinds, walker_cells
from worldloop.simulators.patches import OFFSETS
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.measures.obedience import Share
from worldloop.trainer.rollouts import ahead


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What pictures show.

    Attributes:
        kinds: int8 `[B, rows, columns]`, the nearest tile of every cell.
        legal: bool `[B, rows, columns]`, cells within the bound of one.
        walkers: int64 `[B]`, walkers in view, wherever they stand.
        in_place: bool `[B]`, whether one stands in the walker's cell.
    """

    kinds: NDArray[np.int8]
    legal: NDArray[np.bool_]
    walkers: NDArray[np.int64]
    in_place: NDArray[np.bool_]

    def phrases(self) -> list[list[str]]:
        """What is to be told of each picture."""
        return [captions.phrases(kinds, WALKER_CELL) for kinds in self.kinds]


def shown(pictures: NDArray[np.uint8]) -> Shown:
    """Read pictures, uint8 `[B, H, W, 3]`."""
    kinds, rmse = tile_kinds(pictures)
    walkers = walker_cells(pictures)
    return Shown(
        kinds=kinds,
        legal=rmse < LEGAL_RMSE,
        walkers=walkers.sum((1, 2)),
        in_place=walkers[(slice(None), *WALKER_CELL)],
    )


def told_again(asked: Sequence[Sequence[str]], seen: Sequence[Sequence[str]], *, sides: bool = True) -> Share:
    """Phrases that were asked for and are told of the picture too; without `sides` only what, and not where."""
    right = count = 0
    for wish, picture in zip(asked, seen, strict=True):
        found = {_what(phrase, sides) for phrase in picture}
        right += sum(_what(phrase, sides) in found for phrase in wish)
        count += len(wish)
    return Share(right=right, count=count)


def _what(phrase: str, sides: bool) -> str:
    return phrase if sides else phrase.split(" in the ")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Walked:
    """What one walk did.

    Attributes:
        moved: int64 `[T]`, direction of each step as the pictures show it; 0 none.
        kept: float64 `[T]`, share of the cells still in view that show the same tile after the step; the walker's
            cells are left out.
        free: bool `[T]`, whether the tile that was walked onto is one that can be; true where none was.
        open: bool `[T, 4]`, whether the tile in each direction, from 1 on, could be walked onto before the step.
        legal: float64 `[T + 1]`, share of legal cells.
    """

    moved: NDArray[np.int64]
    kept: NDArray[np.float64]
    free: NDArray[np.bool_]
    open: NDArray[np.bool_]
    legal: NDArray[np.float64]


def walked(pictures: NDArray[np.uint8]) -> Walked:
    """Read a walk from its aligned pictures, uint8 `[T + 1, H, W, 3]`."""
    kinds, rmse = tile_kinds(pictures)
    moved = motion(pictures[:-1], pictures[1:]).direction
    steps = list(zip(kinds[:-1], kinds[1:], moved.tolist(), strict=True))
    return Walked(
        moved=moved,
        kept=np.array([_kept(before, after, way) for before, after, way in steps]),
        free=np.array([way == 0 or not SOLID[before[ahead(way)]] for before, _, way in steps]),
        open=np.array([[not SOLID[before[ahead(way)]] for way in range(1, 5)] for before, _, _ in steps]),
        legal=(rmse < LEGAL_RMSE).mean((1, 2)),
    )


def _kept(before: NDArray[np.int8], after: NDArray[np.int8], way: int) -> float:
    dy, dx = (int(v) for v in OFFSETS[way])
    rows, columns = np.mgrid[: VIEW[0], : VIEW[1]]
    known = (rows + dy >= 0) & (rows + dy < VIEW[0]) & (columns + dx >= 0) & (columns + dx < VIEW[1])
    for y, x in (WALKER_CELL, (WALKER_CELL[0] - dy, WALKER_CELL[1] - dx)):
        known &= (rows != y) | (columns != x)
    rows, columns = rows[known], columns[known]
    return float((after[rows, columns] == before[rows + dy, columns + dx]).mean())


def goes(walks: Sequence[Walked], asked: Sequence[int]) -> Share:
    """Steps that move, and move the way that was asked for: one direction a walk, 1 to 4."""
    right = sum(int((walk.moved == way).sum()) for walk, way in zip(walks, asked, strict=True))
    return Share(right=right, count=sum(int((walk.moved > 0).sum()) for walk in walks))


def takes(walks: Sequence[Walked], asked: Sequence[int]) -> Share:
    """Latents in which the way that was asked for is open, and that walk it."""
    pairs = list(zip(walks, asked, strict=True))
    right = sum(int((walk.open[:, way - 1] & (walk.moved == way)).sum()) for walk, way in pairs)
    return Share(right=right, count=sum(int(walk.open[:, way - 1].sum()) for walk, way in pairs))
