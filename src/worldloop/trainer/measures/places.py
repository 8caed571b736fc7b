"""Is it the same place after walking away and back: the cells that left the view, against what they were.

Follows the walker through the pictures by the motion they show, keeps what every cell of the ground last showed, and
compares when one comes into view again. Owns that comparison. Does not own the walk (`rollouts`). Called by
`evaluate`. Only cells that show a tile when they leave have a truth; one that shows none on its return is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.measure import LEGAL_RMSE, motion, tile_kinds
from worldloop.simulators.patches import OFFSETS
from worldloop.trainer.rollouts import Rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class Returns:
    """Cells that left the view before a turning point and came back after it, one entry each.

    Attributes:
        absence: int64 `[n]`, latents out of view.
        from_start: bool `[n]`, whether the cell was in the start picture; the others were dreamt.
        was: int64 `[n]`, its kind when it was last seen.
        same: bool `[n]`, whether it shows that kind again.
    """

    absence: NDArray[np.int64]
    from_start: NDArray[np.bool_]
    was: NDArray[np.int64]
    same: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.same)

    def where(self, chosen: NDArray[np.bool_]) -> Returns:
        """The chosen entries."""
        return Returns(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    @classmethod
    def join(cls, parts: list[Returns]) -> Returns:
        """The cells of several walks."""
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)})

    @property
    def share(self) -> float | None:
        """Share of cells that are the same, in percent."""
        return 100 * float(self.same.mean()) if len(self) else None

    @property
    def guess(self) -> float | None:
        """Share that saying the commonest kind every time would get, in percent."""
        return 100 * float(np.bincount(self.was).max() / len(self)) if len(self) else None


@dataclass(slots=True)
class _Cell:
    kind: int
    legal: bool
    seen: int
    from_start: bool


def returns(rollout: Rollout) -> Returns:
    """The cells that came back in the second half of a walk that turned round in its middle."""
    kinds, rmse = tile_kinds(rollout.pictures)
    moves = motion(rollout.pictures[:-1], rollout.pictures[1:]).direction
    turn = len(rollout) // 2
    rows, columns = np.mgrid[: kinds.shape[1], : kinds.shape[2]]
    at = np.zeros(2, np.int64)
    ground: dict[tuple[int, int], _Cell] = {}
    found: list[tuple[int, bool, int, bool]] = []
    for latent in range(len(rollout) + 1):
        if latent:
            at = at + OFFSETS[moves[latent - 1]]
        for row, column in zip(rows.flat, columns.flat, strict=True):
            key = (int(at[0] + row), int(at[1] + column))
            kind, legal = int(kinds[latent, row, column]), bool(rmse[latent, row, column] < LEGAL_RMSE)
            old = ground.get(key)
            if old is not None and old.legal and old.seen <= turn and latent > turn and latent - old.seen > 1:
                found.append((latent - old.seen - 1, old.from_start, old.kind, legal and kind == old.kind))
            ground[key] = _Cell(kind, legal, latent, latent == 0 if old is None else old.from_start)
    absence, from_start, was, same = zip(*found, strict=True) if found else ((), (), (), ())
    return Returns(
        absence=np.array(absence, np.int64),
        from_start=np.array(from_start, bool),
        was=np.array(was, np.int64),
        same=np.array(same, bool),
    )
