"""What this machine can do at most: multiply-adds a second of a matrix product, and bytes a second of a copy.

Measured beside what it is compared with, in the same run: `python -m bench.roofline`, and from `bench.step`.

A unit of work of A multiply-adds that must read B bytes takes at least max(A / matrix rate, B / memory rate) seconds;
its share of the roofline is that time over the measured one (Williams et al. 2009, doi:10.1145/1498765.1498785).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from bench.report import environment, publish
from worldloop.models.device import pick_device, set_threads, synchronize
from worldloop.models.precision import Precision

SHAPES = ((68, 1408, 256), (512, 512, 512), (1104, 6912, 1280), (2048, 2048, 2048))
"""(rows, columns, inner) of the products that are tried; the best one counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """Rates of one machine in one number format.

    Attributes:
        multiply_adds: a second, best of `SHAPES`.
        shape: which shape that was.
        bytes_read: bytes a second of a copy, read and written bytes counted.
    """

    multiply_adds: float
    shape: tuple[int, int, int]
    bytes_read: float

    def seconds(self, operations: float, size: float) -> float:
        """The least time for so many multiply-adds and bytes."""
        return max(operations / self.multiply_adds, size / self.bytes_read)


def measure(
    dtype: torch.dtype,
    device: torch.device,
    *,
    copy_mb: int = 256,
    clock: Callable[[], float] = time.perf_counter,
) -> Roofline:
    """Measure both rates; about a second."""
    rates = {
        shape: shape[0] * shape[1] * shape[2] / _product(shape, dtype, device, clock) for shape in SHAPES
    }
    best = max(rates, key=lambda shape: rates[shape])
    source = torch.zeros(copy_mb * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = _best(lambda: target.copy_(source), device, clock, times=5)
    return Roofline(multiply_adds=rates[best], shape=best, bytes_read=2 * source.numel() / copied)


def _product(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, clock: Callable[[], float]
) -> float:
    rows, columns, inner = shape
    x = torch.randn(rows, inner, device=device).to(dtype)
    # As a linear layer has it: weights are stored column by column of the product.
    weight = torch.randn(columns, inner, device=device).to(dtype)
    times = max(3, min(50, int(2e9 / (rows * columns * inner))))
    return _best(lambda: torch.nn.functional.linear(x, weight), device, clock, times=times)


def _best(
    work: Callable[[], object], device: torch.device, clock: Callable[[], float], *, times: int
) -> float:
    work()
    spent = []
    for _ in range(times):
        synchronize(device)
        began = clock()
        work()
        synchronize(device)
        spent.append(clock() - began)
    return min(spent)


def main(
    dtype: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Measure this machine."""
    set_threads(threads)
    device = pick_device()
    chosen = Precision.choose(dtype=dtype, device=device).memory
    found = measure(chosen, device)
    rows = [
        ("matrix product", f"{found.multiply_adds / 1e9:.1f} G multiply-adds/s at {found.shape}"),
        ("memory", f"{found.bytes_read / 1e9:.1f} GB/s"),
    ]
    result = {
        "multiply_adds_per_s": found.multiply_adds,
        "shape": found.shape,
        "bytes_per_s": found.bytes_read,
    }
    publish("roofline", environment(dtype=chosen), rows, result, json_file)


if __name__ == "__main__":
    typer.run(main)
