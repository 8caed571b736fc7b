"""One latent frame of a named size, random weights, full memory: `python -m bench.step --size embedded|gta|tiny`.

The operations and bytes are counted from the config by the formula in `worldloop.loops.timing`; the share of the
roofline is against this machine's rates, measured in the same run by `bench.roofline`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.report import Row, environment, memory_bytes, publish
from bench.roofline import Roofline, measure
from worldloop.loops.model import WorldModel
from worldloop.loops.timing import STREAM_FPS, FrameTimes, FrameWork, time_frames
from worldloop.models.autoencoder import GROUP
from worldloop.models.device import pick_device, pick_dtype, set_threads
from worldloop.models.summaryformer import SIZES
from worldloop.testing import random_model


def compile_parts(model: WorldModel) -> None:
    """Compile what is pure in a block: projections with their norms and rotations, and the feed-forward."""
    blocks: Any = model.network.blocks
    for block in blocks:
        attention = block.visual_self_attention
        attention.project = torch.compile(attention.project)
        attention.merge = torch.compile(attention.merge)
        block.visual_feed_forward.compile()


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
    return [
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


def run(
    size: str, *, frames: int, dtype: torch.dtype, device: torch.device, compiled: bool = False
) -> dict[str, Any]:
    """Measure one size."""
    limits = measure(dtype, device)
    model = random_model(size, dtype=dtype, device=device)
    if compiled:
        compile_parts(model)
    times = time_frames(model, frames=frames, warmup=3 if compiled else 1)
    return step_result(model, times, limits) | {
        "size": size,
        "compiled": compiled,
        "peak_bytes": memory_bytes(peak=True),
    }


def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "embedded",
    frames: Annotated[int, typer.Option(min=1, help="Latent frames to measure.")] = 20,
    dtype: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the pure parts of the blocks.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Measure one latent frame."""
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r} must be one of {', '.join(SIZES)}", param_hint="--size")
    set_threads(threads)
    device = pick_device()
    chosen = pick_dtype(dtype, device)
    result = run(size, frames=frames, dtype=chosen, device=device, compiled=compiled)
    title = f"step: {size}" + (", compiled" if compiled else "")
    publish(title, environment(dtype=chosen), step_rows(result), result, json_file)


if __name__ == "__main__":
    typer.run(main)
