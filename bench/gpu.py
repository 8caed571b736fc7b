"""What to check once a CUDA machine is at hand; `bench/gpu_check.sh` runs it. Prints a markdown table.

equality   the same tiny world on the CPU and on the card, same picture, seed and keys, float32 and bfloat16
step       one latent frame at embedded and at gta in bfloat16, as it is and with the blocks' parts compiled
memory     the card's at its highest, for each step
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from bench.report import environment
from bench.step import run
from worldloop.engine.contract import Emit
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.models.device import DTYPES
from worldloop.testing import ScriptedPlayer, play, tiny_world

LATENTS = 8
BOUNDS = {"fp32": (1.0, 0.01), "bf16": (16.0, 1.0)}
"""Largest and mean difference in byte values that still count as equal, by number format. float32 may round one byte
value apart. On one CPU, bfloat16 and float32 are 2 apart at most and 0.23 in the mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Byte values that two runs of one game are apart: largest, and mean over all pictures."""

    largest: float
    mean: float

    def within(self, bound: tuple[float, float]) -> bool:
        """Whether both are at most `bound`."""
        return self.largest <= bound[0] and self.mean <= bound[1]


def difference(one: list[Emit], other: list[Emit]) -> Difference:
    """Compare two games of equal length. ValueError when there is nothing to compare."""
    if not one or len(one) != len(other):
        raise ValueError(f"games of {len(one)} and {len(other)} chunks cannot be compared")
    apart = [
        np.abs(a.frames.astype(np.int16) - b.frames.astype(np.int16)) for a, b in zip(one, other, strict=True)
    ]
    every = np.concatenate([each.ravel() for each in apart])
    return Difference(largest=float(every.max()), mean=float(every.mean()))


def play_on(folder: Path, device: torch.device, dtype: torch.dtype, *, seed: int = 1) -> list[Emit]:
    """The same short game of a folder's tiny world on one device."""
    model = WorldModel.load(
        folder / "tiny-3r.safetensors", folder / "autoencoder.safetensors", device=device, dtype=dtype
    )
    latent = torch.randn(1, *model.latent_shape, generator=torch.Generator().manual_seed(3)).to(device)
    request = WorldRequest(latent=latent, seed=seed)
    return play(WorldLoop(model), request, ScriptedPlayer.of("w", "a", ""), LATENTS)


def equality_rows(device: torch.device) -> tuple[list[str], bool]:
    """Markdown rows of the equality of a device with the CPU, and whether all bounds hold."""
    rows, well = [], True
    with tempfile.TemporaryDirectory() as name:
        folder = tiny_world(Path(name))
        for word, dtype in DTYPES.items():
            found = difference(play_on(folder, torch.device("cpu"), dtype), play_on(folder, device, dtype))
            good = found.within(BOUNDS[word])
            well &= good
            rows.append(
                f"| CPU = card, tiny, {word} | largest {found.largest:.0f}, mean {found.mean:.4f} byte values | "
                f"at most {BOUNDS[word][0]:g}, {BOUNDS[word][1]:g} | {'yes' if good else 'NO'} |"
            )
    return rows, well


def step_row(size: str, device: torch.device, *, compiled: bool, frames: int) -> str:
    """A markdown row of one step bench on the card."""
    torch.cuda.reset_peak_memory_stats()
    found = run(size, frames=frames, dtype=torch.bfloat16, device=device, compiled=compiled)
    peak = torch.cuda.max_memory_allocated() / 2**30
    name = f"{size}, bf16" + (", compiled" if compiled else "")
    return (
        f"| one latent frame, {name} | {found['frame_ms']:.2f} ms (passes {found['passes_ms']:.2f}, decode "
        f"{found['decode_ms']:.2f}), {100 * found['passes_share']:.1f}% of the roofline | real-time factor "
        f"{found['real_time_factor']:.3g} | {peak:.2f} GiB at its highest |"
    )


def main(
    frames: Annotated[int, typer.Option(min=1, help="Latent frames of each step bench.")] = 20,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also with compiled parts.")
    ] = True,
) -> None:
    """Check a CUDA machine; exit code 1 when the card's pictures are not the CPU's, 3 when there is no card."""
    if not torch.cuda.is_available():
        typer.echo("gpu check: no CUDA device on this machine; nothing was run", err=True)
        raise typer.Exit(3)
    device = torch.device("cuda")
    where = environment(dtype="bf16")
    typer.echo(f"{where['device']}, torch {where['torch']}, commit {where['commit']}, {where['date']}\n")
    typer.echo("| check | measured | bound or factor | result |\n| --- | --- | --- | --- |")
    rows, well = equality_rows(device)
    for row in rows:
        typer.echo(row)
    for size in ("embedded", "gta"):
        for each in (False, True) if compiled else (False,):
            typer.echo(step_row(size, device, compiled=each, frames=frames))
    if not well:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
