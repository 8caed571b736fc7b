"""The device side of videos on order: one video model, and rollouts of it in an engine that worlds may share.

Owns loading, turning an order into a rollout of the right length, and writing one to a file. Implements
`session.videos.VideoHost`. Does not own the queue or its files (`session.videos`), nor the server's engine. Assembled
by the command line.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worldloop.codec.fmp4 import FragmentWriter
from worldloop.codec.still import cover_crop, read_picture
from worldloop.core.errors import InvalidInputError
from worldloop.core.files import check_writable, replacing
from worldloop.core.settings import Settings
from worldloop.engine.contract import Emit, Price
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.failures import classify
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.video import VideoLoop, VideoState
from worldloop.loops.video_model import VideoModel, pictures_before
from worldloop.loops.video_request import VideoRequest
from worldloop.models import device as devices
from worldloop.models.autoencoder import GROUP
from worldloop.models.precision import Precision
from worldloop.models.registry import AUTOENCODER, find_video
from worldloop.session.videos import VideoOrder, first_frame_of, pictures_of
from worldloop.wire.videos import check_prompt

OFF = "off"
NO_FIRST_FRAME = Path("none")
"""As `first_frame`: the video model begins by itself."""


class VideoHost:
    """One video model on one device.

    Args:
        engine: whose thread runs it; the caller's to close.
        path: of the checkpoint; its autoencoder lies beside it, and the picture model that draws its first frames.
        device: where it runs.
        dtype: `auto`, `bf16` or `fp32`; `autocast` counts as `bf16`.

    Raises:
        CheckpointError: a file is refused.
        InvalidInputError: this device cannot do what is asked.
    """

    def __init__(self, engine: Engine, path: Path, *, device: torch.device, dtype: str = "auto") -> None:
        self.engine = engine
        self.model_id = path.stem.lower()
        precision = Precision.choose(dtype=dtype, device=device)
        format_ = precision.memory
        self.model = engine.call(
            lambda: VideoModel.load(path, path.parent / AUTOENCODER, device=device, dtype=format_)
        )
        config, size = self.model.config, self.frame_size
        first = engine.call(lambda: FirstFrame.beside(path, config, size, device=device, dtype=format_))
        weights = sum(parameter.nbytes for parameter in self.model.network.parameters())
        engine.admission.hold("video", weights + (0 if first is None else first.weight_bytes))
        self._loop = VideoLoop(self.model, first)
        # Work is the same for every prompt and seed, and time left is asked for often.
        chunk = VideoRequest(prompt=self.model.empty_text, seed=0, latent_frames=config.chunk_frames)
        self._chunk = self._loop.price(chunk)
        self._drawn = None if first is None else Price(chunk=first.work(first.request("", 0)))

    @classmethod
    def from_settings(cls, settings: Settings, engine: Engine) -> VideoHost | None:
        """The host that a server's settings ask for, or None; errors as `VideoHost` and `registry.find_video`."""
        path = None if settings.video == OFF else find_video(settings.video, settings.world)
        if path is None:
            return None
        return cls(engine, path, device=devices.pick_device(settings.device), dtype=settings.dtype)

    @property
    def frame_size(self) -> tuple[int, int]:
        return self.model.pictures.picture_hw

    @property
    def fps(self) -> float:
        return self.model.config.fps

    @property
    def draws_with(self) -> str | None:
        """Id of the picture model that draws first pictures, or None."""
        return None if self._loop.first_frame is None else self._loop.first_frame.name

    def start(self, order: VideoOrder) -> VideoRollout:
        """Begin; blocks while its first picture is encoded and its memory made.

        Raises:
            InvalidInputError: the model cannot do this.
            CapacityError: it does not fit beside what runs.
        """
        pictures = pictures_of(order.seconds, self.fps)
        try:
            request = self.request(order.prompt, order.seed, pictures, first=order.first, draw=order.draws)
            return VideoRollout(self.open(request), pictures)
        except ValueError as error:
            raise InvalidInputError(str(error)) from error

    def request(
        self,
        prompt: str,
        seed: int,
        pictures: int | None,
        *,
        first: NDArray[np.uint8] | None = None,
        draw: bool = False,
        context: torch.Tensor | None = None,
        **wishes: Any,
    ) -> VideoRequest:
        """What rolls out so many pictures at least, or without an end.

        Args:
            first: uint8 `[H, W, 3]` of `frame_size`.
            draw: whether a first frame is drawn where none is given, as far as there is a picture model for it.
            context, wishes: fields of `VideoRequest`.

        Raises:
            ValueError: the model cannot read the prompt.
        """
        painter, chunk = self._loop.first_frame, self.model.config.chunk_frames
        drawing = (
            painter.request(prompt, seed) if painter and draw and first is None and context is None else None
        )
        latents = None
        if pictures is not None and context is not None:
            latents = chunk * math.ceil(pictures / (GROUP * chunk))
        elif pictures is not None:
            latents = latents_of(pictures, chunk, first=first is not None or drawing is not None)
        return VideoRequest(
            prompt=self.model.encode_text(prompt), seed=seed, latent_frames=latents, draw=drawing, context=context,
            first=None if first is None else self._encode(first), **wishes,
        )  # fmt: skip

    def open(self, request: VideoRequest) -> Handle[VideoState]:
        """A session of the engine whose chunks are taken. Raises what `VideoLoop.init` and the engine raise."""
        return self.engine.open(self._loop, request, keep_chunks=True)

    def seconds_left(self, order: VideoOrder, made: int) -> float | None:
        """How long an order takes from `made` pictures on, as measured; None while that is unknown."""
        pictures = pictures_of(order.seconds, self.fps) - made
        chunks = math.ceil(pictures / (GROUP * self.model.config.chunk_frames))
        left = self.engine.seconds_left(self._chunk, chunks=chunks)
        if left is None or made or self._drawn is None or not order.draws:
            return left
        drawing = self.engine.seconds_left(self._drawn, chunks=1)
        return None if drawing is None else left + drawing

    def _encode(self, picture: NDArray[np.uint8]) -> torch.Tensor:
        # On the device thread: a second thread that computes slows the first down.
        pixels = torch.from_numpy(np.ascontiguousarray(picture))
        return self.engine.call(lambda: self.model.pictures.encode(pixels))


