"""The evaluation of a world: every measure, on decoded pictures, against a simulator that knows the truth.

    picture in -> encode -> dream -> decode -> measure          never the state of a simulation behind the dream

Owns opening the world and the order of the sections (`walking`, `trips`, `checks`). Does not own the report's form
(`report`). Called by the command line.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from worldloop.core.errors import InvalidInputError
from worldloop.loops.model import WorldModel
from worldloop.models import device as devices
from worldloop.models.precision import Precision
from worldloop.models.registry import Entry, find_world, scan
from worldloop.simulators.meadow import FRAME_SIZE
from worldloop.trainer.checks import fidelity, keys_against_none, latency
from worldloop.trainer.report import Report
from worldloop.trainer.sizes import Sizes
from worldloop.trainer.trips import memory
from worldloop.trainer.walking import long_walks

__all__ = ["Report", "Sizes", "evaluate_model", "evaluate_world"]


def evaluate_world(
    world: str,
    *,
    worlds: int | None = None,
    latents: int | None = None,
    sizes: Sizes | None = None,
    device: str = "auto",
    dtype: str = "auto",
    threads: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Measure a world.

    Args:
        world: a shipped world's name, a folder of checkpoints (its default one), or one checkpoint.
        worlds, latents: change these two of `sizes`.
        sizes: how much is measured.
        device, dtype, threads: as for serving.
        on_progress: called with what is being measured, often.

    Raises:
        InvalidInputError: no such world, a size that is too small, or pictures of another size than the meadow's.
        CheckpointError: a file is refused.
    """
    chosen = sizes or Sizes()
    chosen = replace(
        chosen,
        worlds=chosen.worlds if worlds is None else worlds,
        latents=chosen.latents if latents is None else latents,
    )
    check(chosen)
    devices.set_threads(threads)
    path = Path(world)
    registry = scan(find_world(world))
    entry = registry.entries[registry.default(path.stem.lower() if path.is_file() else None)]
    place = devices.pick_device(device)
    model = WorldModel.load(
        entry.path, registry.autoencoder, device=place, precision=Precision.choose(dtype=dtype, device=place)
    )
    report = evaluate_model(model, chosen, on_progress=on_progress)
    report.facts = {"model": entry.name.model_id, **_origin(entry), **report.facts}
    return report


def evaluate_model(
    model: WorldModel, sizes: Sizes, *, on_progress: Callable[[str], None] | None = None
) -> Report:
    """Measure a loaded model; `InvalidInputError` when its pictures are not the meadow's."""
    if model.picture_hw != FRAME_SIZE:
        raise InvalidInputError(
            f"pictures are {model.picture_hw}; the meadow's {FRAME_SIZE} can be evaluated"
        )
    tick = on_progress or _silent
    start = time.monotonic()
    report = Report(facts={})
    for section in (long_walks, memory, fidelity, keys_against_none, latency):
        section(model, sizes, report, tick)
    report.facts = {**_machine(model), "seconds": round(time.monotonic() - start), "sizes": asdict(sizes)}
    return report


def check(sizes: Sizes) -> None:
    """`InvalidInputError` names the size that is too small."""
    least = {"latents": 6}
    for name, value in asdict(sizes).items():
        if name != "distances" and value < least.get(name, 1):
            raise InvalidInputError(f"{name}={value}: must be {least.get(name, 1)} or more")
    if not sizes.distances or min(sizes.distances) < 1:
        raise InvalidInputError(f"distances={sizes.distances}: at least one, each 1 or more")


def _silent(_: str) -> None:
    """Progress that nobody asked for."""


def _origin(entry: Entry) -> dict[str, Any]:
    return {"training step": entry.config.step, "trained on": entry.config.saved["trained_on"]}


def _machine(model: WorldModel) -> dict[str, Any]:
    return {
        "machine": f"{platform.machine()}, {devices.usable_cores()} cores, {torch.get_num_threads()} threads",
        "device": str(model.device),
        "number format": str(model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
    }
