"""What to check once a CUDA machine is at hand; `bench/gpu_check.sh` runs it. Prints a markdown table.

equality    the same tiny world on the CPU and on the card, same picture, seed and keys, float32 and bfloat16
attention   three kernels at the published size's shapes: generated with a bias a key, a mask, no bias at all
step        one latent frame at embedded and at gta: as written and in each way to compile, autocast, fp8 by row and by
            tensor, the decoder compiled; with the error of one pass against bfloat16 as written
memory      the card's at its highest, for each step

A check that fails is a row that says why, and the others go on. Rows appear as they are found, the slowest to compile
last, and none is begun after `BUDGET_S`.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from bench.report import environment
from bench.roofline import Roofline, measure
from bench.step import SETTLE, step_result
from worldloop.core.types import Controls
from worldloop.engine.contract import Emit
from worldloop.loops.model import WorldModel
from worldloop.loops.timing import steady_session, time_frames
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.models.compiled import GRAPHS, Compile
from worldloop.models.device import DTYPES, synchronize
from worldloop.models.precision import Precision
from worldloop.models.summaryformer import SIZES, attend, attend_flex
from worldloop.testing import ScriptedPlayer, play, random_model, run_unit, tiny_world

LATENTS = 8
BUDGET_S = 330.0
BOUNDS = {"fp32": (1.0, 0.01), "bf16": (16.0, 1.0)}
"""Largest and mean difference in byte values that still count as equal, by number format. float32 may round one byte
value apart. On one CPU, bfloat16 and float32 are 2 apart at most and 0.23 in the mean."""
BF16 = Precision(mode="bf16", decoder=torch.bfloat16)
AUTOCAST = Precision(mode="autocast", decoder=torch.bfloat16)
WAYS: dict[str, tuple[Precision, Compile]] = {
    "bf16, as written": (BF16, Compile()),
    "bf16, compile=default": (BF16, Compile(network="default")),
    "bf16, both compiled, default": (BF16, Compile(network="default", decoder="default")),
    "autocast, as written": (AUTOCAST, Compile()),
    "fp8 row, as written": (replace(BF16, fp8="row"), Compile()),
    "fp8 tensor, as written": (replace(BF16, fp8="tensor"), Compile()),
    "fp8 row, compile=default": (replace(BF16, fp8="row"), Compile(network="default")),
    "bf16, compile=max-autotune-no-cudagraphs": (BF16, Compile(network="max-autotune-no-cudagraphs")),
    f"bf16, compile={GRAPHS}": (BF16, Compile(network=GRAPHS)),
    f"fp8 row, compile={GRAPHS}": (replace(BF16, fp8="row"), Compile(network=GRAPHS)),
}
"""Every way to run a step, the first one is what the others' error is against."""


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


def play_on(folder: Path, device: torch.device, dtype: str, *, seed: int = 1) -> list[Emit]:
    """The same short game of a folder's tiny world on one device."""
    model = WorldModel.load(
        folder / "tiny-3r.safetensors",
        folder / "autoencoder.safetensors",
        device=device,
        precision=Precision.choose(dtype=dtype, device=device),
    )
    latent = torch.randn(1, *model.latent_shape, generator=torch.Generator().manual_seed(3)).to(device)
    request = WorldRequest(latent=latent, seed=seed)
    return play(WorldLoop(model), request, ScriptedPlayer.of("w", "a", ""), LATENTS)


def equality_row(folder: Path, device: torch.device, word: str) -> str:
    """A markdown row of the equality of a device with the CPU in one format; it ends with NO when a bound is broken."""
    found = difference(play_on(folder, torch.device("cpu"), word), play_on(folder, device, word))
    good = found.within(BOUNDS[word])
    return (
        f"| CPU = card, tiny, {word} | largest {found.largest:.0f}, mean {found.mean:.4f} byte values | "
        f"at most {BOUNDS[word][0]:g}, {BOUNDS[word][1]:g} | {'yes' if good else 'NO'} |"
    )


def attention_row(device: torch.device, *, size: str = "gta", times: int = 20) -> str:
    """A markdown row of the milliseconds of one block's attention by three kernels."""
    config = SIZES[size]
    rows, keys = config.record, config.memory.capacity
    shape = (1, config.num_heads, rows, config.head_dim)
    q = torch.randn(shape, device=device, dtype=torch.bfloat16)
    k, v = (torch.randn(*shape[:2], keys, shape[3], device=device, dtype=torch.bfloat16) for _ in range(2))
    bias = torch.zeros(keys, device=device)
    flex = torch.compile(attend_flex, dynamic=False)
    kernels: dict[str, Callable[[], torch.Tensor]] = {
        "generated": lambda: flex(q, k, v, bias),
        "mask": lambda: attend(q, k, v, bias),
        "no bias": lambda: attend(q, k, v, None),
    }
    found = []
    for name, kernel in kernels.items():
        kernel()
        synchronize(device)
        began = time.perf_counter()
        for _ in range(times):
            kernel()
        synchronize(device)
        found.append(f"{name} {1000 * (time.perf_counter() - began) / times:.3f} ms")
    return f"| attention, {size}, one block of one pass | {', '.join(found)} | less is better | |"


