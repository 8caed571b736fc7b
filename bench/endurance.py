"""A long game in one process: does anything grow, does anything slow down? `python -m bench.endurance`.

Memory (the process's and the session's) at latent 200 and at the end agree within 1%; the latents of the last hundred
take what latents 200 to 300 took, within 10%. Exit code 1 when one of these is missed.
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
        resident, session: bytes of the process and of the session at latent `SETTLED` and at the end.
    """

    seconds: tuple[float, ...]
    resident: tuple[int, int]
    session: tuple[int, int]

    @property
    def early_ms(self) -> float:
        """Median of latents 200 to 300."""
        return 1000 * statistics.median(self.seconds[SETTLED : SETTLED + SPAN])

    @property
    def late_ms(self) -> float:
        """Median of the last hundred."""
        return 1000 * statistics.median(self.seconds[-SPAN:])

    def missed(self) -> list[str]:
        """What is out of bounds, in words."""
        checks = [
            ("memory of the process", self.resident[0], self.resident[1], MEMORY_BOUND),
            ("memory of the session", self.session[0], self.session[1], MEMORY_BOUND),
            ("time of a latent", self.early_ms, self.late_ms, TIME_BOUND),
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
    height, width = host.frame_size
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    game = host.start(host.encode(picture), options=GameOptions(), seed=seed)
    game.submit(Controls()).result()
    player = ScriptedPlayer.seeded(seed)
    seconds, sizes = [], []
    for latent in range(latents):
        began = clock()
        game.submit(player.controls(latent)).result()
        seconds.append(clock() - began)
        if latent + 1 in (SETTLED, latents):
            gc.collect()
            sizes.append((memory_bytes(), _session_bytes(host, game)))
    game.close()
    return Endurance(
        seconds=tuple(seconds), resident=(sizes[0][0], sizes[1][0]), session=(sizes[0][1], sizes[1][1])
    )


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
        "early_ms": found.early_ms,
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
        ("a latent, 200 to 300 / last hundred", f"{found.early_ms:.2f} / {found.late_ms:.2f} ms"),
        ("verdict", "; ".join(missed) or "flat"),
    ]
    publish(f"endurance: {world}, {latents} latents", where, rows, result, json_file)
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
