"""The record of a rollout as a file: safetensors, and JSON under one key of the metadata, as a snapshot is.

    chunk3.latents                              clean frames
    chunk3.step0.x_t, .v, .x0, .branch.cond     what its first step saw and predicted
    told0, told1, ...                           what chunks follow; equal ones are stored once

Owns the format and its checks. Does not own what is recorded (`rollout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field
from torch import Tensor

from worldloop.core.errors import SnapshotError
from worldloop.loops.rollout import Chunk, Rollout, Step
from worldloop.loops.snapshot import Count, Finite, Strict, pack, read, unpack, write


class StepFacts(Strict):
    """`Step` without its tensors."""

    step: Count
    timestep: Finite
    alpha: Finite
    sigma: Finite
    branches: tuple[str, ...]
    given: bool


class ChunkFacts(Strict):
    """`Chunk` without its tensors; `told` names them."""

    frame: Count
    steps: tuple[StepFacts, ...]
    told: Mapping[str, str]


class RolloutFacts(Strict):
    """Everything of a rollout that is no tensor."""

    format: Literal["worldloop-rollout-1"] = "worldloop-rollout-1"
    family: str = Field(min_length=1)
    seed: Count
    full: bool
    chunks: tuple[ChunkFacts, ...] = Field(min_length=1)


def save_rollout(path: str | Path, rollout: Rollout) -> None:
    """Write a record, whole or not at all. ValueError when nothing was recorded."""
    write(Path(path), pack_rollout(rollout))


def load_rollout(path: str | Path) -> Rollout:
    """Read a file's record; errors as `unpack_rollout`, and InvalidInputError when it cannot be read."""
    return unpack_rollout(read(Path(path)))


def pack_rollout(rollout: Rollout) -> bytes:
    """The file. Equal records give equal files. ValueError when nothing was recorded."""
    if not rollout.chunks:
        raise ValueError("nothing was recorded")
    tensors: dict[str, Tensor] = {}
    told: dict[int, str] = {}
    facts = []
    for number, chunk in enumerate(rollout.chunks):
        tensors[f"chunk{number}.latents"] = chunk.latents
        for step in chunk.steps:
            tensors |= _by_name(f"chunk{number}.step{step.step}", step)
        for tensor in chunk.told.values():
            if id(tensor) not in told:
                told[id(tensor)] = name = f"told{len(told)}"
                tensors[name] = tensor.contiguous()
        facts.append(
            ChunkFacts(
                frame=chunk.frame,
                steps=tuple(_facts(step) for step in chunk.steps),
                told={name: told[id(tensor)] for name, tensor in chunk.told.items()},
            )
        )
    whole = RolloutFacts(family=rollout.family, seed=rollout.seed, full=rollout.full, chunks=tuple(facts))
    return pack(whole, tensors)


def unpack_rollout(data: bytes) -> Rollout:
    """Read a file.

    Raises:
        SnapshotError: it is damaged, of another format, holds numbers that are not finite, or lacks a tensor.
    """
    facts, tensors = unpack(data, RolloutFacts, "rollout")
    used: set[str] = set()

    def take(name: str, like: Tensor | None = None) -> Tensor:
        if name not in tensors:
            raise SnapshotError(f"tensor {name!r} is missing")
        if like is not None and tensors[name].shape != like.shape:
            found, needed = tuple(tensors[name].shape), tuple(like.shape)
            raise SnapshotError(f"tensor {name!r} is {found}; {needed} is needed")
        used.add(name)
        return tensors[name]

    rollout = Rollout()
    rollout.begin(facts.family, facts.seed)
    for number, chunk in enumerate(facts.chunks):
        latents = take(f"chunk{number}.latents")
        steps = []
        for step in chunk.steps:
            name = f"chunk{number}.step{step.step}"
            x_t, v, x0 = (take(f"{name}.{part}", latents) for part in ("x_t", "v", "x0"))
            branches = {branch: take(f"{name}.branch.{branch}", latents) for branch in step.branches}
            steps.append(
                Step(step.step, step.timestep, step.alpha, step.sigma, x_t, v, x0, branches, given=step.given)
            )
        told = {name: take(stored) for name, stored in chunk.told.items()}
        rollout.chunks.append(Chunk(frame=chunk.frame, latents=latents, steps=tuple(steps), told=told))
    if odd := sorted(set(tensors) - used):
        raise SnapshotError(f"tensor {odd[0]!r} is unexpected")
    rollout.full = facts.full
    rollout.nbytes = sum(tensor.nbytes for tensor in tensors.values())
    return rollout


def _facts(step: Step) -> StepFacts:
    return StepFacts(
        step=step.step, timestep=float(step.timestep), alpha=step.alpha, sigma=step.sigma,
        branches=tuple(step.branches), given=step.given,
    )  # fmt: skip


def _by_name(name: str, step: Step) -> dict[str, Tensor]:
    own = {f"{name}.x_t": step.x_t, f"{name}.v": step.v, f"{name}.x0": step.x0}
    return own | {f"{name}.branch.{branch}": v for branch, v in step.branches.items()}
