"""A world under the verbs that users of other world models know: append a picture, generate, reset, keep the state.

    engine = worldloop.WorldEngine("meadow", seed=0)
    engine.append_frame(picture)                                    # uint8 [1, H, W, 3]
    frames = engine.gen_frame(ctrl=CtrlInput(button={"W"}))         # uint8 [4, H, W, 3]

Owns these names and the reading of `CtrlInput`; `api` does the work. What differs from where the names come from:
pictures always have four axes, noise follows from a seed, a state holds everything that the next bytes depend on, and
what a world cannot do is refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from worldloop.api import PictureLike, Session, World, load_world
from worldloop.core.errors import InvalidInputError, NotReadyError
from worldloop.core.types import KEYS
from worldloop.engine.contract import Frames
from worldloop.loops.snapshot import Snapshot

VIRTUAL_KEYS: Final = {
    87: "w", 65: "a", 83: "s", 68: "d", 37: "left", 39: "right", 32: "space", 16: "shift", 160: "shift", 161: "shift",
}  # fmt: skip
"""Windows virtual-key codes."""

CODES: Final = {
    "KeyW": "w", "KeyA": "a", "KeyS": "s", "KeyD": "d", "ArrowLeft": "left", "ArrowRight": "right", "Space": "space",
    "ShiftLeft": "shift", "ShiftRight": "shift",
}  # fmt: skip
"""`KeyboardEvent.code` of browsers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CtrlInput:
    """What is held while one latent frame is made.

    Attributes:
        button: keys, each as a name ("w", "W", "left"), a browser's code ("KeyW") or a Windows virtual-key code (87).
        mouse: (right, down). To the right turns right and to the left turns left, as the arrow keys do, whatever the
            amount; worlds cannot look up or down, so `down` must be 0.
        scroll_wheel: worlds have no use for it; must be 0.
    """

    button: Collection[int | str] = frozenset()
    mouse: tuple[float, float] = (0.0, 0.0)
    scroll_wheel: int = 0

    @property
    def keys(self) -> frozenset[str]:
        """Names of the keys that are held.

        Raises:
            InvalidInputError: something that no world understands.
        """
        right, down = self.mouse
        if down or self.scroll_wheel or right != right:
            raise InvalidInputError(
                f"mouse={self.mouse}, scroll_wheel={self.scroll_wheel}: only mouse to the right or left has a meaning"
            )
        turn = {"right"} if right > 0 else {"left"} if right < 0 else set()
        return frozenset(turn | {_key(button) for button in self.button})


class WorldEngine:
    """One world with one session. Use as a context manager, or call `close`.

    Args:
        world: a shipped world's name or a path, loaded here; or a loaded world, which stays open afterwards.
        seed: of the noise, in [0, 2**32).
        nfe: denoising calls a frame; None is the checkpoint's own.
        fps: the frame rate that the model is told.
        choices: of `load_world`, such as `threads` and `device`.

    Attributes:
        frames_per_step: pictures that `gen_frame` gives.
    """

    frames_per_step: Final = 4

    def __init__(
        self,
        world: World | str | Path = "meadow",
        *,
        seed: int = 0,
        nfe: int | None = None,
        fps: float | None = 12.0,
        **choices: Any,
    ) -> None:
        if isinstance(world, World):
            if choices:
                raise InvalidInputError(f"{sorted(choices)} are choices of loading; this world is loaded")
            self._world, self._owned = world, False
        else:
            self._world, self._owned = load_world(world, **choices), True
        self._seed, self._nfe, self._fps = seed, nfe, fps
        self._session: Session | None = None

    def append_frame(self, picture: PictureLike) -> Frames:
        """Begin from a picture: a file, bytes, a shipped name, uint8 `[H, W, 3]`, or the last of `[T, H, W, 3]`.

        Returns:
            The picture as the model sees it, uint8 `[1, H, W, 3]`.

        Raises:
            NotReadyError: the world has begun; `reset` first.
            PictureError, InvalidInputError: it is no picture.
        """
        if self._session is not None:
            raise NotReadyError("a world takes a picture only as its start: call reset() first")
        if isinstance(picture, np.ndarray) and picture.ndim == 4 and len(picture):
            picture = picture[-1]
        self._session = self._world.start(picture, seed=self._seed, nfe=self._nfe, fps=self._fps)
        return self._session.first

    def gen_frame(self, ctrl: CtrlInput | None = None, *, return_img: bool = True) -> Frames | None:
        """Make one latent frame.

        Returns:
            Its pictures, uint8 `[4, H, W, 3]`, or None without `return_img`.

        Raises:
            NotReadyError: there is no start picture yet.
            InvalidInputError: `ctrl` holds what no world understands.
        """
        frames = self._running().step((ctrl or CtrlInput()).keys)
        return frames if return_img else None

    def set_prompt(self, prompt: str | None) -> None:
        """Accepts only None or "": these worlds are told by their start picture and the keys.

        Raises:
            InvalidInputError: any other prompt.
        """
        if prompt:
            raise InvalidInputError(
                "this world takes no prompt; its start picture and the keys say what it is"
            )

    def reset(self, seed: int | None = None) -> None:
        """Forget the session; `append_frame` begins the next, with the same seed unless another is given."""
        if seed is not None:
            self._seed = seed
        self._end()

    def get_state(self) -> Snapshot:
        """A snapshot of the session, see `Session.snapshot`: memory, decoder and counters of the noise.

        Raises:
            NotReadyError: there is no start picture yet.
        """
        return self._running().snapshot()

    def load_state(self, state: Snapshot | bytes | str | Path) -> None:
        """Go on from a snapshot, or a snapshot's file, of any session of the same world; it brings its own seed.

        Raises:
            SnapshotError: it is damaged or another world's. The session that runs goes on then.
        """
        session = self._world.restore(state, fps=self._fps)
        self._end()
        self._session = session

    def close(self) -> None:
        """End the session, and the world if it was loaded here. May be called twice."""
        self._end()
        if self._owned:
            self._world.close()

    def __enter__(self) -> WorldEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> Session:
        if self._session is None:
            raise NotReadyError("there is no start picture yet: call append_frame first")
        return self._session

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _key(button: int | str) -> str:
    known = CODES.get(button, button.lower()) if isinstance(button, str) else VIRTUAL_KEYS.get(button)
    if known not in KEYS:
        raise InvalidInputError(
            f"unknown button {button!r}; have {list(KEYS)}, codes {list(CODES)} and virtual keys {list(VIRTUAL_KEYS)}"
        )
    return known
