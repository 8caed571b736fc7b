"""What the session and server layers ask of the device side. Implemented outside them and injected.

Owns no behaviour. The server never sees a tensor: a start picture becomes an opaque `StartFrame`, a running
world a `Game` that takes controls and gives pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldloop.core.types import Controls
from worldloop.engine.contract import Emit
from worldloop.session.picture_host import Picture


@dataclass(frozen=True, kw_only=True, slots=True)
class StartFrame:
    """An encoded start picture or a snapshot: `value` is the host's own, `shape` its latent's `[1, C, h, w]`."""

    value: Any
    shape: tuple[int, ...]
    model_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GameOptions:
    """Choices of one game, already parsed from the wire. None keeps what is served.

    Attributes:
        nfe: number of denoising calls, 1..32; None is the checkpoint's own.
        nfe_mode: `repeat` or `grid`.
        sphere: `off`, `decode` or `all`.
        reprefill_every: rebuild the memory every N latent frames; 0 is off.
        focus: None for the served default, "none" for no region, or rows of booleans `[h][w]`.
    """

    nfe: int | None = None
    nfe_mode: str = "repeat"
    sphere: str = "off"
    reprefill_every: int | None = None
    focus: str | tuple[tuple[bool, ...], ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReport:
    """What an operator watches of a host.

    Attributes:
        weights_bytes: of the loaded model.
        session_bytes: of all sessions together.
        sessions: number of sessions on the device.
        queued: inputs that wait on the engine.
        switches, reprefills, drift_reprefills: how many since the start; they only grow.
        load: share of the device's time that the sessions need to keep up.
        lost: why the device is out of service, or None.
    """

    weights_bytes: int = 0
    session_bytes: int = 0
    sessions: int = 0
    queued: int = 0
    switches: int = 0
    reprefills: int = 0
    drift_reprefills: int = 0
    load: float = 0.0
    lost: str | None = None


class File(Protocol):
    """Something of a game that can be kept as a file."""

    def pack(self) -> bytes:
        """The file's bytes; does no device work."""
        ...


class Game(Protocol):
    """One running world. Thread-safe; every call returns at once."""

    def submit(self, controls: Controls, *, due: float = math.inf) -> Future[Emit]:
        """Ask for the next latent frame: 4 pictures (the first call gives the start picture, 1 picture).

        `due` is when they are wanted, in seconds of the monotonic clock: who is due first is served first.

        At most one frame is in the making; the future fails with `SessionEndedError` or `EngineError`.
        """
        ...

    def update(self, controls: Controls) -> bool | None:
        """Replace the controls of a submitted frame whose first pass has not begun; else do nothing.

        True says that they were replaced. The player is told which picture shows which keys from this; a host
        that can't tell returns None, and the player is told of the next frame.
        """
        ...

    def rewind(self, frames: int, *, due: float = math.inf) -> Future[Emit]:
        """Go back by latent frames, at most to the first; the future gets the one that is the newest then.

        Blocks for less than a frame; only while no frame is in the making. Raises `InvalidInputError` when it is too
        far, and changes nothing then.
        """
        ...

    def frames_of(self, seconds: float) -> int:
        """Latent frames of so many seconds at the model's rate, at least one."""
        ...

    def snapshot(self) -> File:
        """This moment; blocks for less than a frame. `SessionEndedError` when the game is over."""
        ...

    def tape(self) -> File:
        """What was played up to now; blocks as `snapshot`."""
        ...

    def close(self) -> None:
        """Free the slot within one pass. May be called twice."""
        ...


class Host(Protocol):
    """The models of this process and their device.

    Every method may be called from any thread. `switch`, `encode`, `adopt`, `configure` and `start` block: call
    them off the event loop. The others do no device work.
    """

    @property
    def frame_size(self) -> tuple[int, int]:
        """(height, width) of the pictures."""
        ...

    @property
    def default_model_id(self) -> str: ...

    @property
    def active_model_id(self) -> str | None:
        """None while a switch is under way or failed."""
        ...

    @property
    def active_profile(self) -> dict[str, Any]:
        """`{"name", "jump_sprint", "controls"}` of the active model."""
        ...

    def model_ids(self) -> list[str]:
        """Sorted."""
        ...

    def describe(self) -> dict[str, Any]:
        """The `details`, `nfe`, `sphere`, `reprefill` and `focus` objects of `GET /models`."""
        ...

    def report(self) -> HostReport:
        """Counts for the metrics, from memory."""
        ...

    def switch(self, model_id: str) -> None:
        """Serve another checkpoint. `InvalidInputError` for an unknown id (lists the valid ones)."""
        ...

    def configure(self, options: GameOptions) -> dict[str, Any]:
        """Set the choices for the games that follow; `InvalidInputError` names what does not fit.

        Returns the `focus` object of the `POST /z0` answer: `{"mode", "tokens", "grid", "coverage"}`.
        """
        ...

    def encode(self, picture: NDArray[np.uint8]) -> StartFrame:
        """Encode a start picture, uint8 `[H, W, 3]` already at `frame_size`."""
        ...

    def adopt(self, picture: Picture) -> StartFrame:
        """A picture that was made in this process as a start picture; its latent as it is where the world has a use for
        it, else its pixels are encoded."""
        ...

    def moment(self, source: bytes | File) -> StartFrame:
        """A snapshot or its file to begin a game from. `SnapshotError` when it does not fit what is served. Blocks."""
        ...

    def start(
        self,
        frame: StartFrame,
        *,
        options: GameOptions,
        seed: int | None,
        on_close: Callable[[], None] | None = None,
    ) -> Game:
        """Begin a game. A None seed draws one.

        `on_close` is called once, from any thread, when the game has given its place on the device back,
        however it ended; the session frees the player's slot then.
        """
        ...

    def close(self) -> None:
        """End every game and the device thread."""
        ...
