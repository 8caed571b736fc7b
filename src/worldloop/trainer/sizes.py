"""How much an evaluation measures. Plain data; called by `evaluate` and the sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_WORLD: Final = 2_000_000
"""Seed of the first world that is walked through; training data stays far below."""

CHECKPOINTS: Final = (1, 2, 4, 8, 16, 32, 64, 100, 200, 300, 600)
"""Latents at which pictures are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Counts of worlds and latents; the default takes about ten minutes on two cores at 22 ms a latent.

    Attributes:
        worlds: walks with mixed keys.
        latents: length of the long walks.
        idle_worlds: walks without keys, and walks of the simulator itself for comparison.
        distances: tiles walked out and back.
        trips: ways out and back for each distance, with summaries and without.
        fidelity_worlds: walks that are compared with the truth picture by picture.
        branch_worlds: dreams in which every key is compared with none.
        timed: latents that are timed.
        strips: dreams of each kind on the contact sheet.
    """

    worlds: int = 32
    latents: int = 600
    idle_worlds: int = 6
    distances: tuple[int, ...] = (2, 4, 6, 10, 14, 20)
    trips: int = 12
    fidelity_worlds: int = 32
    branch_worlds: int = 12
    timed: int = 60
    strips: int = 6

    @classmethod
    def quick(cls) -> Sizes:
        """Everything once, in seconds with a tiny model; the numbers mean nothing."""
        return cls(
            worlds=2, latents=12, idle_worlds=1, distances=(2,), trips=1, fidelity_worlds=2, branch_worlds=1,
            timed=3, strips=1,
        )  # fmt: skip

    def checkpoints(self) -> list[int]:
        """Latents of `CHECKPOINTS` that the long walks reach, and their last."""
        return sorted({*(n for n in CHECKPOINTS if n <= self.latents), self.latents})

    @property
    def horizon(self) -> int:
        """The latent at which tiles must be legal."""
        return min(300, self.latents)

    @property
    def segments(self) -> list[int]:
        """Edges of six equal parts of the long walks."""
        return [round(part * self.latents / 6) for part in range(7)]
