"""What a Python user holds: a world, and sessions in it.

    world = worldloop.load_world("meadow")
    session = world.start("photo.jpg", seed=0)
    frames = session.step({"w"})            # uint8 [4, H, W, 3]

Owns convenience only; `host` does the work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.still import cover_crop, read_picture
from worldloop.core.errors import InvalidInputError
from worldloop.core.settings import Settings
from worldloop.core.types import KEYS, Controls
from worldloop.engine.contract import Frames
from worldloop.host import WorldHost
from worldloop.loops.live import LiveGame
from worldloop.loops.snapshot import Snapshot, read
from worldloop.loops.tape import Tape
from worldloop.session.host import GameOptions, StartFrame
from worldloop.session.picture_host import Picture

if TYPE_CHECKING:
    from worldloop.trainer.card import Card

CHECKED = set(inspect.signature(WorldHost.open).parameters) & set(Settings.model_fields) - {
    "world",
    "serve_recency",
}
"""Choices of `load_world` that have the ranges of the settings of their names."""

PictureLike = str | Path | bytes | NDArray[np.uint8] | Picture
"""A start picture: a file, a file's bytes, a shipped picture's name, uint8 `[H, W, 3]` of any size, or one that
`load_picture` made."""


class Session:
    """One running world. Use as a context manager, or call `close`.

    Attributes:
        first: the start picture as the model sees it, uint8 `[1, H, W, 3]`.
        frames_made: latent frames since the start picture.
    """

    def __init__(self, host: WorldHost, game: LiveGame, fps: float | None, *, made: int = 0) -> None:
        self._host = host
        self._game = game
        self._fps = fps
        self.first: Frames = game.start_picture() if made else game.submit(Controls(fps=fps)).result().frames
        self.frames_made = max(0, made - 1)

    def step(self, keys: Iterable[str] = ()) -> Frames:
        """Hold `keys` (of w a s d left right space shift) for one latent frame.

        Returns:
            The pictures that follow, uint8 `[4, H, W, 3]`.

        Raises:
            InvalidInputError: an unknown key.
            SessionEndedError: the session is over.
        """
        return self.submit(keys)()

    def submit(self, keys: Iterable[str] = ()) -> Callable[[], Frames]:
        """`step` in two halves, so that several sessions can be at work: ask here, call the answer to wait.

        Raises:
            InvalidInputError: an unknown key.
        """
        held = frozenset(keys)
        if unknown := held - set(KEYS):
            raise InvalidInputError(f"unknown keys {sorted(unknown)}; have {list(KEYS)}")
        asked = self._game.submit(Controls(pressed=held, fps=self._fps))

        def wait() -> Frames:
            emit = asked.result()
            self.frames_made = emit.index
            return emit.frames

        return wait

    def pictures(self) -> Frames:
        """The newest pictures once more: uint8 `[4, H, W, 3]`, or `[1, H, W, 3]` before the first step."""
        return self._game.newest_pictures()

    def snapshot(self) -> Snapshot:
        """This moment: keep it for `restore`, or `save` it to a file that opens on another machine.

        Raises:
            SessionEndedError: the session is over; and so do the others below.
        """
        return self._game.snapshot()

    def restore(self, source: Snapshot | bytes | str | Path) -> None:
        """Go on from another moment: a snapshot, its file or the file's bytes. What was played until now is forgotten.

        Raises:
            BusyError: a frame is in the making.
            SnapshotError: it is damaged or another world's; says which.
        """
        snapshot = _snapshot(source)
        self._game.restore(snapshot)
        self.frames_made = max(0, snapshot.made - 1)

    def fork(self) -> Session:
        """A second session that goes on from here, independent of this one."""
        return Session(self._host, self._host.fork(self._game), self._fps, made=self.frames_made + 1)

    def rewind(self, seconds: float) -> Frames:
        """Go back by `seconds` at the model's rate, at most to the start picture; the next step goes on from there.

        Returns:
            The pictures of the latent frame that is the newest now, as when they were made.

        Raises:
            BusyError: a frame is in the making.
            InvalidInputError: it is not above 0, or farther back than `rewind_s` and `rewind_bytes` allow.
        """
        if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise InvalidInputError(f"seconds={seconds!r} must be a number above 0")
        emit = self._game.rewind(self._game.frames_of(seconds)).result()
        self.frames_made = emit.index
        return emit.frames

    def tape(self) -> Tape:
        """What was played up to now: `save` it, or make it again with `World.replay`."""
        return self._game.tape()

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

    @property
    def fps(self) -> int:
        """Pictures a second at the model's rate."""
        return self._host.model.config.encode_fps

    def start(
        self,
        picture: PictureLike,
        *,
        seed: int | None = 0,
        nfe: int | None = None,
        nfe_mode: str = "repeat",
        sphere: str = "off",
        reprefill_every: int = 0,
        fps: float | None = 12.0,
    ) -> Session:
        """Begin a session. The same picture, seed and keys give the same bytes.

        Args:
            picture: scaled to cover the world's size and cropped in the middle, never stretched. One that was made
                from text for this world is taken as its latent is.
            seed: in [0, 2**32); None draws one.
            nfe, nfe_mode, sphere, reprefill_every: see `loops.world.WorldRequest`.
            fps: the frame rate that the model is told, in [1, 120], or None for no action and no rate.

        Raises:
            PictureError: the picture cannot be read.
            InvalidInputError: a choice does not fit the model.
        """
        Controls(fps=fps)  # refused before a game begins
        options = GameOptions(nfe=nfe, nfe_mode=nfe_mode, sphere=sphere, reprefill_every=reprefill_every)
        plain = int(seed) if isinstance(seed, np.integer) else seed
        game = self._host.start(self._encoded(picture), options=options, seed=plain)
        return Session(self._host, game, fps)

    def restore(self, source: Snapshot | bytes | str | Path, *, fps: float | None = 12.0) -> Session:
        """A session that goes on from a snapshot, a snapshot's file or its bytes. Its choices are the snapshot's.

        Raises:
            SnapshotError: it is damaged or another world's; says which.
        """
        Controls(fps=fps)
        snapshot = _snapshot(source)
        return Session(self._host, self._host.restore(snapshot), fps, made=snapshot.made)

    def replay(self, source: Tape | bytes | str | Path, *, nfe: int | None = None) -> Iterator[Frames]:
        """Make the pictures of a tape again, one latent frame after the other.

        Args:
            source: a tape, its file, or the file's bytes.
            nfe: another number of denoising calls, for other pictures with the same inputs.

        Raises:
            SnapshotError: it is damaged or another world's; says which.
            InvalidInputError: `nfe` does not fit the model.
        """
        tape = _tape(source)  # what is no tape is refused now, not when its first pictures are taken
        return self._replayed(tape if nfe is None else tape.with_nfe(nfe))

    def export(
        self, source: Tape | bytes | str | Path, folder: str | Path, *, license: str, lossless: bool = True
    ) -> Card:
        """Write a tape's game as a recording of one episode, which a world can be trained on.

        Args:
            source: as of `replay`, which says what is raised.
            folder: made when missing; it may hold this recording only.
            license, lossless: see `trainer.recorder.record`.

        Raises:
            SettingsError: pyarrow is missing.
            InvalidInputError: nothing was played but the start picture.
        """
        from worldloop.trainer.recorder import write_recording
        from worldloop.trainer.replayed import ReplayedEpisode

        tape, model = _tape(source), self._host.model
        if len(tape.controls) < 2:
            raise InvalidInputError("nothing was played: training data needs one step at least")
        episode = ReplayedEpisode(
            name=f"dream of {tape.start.facts.origin.model_id}", key=tape.sha256, config=model.config,
            picture=model.picture_hw, controls=tape.controls, frames=self.replay(tape),
        )  # fmt: skip
        return write_recording(episode, Path(folder), license=license, lossless=lossless)

    def pictures(self) -> list[str]:
        """Names of the start pictures that ship with this world."""
        return sorted(path.stem for path in _pictures(self._name).glob("*.png"))

    def close(self) -> None:
        """End every session and free the device."""
        self._host.close()

    def __deepcopy__(self, _: object) -> World:
        """Itself: there is one of it on the device. `gymnasium.make` copies what an environment is made from."""
        return self

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _replayed(self, tape: Tape) -> Iterator[Frames]:
        game = self._host.restore(tape.start)
        try:
            for controls in tape.controls:
                yield game.submit(controls).result().frames
        finally:
            game.close()

    def _encoded(self, picture: PictureLike) -> StartFrame:
        if isinstance(picture, Picture):
            return self._host.adopt(picture)
        height, width = self._host.frame_size
        return self._host.encode(cover_crop(self._read(picture), height=height, width=width))

    def _read(self, picture: str | Path | bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
        if isinstance(picture, np.ndarray):
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise InvalidInputError(
                    f"a picture array is uint8 [H, W, 3]; got {picture.dtype} {picture.shape}"
                )
            return picture
        if isinstance(picture, bytes):
            return read_picture(picture)
        if not isinstance(picture, str | Path):
            raise InvalidInputError(
                f"a picture is a file, its bytes, a name or uint8 [H, W, 3]; got {picture!r}"
            )
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
        InvalidInputError: there is no such world, or a choice is out of range.
        CheckpointError: a file is refused; the message says why.
    """
    for choice in CHECKED & choices.keys():
        Settings.check(choice, choices[choice])
    name = str(name_or_path)
    return World(WorldHost.open(name, **choices), Path(name).name)


def _tape(source: Tape | bytes | str | Path) -> Tape:
    return source if isinstance(source, Tape) else Tape.unpack(_bytes(source))


def _snapshot(source: Snapshot | bytes | str | Path) -> Snapshot:
    return source if isinstance(source, Snapshot) else Snapshot.unpack(_bytes(source))


def _bytes(source: object) -> bytes:
    """Of a file. InvalidInputError when it is none."""
    if isinstance(source, bytes):
        return source
    if not isinstance(source, str | Path):
        raise InvalidInputError(
            f"a file, its bytes or what was loaded from one is needed, no {type(source).__name__}"
        )
    return read(Path(source))


def _pictures(name: str) -> Path:
    return Path(__file__).parent / "assets" / "pictures" / name