def one_pass(model: WorldModel) -> torch.Tensor:
    """x0 of the first pass of a body frame of one fixed session, on the CPU."""
    loop = WorldLoop(model)
    state = steady_session(loop, seed=1)
    loop.offer(state, Controls(pressed=frozenset({"w"})))
    run_unit(loop, state)
    return state.x.float().cpu()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of what is expected."""
    return float((found - expected).norm() / expected.norm())


def step_row(name: str, model: WorldModel, limits: Roofline, expected: torch.Tensor, *, frames: int) -> str:
    """A markdown row of one step bench on the card."""
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    error = relative_error(one_pass(model), expected)
    first_s = time.perf_counter() - began
    found = step_result(model, time_frames(model, frames=frames, warmup=SETTLE), limits)
    peak = torch.cuda.max_memory_allocated() / 2**30
    return (
        f"| one latent frame, {name} | {found['frame_ms']:.2f} ms (passes {found['passes_ms']:.2f}, decode "
        f"{found['decode_ms']:.2f}), {100 * found['passes_share']:.1f}% of the roofline; first pass {first_s:.1f} s; "
        f"error {100 * error:.2f}% | real-time factor {found['real_time_factor']:.3g} | "
        f"{peak:.2f} GiB at its highest |"
    )


def step_checks(
    size: str, device: torch.device, limits: Roofline, *, frames: int, compiled: bool
) -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, what makes the row) of every way to run a size."""
    expected: list[torch.Tensor] = []

    def row(name: str, precision: Precision, compile: Compile) -> str:
        model = random_model(size, precision=precision, compile=compile, device=device)
        if not expected:
            expected.append(one_pass(model))
        return step_row(f"{size}, {name}", model, limits, expected[0], frames=frames)

    for name, (precision, compile) in WAYS.items():
        if compiled or not compile.any:
            yield f"one latent frame, {size}, {name}", lambda n=name, p=precision, c=compile: row(n, p, c)


def guarded(name: str, make: Callable[[], str], deadline: float) -> str:
    """The row, or one that says why there is none."""
    if time.monotonic() > deadline:
        return f"| {name} | not run: no time left | | |"
    try:
        return make()
    except Exception as error:  # noqa: BLE001 (a check that fails is a result)
        reason = f"{type(error).__name__}: {error}".splitlines()[0].replace("|", "/")[:160]
        return f"| {name} | FAILED: {reason} | | NO |"
    finally:
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def main(
    frames: Annotated[int, typer.Option(min=1, help="Latent frames of each step bench.")] = 20,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Also what is compiled.")] = True,
) -> None:
    """Check a CUDA machine; exit code 1 when a check fails, 3 when there is no card."""
    if not torch.cuda.is_available():
        typer.echo("gpu check: no CUDA device on this machine; nothing was run", err=True)
        raise typer.Exit(3)
    deadline = time.monotonic() + BUDGET_S
    device = torch.device("cuda")
    where = environment(dtype="bf16")
    typer.echo(f"{where['device']}, torch {where['torch']}, commit {where['commit']}, {where['date']}\n")
    typer.echo("| check | measured | bound or factor | result |\n| --- | --- | --- | --- |")
    well = True

    def tell(name: str, make: Callable[[], str]) -> None:
        nonlocal well
        row = guarded(name, make, deadline)
        well &= not row.endswith("| NO |")
        typer.echo(row)

    with tempfile.TemporaryDirectory() as name:
        folder = tiny_world(Path(name))
        for word in DTYPES:
            tell(f"CPU = card, tiny, {word}", lambda w=word: equality_row(folder, device, w))
    if compiled:
        tell("attention, gta", lambda: attention_row(device))
    limits = measure(torch.bfloat16, device)
    checks = [
        dict(step_checks(size, device, limits, frames=frames, compiled=compiled))
        for size in ("embedded", "gta")
    ]
    for pair in zip(*(each.items() for each in checks), strict=True):
        for row_name, make in pair:
            tell(row_name, make)
    if not well:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
