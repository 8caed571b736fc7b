"""Pictures from text for a Python user, and for the command line.

    maker = worldloop.load_picture("meadow")
    picture = maker.make("a lake in the east, pine forest", seed=7)
    picture.pixels                              # uint8 [H, W, 3]
    session = worldloop.load_world("meadow").start(picture)

A world of the same autoencoder begins from the picture's latent: no file and no encoder in between. Owns convenience
only; `picture_host` does the work, the same as for a server's orders, so the bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch

from worldloop.core.errors import InvalidInputError
from worldloop.core.settings import Settings
from worldloop.engine.engine import Engine
from worldloop.loops.failures import classify
from worldloop.models import device as devices
from worldloop.models.registry import find_picture
from worldloop.picture_host import OFF, PictureHost
from worldloop.session.picture_host import Picture, PictureOrder, Step


class PictureMaker:
    """A loaded picture model. Use as a context manager, or call `close`.

    Args:
        engine: whose thread runs it; closed with this.
        host: on that engine.
    """

    def __init__(self, engine: Engine, host: PictureHost) -> None:
        self._engine, self.host = engine, host

    @classmethod
    def from_settings(cls, settings: Settings) -> PictureMaker:
        """What a server with these settings makes pictures with.

        Raises:
            InvalidInputError: there is no picture model, or this device cannot do what is asked.
            CheckpointError: a file is refused.
        """

        def load(engine: Engine) -> PictureHost:
            host = PictureHost.from_settings(settings, engine)
            if host is None:
                where = "picture=off" if settings.picture == OFF else f"world {settings.world!r} has none"
                raise InvalidInputError(
                    f"no picture model ({where}): give one, or a world that has a *-picture.safetensors"
                )
            return host

        return cls._on(devices.pick_device(settings.device), settings.threads, load)

    @classmethod
    def load(cls, path: Path, *, device: str = "auto", threads: int = 0, **formats: str) -> PictureMaker:
        """A checkpoint or a pipeline's folder; `formats` as of `PictureHost.load`, which says what is raised."""
        place = devices.pick_device(device)
        return cls._on(place, threads, lambda engine: PictureHost.load(engine, path, device=place, **formats))

    @classmethod
    def _on(cls, device: torch.device, threads: int, load: Callable[[Engine], PictureHost]) -> PictureMaker:
        devices.set_threads(threads)
        engine = Engine(classify=classify, relieve=lambda: devices.free_cache(device))
        try:
            return cls(engine, load(engine))
        except BaseException:
            engine.close()
            raise

    @property
    def sizes(self) -> tuple[tuple[int, int], ...] | None:
        """(height, width) of what it makes; None for any multiple of `host.facts.multiple` that fits."""
        return self.host.facts.sizes

    def make(
        self,
        prompt: str,
        *,
        seed: int = 0,
        size: tuple[int, int] | None = None,
        negative: str = "",
        steps: int | None = None,
        guidance: float | None = None,
        shift: float | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
    ) -> Picture:
        """Make one picture; blocks. The same arguments give the same bytes on one machine and build.

        Args:
            prompt: what it shows.
            seed: of the noise, in [0, 2**32).
            size: (height, width).
            negative: what it shall not show; not read at guidance 1.
            steps, guidance, shift: None is the model's own.
            on_step: told after every step.

        Raises:
            InvalidInputError: a value is out of range, or the picture does not fit the device.
            DeviceMemoryError: the device ran out of memory all the same.
        """
        facts = self.host.facts
        order = PictureOrder(
            prompt=prompt,
            negative=negative,
            size=facts.size if size is None else size,
            seed=seed,
            steps=facts.steps if steps is None else steps,
            guidance=facts.guidance if guidance is None else guidance,
            shift=facts.shift if shift is None else shift,
        )
        return self.make_order(order, on_step=on_step)

    def make_order(self, order: PictureOrder, *, on_step: Callable[[Step], None] = lambda _: None) -> Picture:
        """`make` for a whole order."""
        job = self.host.start(order)
        try:
            while not isinstance(news := job.take().result(), Picture):
                on_step(news)
        finally:
            job.close()
        return news

    def close(self) -> None:
        """Free the device."""
        self._engine.close()

    def __enter__(self) -> PictureMaker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_picture(
    name_or_path: str | Path = "meadow",
    *,
    device: str = "auto",
    dtype: str = "auto",
    decoder_dtype: str = "auto",
    threads: int = 0,
) -> PictureMaker:
    """Load the picture model of a shipped world by name, or a checkpoint, its folder or a pipeline's folder by path.

    Args:
        device, dtype, decoder_dtype, threads: as the settings of these names.

    Raises:
        InvalidInputError: there is none.
        CheckpointError: a file is refused; the message says why.
    """
    name = str(name_or_path)
    path = find_picture(name, "") if Path(name).exists() else find_picture("", name)
    if path is None:
        raise InvalidInputError(f"world {name!r} has no picture model (*-picture.safetensors)")
    return PictureMaker.load(path, device=device, threads=threads, dtype=dtype, decoder_dtype=decoder_dtype)
