"""What a Python user holds: a world, and sessions in it.

    world = worldloop.load_world("meadow")
    session = world.start("photo.jpg", seed=0)
    frames = session.step({"w"})            # uint8 [4, H, W, 3]

Owns convenience only; `host` does the work.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.still import cover_crop, read_picture
from worldloop.core.errors import InvalidInputError
from worldloop.core.types import KEYS, Controls
from worldloop.engine.contract import Frames
from worldloop.host import LiveGame, WorldHost
from worldloop.session.host import GameOptions

PictureLike = str | Path | bytes | NDArray[np.uint8]
"""A start picture: a file, a file's bytes, a shipped picture's name, or uint8 `[H, W, 3]` of any size."""


class Session:
    """One running world. Use as a context manager, or call `close`.

    Attributes:
        first: the start picture as the model sees it, uint8 `[1, H, W, 3]`.
        frames_made: latent frames since the start picture.
    """

    def __init__(self, game: LiveGame, fps: float | None) -> None:
        self._game = game
        self._fps = fps
        self.first: Frames = game.submit(Controls(fps=fps)).result().frames
        self.frames_made = 0

    def step(self, keys: Iterable[str] = ()) -> Frames:
        """Hold `keys` (of w a s d left right space shift) for one latent frame.

        Returns:
            The pictures that follow, uint8 `[4, H, W, 3]`.

        Raises:
            InvalidInputError: an unknown key.
            SessionEndedError: the session is over.
        """
        held = frozenset(keys)
        if unknown := held - set(KEYS):
            raise InvalidInputError(f"unknown keys {sorted(unknown)}; have {list(KEYS)}")
        emit = self._game.submit(Controls(pressed=held, fps=self._fps)).result()
        self.frames_made += 1
        return emit.frames

    def close(self) -> None:
        """End the session and free its memory."""
        self._game.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class World:
    """A loaded world. Use as a context manager, or call `close`.

    Args:
        host: what runs it.
        name: to find shipped pictures by name.
    """

    def __init__(self, host: WorldHost, name: str) -> None:
        self._host = host
        self._name = name

    @property
    def picture_size(self) -> tuple[int, int]:
        """(height, width) of the pictures."""
        return self._host.frame_size

    def start(
        self,
        picture: PictureLike,
        *,
        seed: int = 0,
        nfe: int | None = None,
        nfe_mode: str = "repeat",
        sphere: str = "off",
        reprefill_every: int = 0,
        fps: float | None = 12.0,
    ) -> Session:
        """Begin a session. The same picture, seed and keys give the same bytes.

        Args:
            picture: scaled to cover the world's size and cropped in the middle, never stretched.
            seed: in [0, 2**32).
            nfe, nfe_mode, sphere, reprefill_every: see `loops.world.WorldRequest`.
            fps: the frame rate that the model is told, or None for no action and no rate.

        Raises:
            PictureError: the picture cannot be read.
            InvalidInputError: a choice does not fit the model.
        """
        height, width = self._host.frame_size
        pixels = cover_crop(self._read(picture), height=height, width=width)
        options = GameOptions(nfe=nfe, nfe_mode=nfe_mode, sphere=sphere, reprefill_every=reprefill_every)
        return Session(self._host.start(self._host.encode(pixels), options=options, seed=seed), fps)

    def pictures(self) -> list[str]:
        """Names of the start pictures that ship with this world."""
        return sorted(path.stem for path in _pictures(self._name).glob("*.png"))

    def close(self) -> None:
        """End every session and free the device."""
        self._host.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, picture: PictureLike) -> NDArray[np.uint8]:
        if isinstance(picture, np.ndarray):
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise InvalidInputError(
                    f"a picture array is uint8 [H, W, 3]; got {picture.dtype} {picture.shape}"
                )
            return picture
        if isinstance(picture, bytes):
            return read_picture(picture)
        if isinstance(picture, str) and picture in self.pictures():
            path = _pictures(self._name) / f"{picture}.png"
        else:
            path = Path(picture)
        if not path.is_file():
            raise InvalidInputError(f"no picture {str(picture)!r}: give a file, or one of {self.pictures()}")
        return read_picture(path.read_bytes(), filename=path.name)


def load_world(name_or_path: str | Path = "meadow", **choices: Any) -> World:
    """Load a shipped world by name, or a checkpoint by path.

    Args:
        name_or_path: such as `meadow`, a folder of checkpoints, or one checkpoint.
        choices: `device`, `dtype`, `threads` and the others of `host.WorldHost.open`.

    Raises:
        InvalidInputError: there is no such world.
        CheckpointError: a file is refused; the message says why.
    """
    name = str(name_or_path)
    return World(WorldHost.open(name, **choices), Path(name).name)


def _pictures(name: str) -> Path:
    return Path(__file__).parent / "assets" / "pictures" / name
