"""Value types that several layers share. No behaviour beyond validation, no heavy imports.

Owns the controls of a player as the model sees them, in field names of the wire. Does not own how they are
sent (`wire`) or how the model reads them (`models`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from worldloop.core.errors import InvalidInputError

KEYS = ("w", "a", "s", "d", "left", "right", "space", "shift")
"""Keys of the published protocol, in its order."""

MAX_FPS = 120
"""Highest frame rate that a model is told."""

NO_ACTION = -69.0
"""Value of all five action numbers that means "no action": the model skips its action input."""

Action = tuple[float, float, float, float, float]
"""`[forward - back, right - left, jump, sprint, yaw]`, each in [-1, 1], or five times `NO_ACTION`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Controls:
    """What a player holds down while one latent frame is made.

    Attributes:
        pressed: names out of `KEYS`.
        fps: the frame rate that the model is told, in [1, 120]; None sends "no action" and no rate.
    """

    pressed: frozenset[str] = frozenset()
    fps: float | None = 12.0

    def __post_init__(self) -> None:
        """InvalidInputError when `fps` is out of range."""
        if self.fps is not None and not (isinstance(self.fps, int | float) and 1 <= self.fps <= MAX_FPS):
            raise InvalidInputError(f"fps={self.fps!r} must be a number in [1, {MAX_FPS}], or none")

    def action(self, *, jump_sprint: bool = False, yaw: bool = True) -> Action:
        """The model's five numbers. Opposite keys cancel; what the profile does not have is 0."""
        if self.fps is None:
            return (NO_ACTION,) * 5
        held = self.pressed
        return (
            float("w" in held) - float("s" in held),
            float("d" in held) - float("a" in held),
            float(jump_sprint and "space" in held),
            float(jump_sprint and "shift" in held),
            float(yaw and "right" in held) - float(yaw and "left" in held),
        )


class LiveControls:
    """Controls of one frame that may still change until the frame's first pass takes them. Thread-safe."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._taken = False
        self._lock = threading.Lock()

    def replace(self, controls: Controls) -> bool:
        """Newer controls; False when the frame has begun and they come too late."""
        with self._lock:
            if not self._taken:
                self._controls = controls
            return not self._taken

    def take(self) -> Controls:
        """The controls of the frame, the same from the first call on."""
        with self._lock:
            self._taken = True
            return self._controls
