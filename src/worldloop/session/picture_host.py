"""What the session and server layers ask of whoever makes pictures. Implemented outside them and injected.

Owns the shapes of orders, news and results, and a result's receipt; no tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError
from worldloop.core.receipt import Receipt
from worldloop.session.line import QueueFullError


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureFacts:
    """What is served.

    Attributes:
        model: its id.
        size: (height, width) unless the request says otherwise.
        sizes: the only ones that there are, or None for any multiple of `multiple` of at most `max_pixels` pixels.
        steps, guidance, shift: unless the request says otherwise.
        steps_max: most that may be asked for.
        prompt_max: characters of a prompt.
    """

    model: str
    size: tuple[int, int]
    sizes: tuple[tuple[int, int], ...] | None
    multiple: int
    max_pixels: int
    steps: int
    guidance: float
    shift: float
    steps_max: int = 200
    prompt_max: int = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureOrder:
    """What a picture is made from. The same order gives the same bytes on one machine and build.

    Attributes:
        size: (height, width) in pixels.
        seed: in [0, 2**32).
        previews: pictures on the way, evenly spread over the steps.
    """

    prompt: str
    negative: str
    size: tuple[int, int]
    seed: int
    steps: int
    guidance: float
    shift: float
    previews: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """News of a picture in the making: passes done of all, and maybe a preview, uint8 `[H, W, 3]`."""

    done: int
    steps: int
    preview: NDArray[np.uint8] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A finished picture.

    Attributes:
        pixels: uint8 `[H, W, 3]`.
        order: what it was made from.
        steps: made, after duplicates were dropped.
        noise_hash, pixel_hash, model_hash: SHA-256, hexadecimal.
        device_s: seconds of the device by phase.
        latent: the host's own: what a world begins from without encoding the pixels, or None.
    """

    pixels: NDArray[np.uint8]
    order: PictureOrder
    steps: int
    noise_hash: str
    pixel_hash: str
    model_hash: str
    device_s: Mapping[str, float]
    latent: Any = None


class PictureJob(Protocol):
    """A picture in the making."""

    def take(self) -> Future[Step | Picture]:
        """The next news; a `Picture` is the last. Fails when there will be no picture."""
        ...

    def close(self) -> None:
        """End it before its next unit of work. May be called twice, from any thread."""
        ...


class PictureHost(Protocol):
    """The device side. Every method may be called from any thread."""

    @property
    def facts(self) -> PictureFacts: ...

    @property
    def machine(self) -> Mapping[str, Any]:
        """What bytes depend on besides order and checkpoint, for receipts: device, formats, threads, versions."""
        ...

    @property
    def lost(self) -> str | None:
        """Why the device is out of service, or None."""
        ...

    def admit(self, size: tuple[int, int]) -> None:
        """Raise `PictureTooLargeError` when a picture of this size does not fit; no device work, well under 20 ms."""
        ...

    def start(self, order: PictureOrder) -> PictureJob:
        """Begin; blocks for a moment.

        Raises:
            InvalidInputError: the model cannot do this.
            CapacityError: it does not fit beside what runs.
        """
        ...

    def seconds_left(self, order: PictureOrder, done: int = 0) -> float | None:
        """How long the rest of a picture takes, as measured; None while that is unknown."""
        ...


class PictureTooLargeError(InvalidInputError):
    """A picture of this size does not fit; `largest` is the largest size that does, (height, width), or None."""

    http_status = 413

    def __init__(self, message: str, largest: tuple[int, int] | None) -> None:
        super().__init__(message)
        self.largest = largest


class PictureQueueFullError(QueueFullError):
    """No more pictures may wait."""

    http_status = 429


def receipt_of(picture: Picture, host: PictureHost, *, format: str, file: bytes) -> Receipt:
    """The receipt of a picture that `host` made and that `file` holds in a format of `codec.still.FILES`."""
    order = {field: getattr(picture.order, field) for field in PictureOrder.__slots__ if field != "previews"}
    return Receipt(
        order=order,
        steps=picture.steps,
        format=format,
        model=host.facts.model,
        model_hash=picture.model_hash,
        noise_hash=picture.noise_hash,
        pixel_hash=picture.pixel_hash,
        file_hash=hashlib.sha256(file).hexdigest(),
        machine=host.machine,
    )
