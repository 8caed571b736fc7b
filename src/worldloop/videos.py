"""Videos from text for a Python user: rollouts that may have no end, change their prompt, and be gone on with.

    maker = worldloop.load_video("meadow")
    clip = maker.make("a lake in the east, walking north", seconds=4, seed=7)       # uint8 [T, H, W, 3]
    with maker.roll("a lake in the east, walking north", seed=7) as roll:           # without an end
        for frames in itertools.islice(roll, 20): ...
        roll.prompt("walking west")

Owns convenience only; `video_host` does the work, the same as for a server's orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worldloop.codec.still import cover_crop, read_picture
from worldloop.core.errors import InvalidInputError, NotReadyError
from worldloop.engine.contract import Frames
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.failures import classify
from worldloop.loops.video import VideoState
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import PromptChange
from worldloop.models import device as devices
from worldloop.models.registry import find_video
from worldloop.video_host import VideoHost


class Roll:
    """One rollout: iterate over it for its chunks, uint8 `[T, H, W, 3]` each.

    Use as a context manager, or call `close`. It is made at most two chunks ahead of what was taken.
    """

    def __init__(self, handle: Handle[VideoState], model: VideoModel) -> None:
        self._handle, self._model = handle, model

    def __iter__(self) -> Iterator[Frames]:
        return self

    def __next__(self) -> Frames:
        emit = self._handle.take().result()
        if emit is None:
            raise StopIteration
        return emit.frames

    def prompt(self, text: str) -> None:
        """Go on under another prompt, from the next chunk that is begun.

        Raises:
            InvalidInputError: the model cannot read it.
        """
        self._handle.submit(PromptChange(_text(self._model, text)))

    @property
    def latents(self) -> Tensor:
        """Every latent frame of a rollout that is over, `[T, C, y, x]`: what `VideoMaker.roll` goes on from.

        Raises:
            NotReadyError: it is not over, or it has no end.
            SessionEndedError: it was closed before.
        """
        if not self._handle.done.done():
            raise NotReadyError("the rollout is not over: take all of it first, or give it an end (seconds)")
        latents: Tensor = self._handle.done.result().latents
        return latents

    def close(self) -> None:
        """End it before its next pass."""
        self._handle.close("the rollout was closed")

    def __enter__(self) -> Roll:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class VideoMaker:
    """A loaded video model. Use as a context manager, or call `close`.

    Args:
        engine: whose thread runs it; closed with this.
        host: on that engine.
    """

    def __init__(self, engine: Engine, host: VideoHost) -> None:
        self._engine, self.host = engine, host

    @property
    def fps(self) -> float:
        """Pictures a second."""
        return self.host.fps

    def roll(
        self,
        prompt: str,
        *,
        seconds: float | None = None,
        seed: int = 0,
        first: str | Path | bytes | NDArray[np.uint8] | None = None,
        draw: bool = True,
        after: Tensor | None = None,
        negative: str | None = None,
        guidance: float | None = None,
        steps: int | None = None,
        solver: str | None = None,
        shift: float | None = None,
    ) -> Roll:
        """Begin a rollout. The same arguments give the same bytes on one machine and build.

        Args:
            seconds: at least so many, in whole chunks; None for no end.
            seed: in [0, 2**32).
            first: picture that it begins with: a file, its bytes or uint8 `[H, W, 3]`, scaled to cover and cropped.
            draw: whether the picture model beside the video model draws the first frame where none is given.
            after: `Roll.latents` of an earlier rollout; this one goes on from there.
            negative: what it shall not show; not read at guidance 1.
            guidance, steps, solver, shift: None is the checkpoint's own.

        Raises:
            InvalidInputError: the model cannot do this, or the first picture cannot be read.
            CapacityError: it does not fit beside what runs.
        """
        pictures = None if seconds is None else self._pictures(seconds)
        told = None if negative is None else _text(self.host.model, negative)
        try:
            request = self.host.request(
                prompt, seed, pictures, first=None if first is None else self._read(first), draw=draw, context=after,
                negative=told, guidance=guidance, steps=steps, solver=solver, shift=shift,
            )  # fmt: skip
            return Roll(self.host.open(request), self.host.model)
        except ValueError as error:
            raise InvalidInputError(str(error)) from error

    def make(self, prompt: str, *, seconds: float = 4.0, **choices: Any) -> Frames:
        """A whole clip, uint8 `[T, H, W, 3]`; blocks. `choices` as of `roll`, which says what is raised."""
        pictures = self._pictures(seconds)
        with self.roll(prompt, seconds=seconds, **choices) as roll:
            return np.concatenate(list(roll))[:pictures]

    def close(self) -> None:
        """End every rollout and free the device."""
        self._engine.close()

    def __enter__(self) -> VideoMaker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pictures(self, seconds: float) -> int:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
            raise InvalidInputError(f"seconds={seconds!r} must be a number above 0")
        return math.ceil(seconds * self.fps)

    def _read(self, picture: str | Path | bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
        if isinstance(picture, str | Path):
            path = Path(picture)
            if not path.is_file():
                raise InvalidInputError(f"no picture {str(picture)!r}")
            picture = read_picture(path.read_bytes(), filename=path.name)
        elif isinstance(picture, bytes):
            picture = read_picture(picture)
        elif not isinstance(picture, np.ndarray):
            raise InvalidInputError(f"a picture is a file, its bytes or uint8 [H, W, 3]; got {picture!r}")
        height, width = self.host.frame_size
        return cover_crop(picture, height=height, width=width)


def load_video(
    name_or_path: str | Path = "meadow", *, device: str = "auto", dtype: str = "auto", threads: int = 0
) -> VideoMaker:
    """Load the video model of a shipped world by name, or a checkpoint or its folder by path.

    Args:
        device, dtype, threads: as the settings of these names.

    Raises:
        InvalidInputError: there is none.
        CheckpointError: a file is refused; the message says why.
    """
    name = str(name_or_path)
    path = find_video(name, "") if Path(name).exists() else find_video("", name)
    if path is None:
        raise InvalidInputError(f"world {name!r} has no video model (*-video.safetensors)")
    devices.set_threads(threads)
    place = devices.pick_device(device)
    engine = Engine(classify=classify, relieve=lambda: devices.free_cache(place))
    try:
        return VideoMaker(engine, VideoHost(engine, path, device=place, dtype=dtype))
    except BaseException:
        engine.close()
        raise


def _text(model: VideoModel, text: str) -> Tensor:
    try:
        return model.encode_text(text)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
