"""The first frame of a video that is given none: drawn by a picture model, in units of the video's own rollout.

    FirstFrame.beside(path, config)     the picture model that a video checkpoint names, if it lies beside it
    request -> begin -> plan ... advance, until there is a latent; it becomes the rollout's `first` as it is

A checkpoint names it in its config: `"picture": {"file": "meadow-picture.safetensors", "unread": ["walking north"]}`.
What is unread says how somebody moves, which a picture model never learned: it is left out of what that model reads.

Owns which prompt and sampler the picture has, and the names of its units. Does not own the units (`picture`), the model
(`causal_pictures`) or the rollout (`video`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.engine.contract import Op, Plan, Result, Work
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.picture import PictureLoop, PictureRequest, PictureState
from worldloop.models.causal import words_of
from worldloop.models.causal_weights import VideoConfig
from worldloop.models.registry import AUTOENCODER

PREFIX = "first_frame."
"""Of the names of its units in a video."""

UNITS = ("encode_text", "noise", "condition", "denoise")
"""Of a picture, all but the decode: the video decodes its own first latent."""


class FirstFrame:
    """Stateless code that draws first frames.

    Args:
        model: of the video's autoencoder.
        size: (height, width) of the video.
        name: the picture model's id.
        unread: phrases that are left out of prompts.
    """

    def __init__(
        self, model: CausalPictures, *, size: tuple[int, int], name: str, unread: Sequence[str] = ()
    ) -> None:
        self.model, self.size, self.name = model, size, name
        self._unread = sorted((words_of(phrase) for phrase in unread), key=len, reverse=True)
        self._loop = PictureLoop(model)

    @classmethod
    def beside(
        cls,
        path: Path,
        config: VideoConfig,
        size: tuple[int, int],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> FirstFrame | None:
        """The picture model that a video checkpoint names; None when it names none, or that is not there.

        Args:
            path: of the video checkpoint.
            config: the checkpoint's.
            size: (height, width) of its pictures.
            device, dtype: of the trunk, as the video's.

        Raises:
            CheckpointError: the picture model is refused, or does not fit the video.
        """
        facts = config.facts.get("picture")
        if facts is None:
            return None
        file, unread = _named(path, facts)
        picture = path.parent / file
        if not picture.is_file():
            return None
        model = CausalPictures.load(
            picture, path.parent / AUTOENCODER, device=device, dtype=dtype, decoder=dtype
        )
        if size not in model.sizes:
            made = ", ".join(f"{width}x{height}" for height, width in model.sizes)
            raise CheckpointError(
                file, f"makes {made}; {path.name}, whose first frames it draws, is {size[1]}x{size[0]}"
            )
        return cls(model, size=size, name=picture.stem.lower(), unread=unread)

    @property
    def weight_bytes(self) -> int:
        """Of its networks on the device."""
        return sum(need.weights for need in self.model.bytes_of(self.size).values())

    @property
    def ops(self) -> Mapping[str, Op]:
        return {PREFIX + name: partial(self._run, name) for name in UNITS}

    def request(self, prompt: str, seed: int) -> PictureRequest:
        """The picture for a video's prompt and seed, sampled as the picture model's own."""
        own = self.model.defaults
        return PictureRequest(
            prompt=self.read_of(prompt), size=self.size, seed=seed, steps=own.steps, guidance=own.guidance,
            shift=own.shift,
        )  # fmt: skip

    def read_of(self, prompt: str) -> str:
        """The words of a prompt that the picture model reads, as many as it can."""
        network, words, kept = self.model.config.model, words_of(prompt), []
        while words:
            gone = next((phrase for phrase in self._unread if words[: len(phrase)] == phrase), None)
            kept += [] if gone or words[0] not in network.vocabulary else words[:1]
            words = words[len(gone) if gone else 1 :]
        return " ".join(kept[: network.text_len])

    def resident_bytes(self, request: PictureRequest) -> int:
        """What it holds while it is drawn. ValueError for what the picture model refuses."""
        return self._loop.price(request).resident_bytes

    def work(self, request: PictureRequest) -> tuple[Work, ...]:
        """All of it."""
        return tuple(
            replace(work, op=PREFIX + work.op) for work in self._loop.work(request) if work.op in UNITS
        )

    def begin(self, request: PictureRequest) -> PictureState:
        """ValueError for what the picture model refuses."""
        return self._loop.init(request)

    def plan(self, drawing: PictureState) -> Plan:
        """The next unit."""
        plan = self._loop.next(drawing)
        assert isinstance(plan, Plan)
        return replace(plan, op=PREFIX + plan.op, label=PREFIX + plan.label)

    def advance(self, drawing: PictureState, result: Result) -> Tensor | None:
        """Take a unit's result; after the last step the latent `[C, y, x]`."""
        self._loop.advance(drawing, result)
        latent = self._loop.latent(drawing)
        return None if latent is None else latent.latent

    def units_left(self, drawing: PictureState) -> int:
        """Units until there is a latent."""
        done, of = self._loop.progress(drawing)
        return of - done - self.model.pieces(self.size)

    def _run(self, name: str, plan: Plan) -> Result:
        made = self._loop.ops[name](replace(plan, op=name))
        return Result(outputs={"op": "first_frame", "result": made})


def _named(path: Path, facts: Any) -> tuple[str, list[str]]:
    """(file, unread) of a checkpoint's `picture`."""
    file, unread = (facts.get("file"), facts.get("unread")) if isinstance(facts, dict) else (None, None)
    whole = isinstance(file, str) and Path(file).name == file and isinstance(unread, list)
    if not whole or not all(isinstance(phrase, str) and words_of(phrase) for phrase in unread or []):
        raise CheckpointError(
            path.name, f"picture={facts!r} must be a file name and a list of phrases: file, unread"
        )
    return str(file), list(unread or [])