class VideoRollout:
    """A session of the engine, cut to a number of pictures. Implements `session.videos.Rollout`."""

    def __init__(self, handle: Handle[VideoState], pictures: int) -> None:
        self._handle = handle
        self._left = pictures

    def take(self) -> Future[NDArray[np.uint8] | None]:
        """The next pictures, uint8 `[T, H, W, 3]`; None after the last."""
        taken: Future[NDArray[np.uint8] | None] = Future()
        taken.set_running_or_notify_cancel()
        self._handle.take().add_done_callback(lambda made: self._pass_on(made, taken))
        return taken

    def close(self) -> None:
        """End it before its next pass. May be called twice, from any thread."""
        self._handle.close("the video was deleted")

    def _pass_on(self, made: Future[Emit | None], taken: Future[NDArray[np.uint8] | None]) -> None:
        if (error := made.exception()) is not None:
            taken.set_exception(error)
        elif (emit := made.result()) is None:
            taken.set_result(None)
        else:
            frames = emit.frames[: self._left]
            self._left -= len(frames)
            taken.set_result(frames)


def latents_of(pictures: int, chunk: int, *, first: bool) -> int:
    """The fewest latent frames, in whole chunks after the first frame, that hold so many pictures."""
    least = 1 if first else chunk
    missing = pictures - pictures_before(least)
    return least + chunk * max(0, math.ceil(missing / (GROUP * chunk)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What `write_video` made; `first_frame` as of `first_frame_of`."""

    pictures: int
    seed: int
    first_frame: str


def write_video(
    settings: Settings,
    out: Path,
    *,
    prompt: str,
    seconds: int,
    seed: int | None = None,
    first_frame: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Written:
    """Make one video into a file, which appears whole or not at all; blocks.

    Args:
        settings: which model, on which device.
        seed: None draws one.
        first_frame: a picture's file; None is drawn by the picture model beside the video model, if there is one, and
            `NO_FIRST_FRAME` leaves it to the video model.
        on_progress: told pictures made, and how many there will be.

    Raises:
        InvalidInputError: a value is out of range, no video model is there, or the file cannot be written.
        CheckpointError: a file is refused.
    """
    check_prompt(prompt)
    check_writable(out)
    if not 1 <= seconds <= settings.video_seconds_max:
        raise InvalidInputError(f"seconds {seconds} must be in 1..{settings.video_seconds_max}")
    devices.set_threads(settings.threads)
    device = devices.pick_device(settings.device)
    engine = Engine(classify=classify, relieve=lambda: devices.free_cache(device))
    try:
        host = VideoHost.from_settings(settings, engine)
        if host is None:
            raise InvalidInputError("no video model: give --model, or a world that has one")
        height, width = host.frame_size
        first = None
        if first_frame is not None and first_frame != NO_FIRST_FRAME:
            picture = read_picture(first_frame.read_bytes(), filename=first_frame.name)
            first = cover_crop(picture, height=height, width=width)
        order = VideoOrder(
            prompt=prompt,
            seconds=seconds,
            seed=secrets.randbelow(2**32) if seed is None else seed,
            first=first,
            drawn=first_frame is None,
        )
        writer = FragmentWriter(height=height, width=width, fps=host.fps)
        pictures, made = pictures_of(seconds, host.fps), 0
        rollout = host.start(order)
        with replacing(out) as partial, partial.open("wb") as file:
            while (frames := rollout.take().result()) is not None:
                file.write(writer.write(frames))
                made += len(frames)
                on_progress(made, pictures)
    except OSError as error:
        raise InvalidInputError(f"{Path(error.filename or out).name}: {error.strerror}") from None
    finally:
        engine.close()
    return Written(pictures=made, seed=order.seed, first_frame=first_frame_of(order, host.draws_with))
