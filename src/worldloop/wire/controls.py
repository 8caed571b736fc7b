"""What a player sends while playing: one JSON text, read into a `ControlState`.

Owns the rules of that message. A refusal is a typed error with a code for the client; the caller keeps the
state that it had. Called by `session.game` for every text that comes in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldloop.core.errors import InvalidInputError
from worldloop.core.types import KEYS, Controls

MIN_FPS, MAX_FPS = 1.0, 120.0
MAX_SEQ = 2**53 - 1
MAX_SECONDS = 600.0


class BadControlsError(InvalidInputError):
    """A message is refused. `code` is one of not_json, not_an_object, wrong_type, out_of_range, too_large."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlState:
    """What a player asks for now.

    Attributes:
        controls: keys and frame rate that go to the model.
        stream_fps: pictures a second on the wire.
        start_fps: frame rate that the model is told when a message doesn't say.
        seq: the client's number of its last message, or None.
    """

    controls: Controls
    stream_fps: float
    start_fps: float | None
    seq: int | None = None

    @classmethod
    def start(cls, *, stream_fps: float, fps_embedding: float | None) -> ControlState:
        """Nothing held, at the configured rates."""
        return cls(controls=Controls(fps=fps_embedding), stream_fps=stream_fps, start_fps=fps_embedding)


def parse_controls(text: str | bytes, current: ControlState, *, max_bytes: int = 4096) -> ControlState | None:
    """Read one message. None: it is of another type, and says nothing about controls.

    Keys that are absent are up; unknown keys and fields are ignored, for clients newer than this server.

    Raises:
        BadControlsError: see its codes.
    """
    message = _read(text, max_bytes)
    if message.get("type", "keys") != "keys":
        return None
    return ControlState(
        controls=Controls(pressed=_pressed(message), fps=_fps_embedding(message, current.start_fps)),
        stream_fps=_fps(message, "stream_fps") if "stream_fps" in message else current.stream_fps,
        start_fps=current.start_fps,
        seq=_seq(message),
    )


def parse_rewind(text: str | bytes, *, max_bytes: int = 4096) -> float | None:
    """Seconds of a `rewind` message. None: it is of another type.

    Raises:
        BadControlsError: as `parse_controls`.
    """
    message = _read(text, max_bytes)
    if message.get("type") != "rewind":
        return None
    seconds = message.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise BadControlsError("wrong_type", f"seconds must be a number, not {_kind(seconds)}")
    return check_seconds(seconds)


def check_seconds(seconds: float) -> float:
    """`seconds` to go back. BadControlsError out of range."""
    if not 0 < seconds <= MAX_SECONDS:
        raise BadControlsError("out_of_range", f"seconds must be above 0 and at most {MAX_SECONDS:g}")
    return float(seconds)


def _read(text: str | bytes, max_bytes: int) -> dict[str, Any]:
    if isinstance(text, bytes):
        raise BadControlsError("not_json", "a binary message; controls are one JSON text")
    # A character is at least one byte, so a long text is refused before it is encoded.
    if len(text) > max_bytes or len(text.encode("utf-8", "surrogatepass")) > max_bytes:
        raise BadControlsError("too_large", f"message over {max_bytes} bytes")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise BadControlsError("not_json", "message is not JSON") from None
    if not isinstance(message, dict):
        raise BadControlsError("not_an_object", f"message must be an object, not {_kind(message)}")
    return message


def _pressed(message: Mapping[str, Any]) -> frozenset[str]:
    held = message.get("pressed", {})
    if not isinstance(held, dict):
        raise BadControlsError("wrong_type", f"pressed must be an object of keys, not {_kind(held)}")
    for key in KEYS:
        value = held.get(key, False)
        if not isinstance(value, bool) and value not in (0, 1):
            raise BadControlsError("wrong_type", f"pressed.{key} must be true or false, not {_kind(value)}")
    return frozenset(key for key in KEYS if held.get(key))


def _fps_embedding(message: Mapping[str, Any], start: float | None) -> float | None:
    if "fps_embedding" not in message:
        return start
    value = message["fps_embedding"]
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "null", "off")):
        return None
    return _fps(message, "fps_embedding")


def _fps(message: Mapping[str, Any], field: str) -> float:
    value = message[field]
    if isinstance(value, str):
        value = _number_in(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadControlsError("wrong_type", f"{field} must be a number, not {_kind(message[field])}")
    # Compared before the conversion: an integer may be too long for a float. NaN fails both comparisons.
    if not MIN_FPS <= value <= MAX_FPS:
        raise BadControlsError("out_of_range", f"{field} must be in [{MIN_FPS:g}, {MAX_FPS:g}]")
    return float(value)


def _number_in(text: str) -> float | str:
    """The published server takes a number in a string as well."""
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _seq(message: Mapping[str, Any]) -> int | None:
    value = message.get("seq")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadControlsError("wrong_type", f"seq must be an integer, not {_kind(value)}")
    if not 0 <= value <= MAX_SEQ:
        raise BadControlsError("out_of_range", f"seq must be in [0, {MAX_SEQ}]")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
