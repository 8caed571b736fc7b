"""What a recorder asks of a source of episodes.

Owns the shape of a step and the checks that every source shares. Called by `recorder`; `environment` and `videos` are
the two sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError
from worldloop.core.types import Action

FRAMES_PER_STEP = 4
"""RGB frames of one latent frame, and so of one step."""
CELL = 16
"""Pixels of a latent cell's side; pictures are whole cells."""
NOTHING: Action = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step, or the first picture of an episode.

    Attributes:
        time: of its first frame, seconds from the episode's start.
        action: held while its frames were made; zeros for a first picture.
        frames: uint8 `[4, H, W, 3]`, of a first picture `[1, H, W, 3]`.
    """

    time: float
    action: Action
    frames: NDArray[np.uint8]


class EpisodeSource(Protocol):
    """Episodes in groups, one group a shard. The same group comes out the same, whatever was read before.

    Attributes:
        name: shown as the recording's source.
        fps: RGB frames a second.
        picture: (height, width).
        settings: what the pictures and actions depend on.
        keys: one a group; a recorded group is kept as long as its key is the same.
    """

    @property
    def name(self) -> str: ...
    @property
    def fps(self) -> float: ...
    @property
    def picture(self) -> tuple[int, int]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def keys(self) -> Sequence[str]: ...

    def group(self, index: int) -> Iterator[Iterator[Step]]:
        """The episodes of a group; each is read to its end before the next."""

    def close(self) -> None:
        """Free what is held."""


def check_size(height: int, width: int) -> tuple[int, int]:
    """(height, width), when it is whole cells.

    Raises:
        InvalidInputError: it is not; the message names the nearest size that is.
    """
    if height < CELL or width < CELL or height % CELL or width % CELL:
        near = tuple(max(CELL, round(side / CELL) * CELL) for side in (height, width))
        raise InvalidInputError(
            f"pictures of {height}x{width} (height x width) are not whole cells of {CELL} pixels; "
            f"give a size such as {near[0]}x{near[1]}, to which they are scaled and cut"
        )
    return height, width


def parse_size(text: str) -> tuple[int, int]:
    """ "96x160" to (96, 160), height first.

    Raises:
        InvalidInputError: it does not look like that.
    """
    height, cross, width = text.lower().partition("x")
    if not cross or not height.isdecimal() or not width.isdecimal():
        raise InvalidInputError(f"size {text!r} must be HEIGHTxWIDTH, such as 96x160")
    return int(height), int(width)


def check_fps(fps: float | None, *, what: str) -> float:
    """The frame rate, when there is one in range.

    Raises:
        InvalidInputError: none, or out of range.
    """
    if fps is None or not 1 <= fps <= 120:
        raise InvalidInputError(f"{what} has frame rate {fps}; give fps, 1 to 120 frames a second")
    return float(fps)
