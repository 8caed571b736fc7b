"""What the picture loop asks of a model: words to a condition, noise, a prediction a pass, and latents to a picture.

Owns the seam and the arithmetic of phases. Does not own a picture's state (`picture`) or any network. A model is
read-only while it runs, but for where its weights lie, which only `place` changes. Shapes: x is a model's own latents;
every method that takes `size` means (height, width) in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Phase = Literal["encode", "denoise", "decode"]
PHASES: tuple[Phase, ...] = ("encode", "denoise", "decode")
Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseBytes:
    """What one phase needs on the device: its weights, and further bytes while one of its units runs, x included."""

    weights: int
    scratch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureDefaults:
    """How a model samples unless a request says otherwise.

    Attributes:
        size: (height, width).
        steps: denoising steps before duplicates are dropped.
        guidance: scale; at exactly 1 the pass without the prompt is skipped.
        shift: of the schedule.
    """

    size: Size
    steps: int
    guidance: float
    shift: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StartLatent:
    """A finished picture as the first latent of a world or video.

    Attributes:
        latent: gaussianised, float32 `[C, y, x]`, on the CPU.
        autoencoder: SHA-256 of the autoencoder's file; only a world with the same one may take it.
    """

    latent: Tensor
    autoencoder: str


class PictureModel(Protocol):
    """One text-to-picture model.

    Attributes:
        defaults: see `PictureDefaults`.
        multiple: heights and widths are multiples of it, in pixels.
        sizes: the only sizes that it makes, or None for any multiple up to `max_pixels`.
        max_pixels: of one picture.
        file_hash: SHA-256 that tells this checkpoint from every other one, hexadecimal.
        device: where x is while passes run.
        machine: what the bytes depend on besides the checkpoint and the order: number formats, libraries.
    """

    @property
    def defaults(self) -> PictureDefaults: ...

    @property
    def multiple(self) -> int: ...

    @property
    def sizes(self) -> tuple[Size, ...] | None: ...

    @property
    def max_pixels(self) -> int: ...

    @property
    def file_hash(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def machine(self) -> Mapping[str, str]: ...

    def bytes_of(self, size: Size) -> Mapping[Phase, PhaseBytes]:
        """What each phase needs for a picture of this size; arithmetic only."""
        ...

    def place(self, phases: frozenset[Phase]) -> None:
        """Have the weights of these phases on the device and no others'. Device thread; cheap when nothing changes."""
        ...

    def check_text(self, prompt: str) -> None:
        """Refuse a prompt before anything runs; no device work.

        Raises:
            ValueError: it is too long; the message says how long it is and may be.
        """
        ...

    def encode_text(self, prompt: str) -> Any:
        """Phase encode: what the network reads of a prompt that `check_text` lets pass; the empty one says nothing."""
        ...

    def noise(self, seed: int, size: Size) -> Tensor:
        """The x that a picture begins with, on the CPU, float32: a pure function, the same on every machine."""
        ...

    def schedule(self, steps: int, shift: float) -> tuple[float, ...]:
        """Sigmas from the first pass to 0; one more than the passes that are made. ValueError when out of range."""
        ...

    def timestep(self, sigma: float) -> float:
        """What the network is told of a sigma."""
        ...

    def condition(self, text: Any, size: Size) -> Any:
        """Phase denoise, once a picture and branch: everything that does not depend on the timestep."""
        ...

    def predict(
        self, x: Tensor, sigma: float, condition: Any, *, step: int, steps: int, negative: bool
    ) -> Tensor:
        """Phase denoise: the velocity at `sigma` in float32, shaped as x; changes nothing.

        Args:
            step, steps: which of how many.
            negative: whether `condition` is that of the branch without the prompt.
        """
        ...

    def advance(
        self, x: Tensor, velocity: Tensor, sigma: float, after: float, *, seed: int, step: int
    ) -> Tensor:
        """x after the step from `sigma` to `after`."""
        ...

    def pieces(self, size: Size) -> int:
        """How many pieces of work a decode is, at least 1."""
        ...

    def decode(self, value: Tensor, piece: int, size: Size) -> Tensor:
        """Phase decode, one piece of work; changes nothing, so that it may be run twice.

        Args:
            value: finished x for piece 0, else what the piece before gave.
            piece: in [0, `pieces(size)`).

        Returns:
            What the next piece takes; the last piece gives bytes `[H, W, 3]`.
        """
        ...

    def clean(self, x: Tensor, velocity: Tensor, sigma: float) -> Tensor:
        """x0 as it is predicted now, for a preview."""
        ...

    def start_latent(self, x: Tensor, size: Size) -> StartLatent | None:
        """Finished x as a world's first latent; None when no world has this model's autoencoder."""
        ...


def resident(needs: Mapping[Phase, PhaseBytes]) -> int:
    """Peak bytes when every phase's weights stay on the device."""
    return sum(need.weights for need in needs.values()) + max(need.scratch for need in needs.values())


def one_by_one(needs: Mapping[Phase, PhaseBytes]) -> int:
    """Peak bytes when only the running phase's weights are on the device."""
    return max(need.weights + need.scratch for need in needs.values())
