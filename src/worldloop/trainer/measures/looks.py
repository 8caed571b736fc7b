"""What pictures look like by age: legal tiles, sharpness, colour, and how common each kind is.

Shapes: T + 1 pictures of one walk.

Owns the numbers of one picture and how they drift by segment. Called by `evaluate`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.measure import LEGAL_RMSE, tile_kinds
from worldloop.simulators.tiles import KINDS

_CHUNK: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """Numbers of each picture of a walk.

    Attributes:
        legal: float64 `[T + 1]`, share of cells that show a tile.
        sharpness: float64 `[T + 1]`, mean size of the Laplacian, 0..255 units.
        colour: float64 `[T + 1, 3]`, mean red, green and blue, 0..255.
        contrast: float64 `[T + 1]`, deviation of all values, 0..255.
        kinds: float64 `[T + 1, 10]`, share of each kind among all cells.
    """

    legal: NDArray[np.float64]
    sharpness: NDArray[np.float64]
    colour: NDArray[np.float64]
    contrast: NDArray[np.float64]
    kinds: NDArray[np.float64]


def looks(pictures: NDArray[np.uint8]) -> Looks:
    """The numbers of pictures, uint8 `[T + 1, H, W, 3]`."""
    parts = [_looks(pictures[start : start + _CHUNK]) for start in range(0, len(pictures), _CHUNK)]
    names = ("legal", "sharpness", "colour", "contrast", "kinds")
    return Looks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _looks(pictures: NDArray[np.uint8]) -> Looks:
    kinds, rmse = tile_kinds(pictures)
    values = pictures.astype(np.float32)
    return Looks(
        legal=(rmse < LEGAL_RMSE).mean((1, 2)),
        sharpness=sharpness(values),
        colour=values.mean((1, 2), dtype=np.float64),
        contrast=values.std((1, 2, 3), dtype=np.float64),
        kinds=(kinds[..., None] == np.arange(len(KINDS))).mean((1, 2)),
    )


def sharpness(pictures: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean absolute Laplacian of pictures `[..., H, W, 3]`, float64 `[...]`."""
    inner = pictures[..., 1:-1, 1:-1, :]
    around = (
        pictures[..., :-2, 1:-1, :] + pictures[..., 2:, 1:-1, :]
        + pictures[..., 1:-1, :-2, :] + pictures[..., 1:-1, 2:, :]
    )  # fmt: skip
    return np.asarray(np.abs(4 * inner - around).mean((-3, -2, -1), dtype=np.float64))


def segments(series: NDArray[np.float64], edges: list[int]) -> list[float]:
    """Means of a series by latent over the latents from one edge up to the next, over walks `[n, T + 1]`."""
    return [float(series[:, first:last].mean()) for first, last in itertools.pairwise(edges)]


def shift_of_kinds(kinds: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Half the sum of differences between two shares of kinds `[10]`: 0 the same, 1 nothing in common."""
    return float(np.abs(kinds - reference).sum() / 2)
