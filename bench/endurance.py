"""A long game in one process: does anything grow, does anything slow down? `python -m bench.endurance`.

Memory (the process's and the session's) at latent 200 and at the end agree within 1%. A hundred more latents of the old
game take what latents 200 to 300 of a young one take, within 10%: the two games are played in turn, a latent each, so
that a machine whose speed drifts does not count. Exit code 1 when one of these is missed.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench.report import environment, memory_bytes, publish
from worldloop.core.types import Controls
from worldloop.host import LiveGame, WorldHost
from worldloop.loops.world import state_bytes
from worldloop.session.host import GameOptions
from worldloop.testing import ScriptedPlayer

SETTLED = 200
SPAN = 100
MEMORY_BOUND, TIME_BOUND = 0.01, 0.10


@dataclass(frozen=True, kw_only=True, slots=True)
class Endurance:
    """Figures of one long game.

    Attributes:
        seconds: of every latent, the first body frame first.
        late, young: of a hundred further latents, and of latents 200 to 300 of a second game, played in turn.
        resident, session: bytes of the process and of the session at latent `SETTLED` and at the end.
    """

    seconds: tuple[float, ...]
    late: tuple[float, ...]
    young: tuple[float, ...]
    resident: tuple[int, int]
    session: tuple[int, int]

    @property
    def late_ms(self) -> float:
        """Median of the old game's further latents."""
        return 1000 * statistics.median(self.late)

    @property
    def young_ms(self) -> float:
        """Median of the young game's."""
        return 1000 * statistics.median(self.young)

    def missed(self) -> list[str]:
        """What is out of bounds, in words."""
        checks = [
            ("memory of the process", self.resident[0], self.resident[1], MEMORY_BOUND),
            ("memory of the session", self.session[0], self.session[1], MEMORY_BOUND),
            ("time of a latent", self.young_ms, self.late_ms, TIME_BOUND),
        ]
        return [
            f"{name} changed by {100 * (late / early - 1):+.2f}%, allowed {100 * bound:.0f}%"
            for name, early, late, bound in checks
            if abs(late / early - 1) > bound
        ]


def endure(
    host: WorldHost, *, latents: int, seed: int = 0, clock: Callable[[], float] = time.perf_counter
) -> Endurance:
    """Play so many latents of one game.

    Raises:
        ValueError: fewer latents than the two spans need.
    """
    if latents < SETTLED + 2 * SPAN:
        raise ValueError(f"latents={latents} must be at least {SETTLED + 2 * SPAN}")
    old = _Timed(host, seed, clock)
    seconds, sizes = [], []
    for latent in range(latents):
        seconds.append(old.step())
        if latent + 1 in (SETTLED, latents):
            gc.collect()
            sizes.append((memory_bytes(), _session_bytes(host, old.game)))
    young = _Timed(host, seed, clock)
    for _ in range(SETTLED):
        young.step()
    pairs = [(old.step(), young.step()) for _ in range(SPAN)]
    old.game.close()
    young.game.close()
    return Endurance(
        seconds=tuple(seconds),
        late=tuple(late for late, _ in pairs),
        young=tuple(early for _, early in pairs),
        resident=(sizes[0][0], sizes[1][0]),
        session=(sizes[0][1], sizes[1][1]),
    )


class _Timed:
    """One game whose every step is timed; games of one seed are played alike."""

    def __init__(self, host: WorldHost, seed: int, clock: Callable[[], float]) -> None:
        height, width = host.frame_size
        picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        self.game = host.start(host.encode(picture), options=GameOptions(), seed=seed)
        self.game.submit(Controls()).result()
        self._player, self._clock, self._latent = ScriptedPlayer.seeded(seed), clock, 0

    def step(self) -> float:
        """Play one latent; its seconds."""
        began = self._clock()
        self.game.submit(self._player.controls(self._latent)).result()
        self._latent += 1
        return self._clock() - began


def _session_bytes(host: WorldHost, game: LiveGame) -> int:
    def read() -> int:
        if game.state is None:
            raise RuntimeError("the game is over")
        return state_bytes(game.state)

    return host.engine.call(read)


def main(
    latents: Annotated[int, typer.Option(min=SETTLED + 2 * SPAN, help="Length of the game.")] = 5000,
    world: Annotated[str, typer.Option(help="A shipped world's name, or a path.")] = "meadow",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Play one long game; exit code 1 when something grows or slows down."""
    host = WorldHost.open(world, threads=threads, on_table_end="reprefill")
    try:
        found = endure(host, latents=latents)
        where = environment(dtype=host.model.dtype)
    finally:
        host.close()
    missed = found.missed()
    result: dict[str, Any] = {
        "latents": latents,
        "resident_bytes": found.resident,
        "session_bytes": found.session,
        "young_ms": found.young_ms,
        "late_ms": found.late_ms,
        "missed": missed,
    }
    rows = [
        (
            "memory of the process, latent 200 / end",
            " / ".join(f"{size / 2**20:.1f} MiB" for size in found.resident),
        ),
        (
            "memory of the session, latent 200 / end",
            " / ".join(f"{size / 2**20:.3f} MiB" for size in found.session),
        ),
        ("a latent of a young game / of the old one", f"{found.young_ms:.2f} / {found.late_ms:.2f} ms"),
        ("verdict", "; ".join(missed) or "flat"),
    ]
    publish(f"endurance: {world}, {latents} latents", where, rows, result, json_file)
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
