"""What compiled kernels use on a card: registers, spilled registers and shared memory, read from the compiler.

Inductor keeps every module that it wrote in `PyCodeCache.modules`. A Triton kernel in one of them has launchers, one
for each way to tile it, and only the quickest once it was tuned; a launcher knows what its binary uses. On a CPU the
generated code is C++ and there is nothing to record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, order=True)
class Kernel:
    """One binary.

    Attributes:
        name: that the compiler gave it.
        tiles: how it is tiled, as text.
        registers: of a thread; None when the compiler did not tell.
        spills: registers of a thread that are kept in memory instead.
        shared: bytes of shared memory of a block.
    """

    name: str
    tiles: str
    registers: int | None
    spills: int | None
    shared: int | None


def kernels_in(modules: Iterable[object]) -> list[Kernel]:
    """Every Triton kernel that these modules hold, each once, by name."""
    found = set()
    for module in modules:
        for value in list(vars(module).values()):
            for launcher in getattr(value, "launchers", ()):
                meta = getattr(value, "inductor_meta", {})
                found.add(
                    Kernel(
                        name=str(meta.get("kernel_name") or value.fn.__name__),
                        tiles=str(launcher.config),
                        registers=launcher.n_regs,
                        spills=launcher.n_spills,
                        shared=launcher.shared,
                    )
                )
    return sorted(found, key=lambda each: (each.name, each.tiles))


def compiled_kernels() -> list[Kernel]:
    """Every Triton kernel that this process has compiled and run."""
    from torch._inductor.codecache import PyCodeCache

    return kernels_in(PyCodeCache.modules)


def write(path: Path, kernels: list[Kernel], device: str) -> None:
    """The record, as JSON. ValueError when there is nothing to record."""
    if not kernels:
        raise ValueError(f"no Triton kernel was compiled on {device}: there is nothing to record")
    record: dict[str, Any] = {
        "device": device,
        "torch": torch.__version__,
        "kernels": [asdict(k) for k in kernels],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
