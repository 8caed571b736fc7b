"""What was played: where a game began, and the controls of every latent frame as the frame took them.

With the same build, device and number formats a tape re-makes the same bytes; it holds a SHA-256 to tell. It is a
snapshot file of the beginning (for a game from a picture: little more than one latent) with the controls beside it.

Owns the format and the sum. Does not own who records (`history`) or who plays it again (`api`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np

from worldloop.core.errors import SnapshotError
from worldloop.core.types import Controls
from worldloop.engine.contract import Frames
from worldloop.loops.snapshot import Count, Facts, Held, Snapshot, Strict, pack, read, unpack, write

NO_FRAMES = bytes(32)
"""The sum before the first frame."""
MAX_FRAMES = 10_000_000
"""Latent frames of one tape."""


class Run(Strict):
    """So many frames in a row with the same controls."""

    held: Held
    frames: Count


class TapeFacts(Strict):
    """Everything of a tape that is no tensor."""

    format: Literal["worldloop-tape-1"] = "worldloop-tape-1"
    start: Facts
    runs: tuple[Run, ...]
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tape:
    """One game from its beginning.

    Attributes:
        start: the moment before its first frame.
        controls: of every latent frame from there on; of a game from a picture the first is the start picture's.
        sha256: of all pictures, see `add`; hexadecimal.
    """

    start: Snapshot
    controls: tuple[Controls, ...]
    sha256: str

    def with_nfe(self, nfe: int) -> Tape:
        """The same inputs for another number of denoising calls; its pictures are others, and so is their sum."""
        asked = self.start.facts.request.model_copy(update={"nfe": nfe})
        return replace(
            self, start=replace(self.start, facts=self.start.facts.model_copy(update={"request": asked}))
        )

    def pack(self) -> bytes:
        """The file. Equal tapes give equal files."""
        runs = tuple(
            Run(held=Held.of(controls), frames=sum(1 for _ in same))
            for controls, same in groupby(self.controls)
        )
        return pack(TapeFacts(start=self.start.facts, runs=runs, sha256=self.sha256), self.start.tensors)

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        write(Path(path), self.pack())

    @classmethod
    def load(cls, path: str | Path) -> Tape:
        """Read a file's tape; errors as `unpack`, and InvalidInputError when it cannot be read."""
        return cls.unpack(read(Path(path)))

    @classmethod
    def unpack(cls, data: bytes) -> Tape:
        """Read a file; whether it fits a world is for `start.check`.

        Raises:
            SnapshotError: it is damaged, of another format, or too long.
        """
        facts, tensors = unpack(data, TapeFacts)
        if (frames := sum(run.frames for run in facts.runs)) > MAX_FRAMES:
            raise SnapshotError(f"the tape has {frames} frames; {MAX_FRAMES} are allowed")
        controls = tuple(held for run in facts.runs for held in [run.held.controls] * run.frames)
        return cls(start=Snapshot(facts=facts.start, tensors=tensors), controls=controls, sha256=facts.sha256)


def add(digest: bytes, frames: Frames) -> bytes:
    """The sum with one more latent frame: SHA-256 of the sum so far and the frame's bytes."""
    total = hashlib.sha256(digest)
    total.update(np.ascontiguousarray(frames).data)
    return total.digest()
