"""One latent frame of a named size, random weights, full memory: `python -m bench.step --size embedded|gta|tiny`.

The operations and bytes are counted from the config by the formula in `worldloop.loops.timing`; the share of the
roofline is against this machine's rates, measured in the same run by `bench.roofline`. With `--compile`, the same world
as it is written is clocked in turn with the compiled one, frame by frame, so that both meet the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer

from bench.report import Row, environment, memory_bytes, publish
from bench.roofline import Roofline, measure
from worldloop.core.types import Controls
from worldloop.loops.model import WorldModel
from worldloop.loops.timing import STREAM_FPS, FrameTimes, FrameWork, clock_frame, steady_session, time_frames
from worldloop.loops.world import WorldLoop
from worldloop.models.autoencoder import GROUP
from worldloop.models.compiled import Compile, DecoderMode, NetworkMode
from worldloop.models.device import pick_device, set_threads
from worldloop.models.precision import Precision
from worldloop.models.summaryformer import SIZES
from worldloop.testing import random_model

SETTLE = 4
"""Frames before the measured ones: the first compiles, and recorded graphs take two more."""


def step_result(model: WorldModel, times: FrameTimes, limits: Roofline) -> dict[str, Any]:
    """The numbers of one run, times in milliseconds."""
    work = FrameWork.of(model, times.keys)
    passes_ms, decode_ms = times.median_ms("denoise", "write_memory"), times.median_ms("decode")
    least_passes = 1000 * limits.seconds(work.pass_operations, work.pass_bytes)
    least_decode = 1000 * limits.seconds(work.decode_operations, work.decode_bytes)
    return {
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "rows_read": times.keys,
        "passes_ms": passes_ms,
        "pass_ms": passes_ms / work.passes,
        "decode_ms": decode_ms,
        "encode_ms": 1000 * times.encode_s,
        "frame_ms": times.median_ms(),
        "real_time_factor": 1000 * GROUP / STREAM_FPS / times.median_ms(),
        "work": asdict(work),
        "roofline": asdict(limits),
        "passes_share": least_passes / passes_ms,
        "decode_share": least_decode / decode_ms,
    }


def step_rows(result: dict[str, Any]) -> list[Row]:
    """The same for people."""
    work, limits = result["work"], result["roofline"]
    rows = [
        ("parameters", f"{result['parameters'] / 1e6:.1f} M"),
        ("rows of memory read by a pass", str(result["rows_read"])),
        (f"model passes ({work['passes']})", f"{result['passes_ms']:.2f} ms"),
        ("decode", f"{result['decode_ms']:.2f} ms"),
        ("one latent frame", f"{result['frame_ms']:.2f} ms"),
        ("encode a start picture", f"{result['encode_ms']:.2f} ms"),
        (
            f"real-time factor at {STREAM_FPS} pictures a second, model only",
            f"{result['real_time_factor']:.3g}",
        ),
        ("operations of the passes", f"{work['pass_operations'] / 1e9:.3f} G multiply-adds"),
        ("bytes of the passes", f"{work['pass_bytes'] / 1e6:.1f} MB"),
        (
            "machine: matrix product",
            f"{limits['multiply_adds'] / 1e9:.1f} G multiply-adds/s at {limits['shape']}",
        ),
        ("machine: memory", f"{limits['bytes_read'] / 1e9:.1f} GB/s"),
        ("share of the roofline: passes", f"{100 * result['passes_share']:.1f}%"),
        ("share of the roofline: decode", f"{100 * result['decode_share']:.1f}%"),
    ]
    if "compiled" in result:
        found = result["compiled"]
        rows += [
            ("compiled: first frame", f"{found['first_s']:.1f} s"),
            ("compiled: one latent frame", f"{found['frame_ms']:.2f} ms"),
            ("as written over compiled", f"{found['ratio']:.2f} (least: {found['ratio_of_least']:.2f})"),
        ]
    return rows


def in_turn(models: Sequence[WorldModel], frames: int) -> list[list[float]]:
    """Seconds of each model's latent frames, the models taking turns; the first `SETTLE` are included."""
    loops = [WorldLoop(model) for model in models]
    states = [steady_session(loop) for loop in loops]
    seconds: list[list[float]] = [[] for _ in models]
    for _ in range(SETTLE + frames):
        for loop, state, own in zip(loops, states, seconds, strict=True):
            loop.offer(state, Controls(pressed=frozenset({"w"})))
            own.append(sum(clock_frame(loop, state, time.perf_counter).values()))
    return seconds


def compiled_result(written: WorldModel, compiled: WorldModel, frames: int) -> dict[str, Any]:
    """How much faster the compiled one is."""
    a, b = in_turn((written, compiled), frames)
    first, a, b = b[0], a[SETTLE:], b[SETTLE:]
    middle = [float(torch.tensor(each).median()) for each in (a, b)]
    return {
        "first_s": first,
        "frame_ms": 1000 * middle[1],
        "ratio": middle[0] / middle[1],
        "ratio_of_least": min(a) / min(b),
    }


def run(
    size: str, *, frames: int, precision: Precision, device: torch.device, compile: Compile | None = None
) -> dict[str, Any]:
    """Measure one size."""
    limits = measure(precision.memory, device)
    model = random_model(size, precision=precision, device=device)
    times = time_frames(model, frames=frames)
    result = step_result(model, times, limits) | {"size": size, "precision": precision.name}
    if compile is not None and compile.any:
        compiled = random_model(size, precision=precision, device=device, compile=compile)
        result["compiled"] = asdict(compile) | compiled_result(model, compiled, frames)
    return result | {"peak_bytes": memory_bytes(peak=True)}


def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "embedded",
    frames: Annotated[int, typer.Option(min=1, help="Latent frames to measure.")] = 20,
    dtype: Annotated[str, typer.Option(help="auto, bf16, autocast or fp32.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    compile: Annotated[str, typer.Option(help="Mode of the network, as the setting.")] = "off",
    compile_decoder: Annotated[str, typer.Option(help="Mode of the decoder, as the setting.")] = "off",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Measure one latent frame."""
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r} must be one of {', '.join(SIZES)}", param_hint="--size")
    set_threads(threads)
    device = pick_device()
    precision = Precision.choose(dtype=dtype, device=device)
    how = Compile(network=cast(NetworkMode, compile), decoder=cast(DecoderMode, compile_decoder))
    result = run(size, frames=frames, precision=precision, device=device, compile=how)
    title = f"step: {size}" + (f", compile={compile}, compile_decoder={compile_decoder}" if how.any else "")
    publish(title, environment(dtype=precision.memory), step_rows(result), result, json_file)


if __name__ == "__main__":
    typer.run(main)
