"""The published world protocol: every answer and every message of the server, as frozen models.

Owns names and shapes on the wire. Does not own what players send (`wire.controls`, `wire.forms`), routes or
status codes. Called by `session` and `server`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from worldloop.core.errors import InvalidInputError

KEY_UNIT = b"\x01"
DELTA_UNIT = b"\x00"

BUSY_HTTP = "Every place in this world is taken right now. Try again in a moment."
BUSY_SOCKET = "Every place is taken. Try again in a moment."

_USER_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# Levels of H.264 baseline, table A-1: (level_idc, macroblocks a second, macroblocks a picture).
_LEVELS = (
    (10, 1485, 99),
    (11, 3000, 396),
    (12, 6000, 396),
    (13, 11880, 396),
    (20, 11880, 396),
    (21, 19800, 792),
    (22, 20250, 1620),
    (30, 40500, 1620),
    (31, 108000, 3600),
    (32, 216000, 5120),
    (40, 245760, 8192),
    (42, 522240, 8704),
    (50, 589824, 22080),
    (51, 983040, 36864),
)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelsAnswer(_Answer):
    """`GET /models`."""

    server_kind: Literal["unified"] = "unified"
    models: list[str]
    default_model_id: str
    active_model_id: str | None
    details: dict[str, Any]
    nfe: dict[str, Any]
    sphere: dict[str, Any]
    reprefill: dict[str, Any]
    focus: dict[str, Any]


class StartAnswer(_Answer):
    """`POST /z0/{user_id}`."""

    success: Literal[True] = True
    model_id: str
    z0_shape: list[int]
    nfe: dict[str, Any]
    sphere: dict[str, Any]
    reprefill: dict[str, Any]
    focus: dict[str, Any]
    profile: dict[str, Any]


class SwitchAnswer(_Answer):
    """`POST /switch`."""

    success: Literal[True] = True
    model_id: str


class ReserveAnswer(_Answer):
    """`GET /create-game/{user_id}`."""

    success: Literal[True] = True


class MomentAnswer(_Answer):
    """`POST /sessions/{user_id}/restore` and `/fork`: the next game begins there."""

    success: Literal[True] = True
    model_id: str
    z0_shape: list[int]


class RewindAnswer(_Answer):
    """`POST /sessions/{user_id}/rewind`."""

    success: Literal[True] = True
    frame: int


class OccupancyAnswer(_Answer):
    """Who keeps the server busy: games (`owner`), requests on the device, start pictures that wait."""

    busy: bool
    owner: bool
    inflight: int
    pending_z0: int


class StatusAnswer(_Answer):
    """`GET /status`."""

    ok: Literal[True] = True
    busy: bool
    occupancy: OccupancyAnswer
    ws_active: bool
    server_id: str | None
    tickets_required: bool
    session_limit_s: float
    active_model_id: str | None
    active_profile: str | None


class PictureAnswer(_Answer):
    """One entry of `GET /pictures`."""

    name: str
    title: str
    caption: str
    url: str


class PromptAnswer(_Answer):
    """What a place can be drawn from words with: sizes as `WxH`, none when there is no choice."""

    model: str
    size: str
    sizes: list[str]
    prompt_max: int


class PageAnswer(_Answer):
    """`GET /page`: what the page offers beside start pictures."""

    prompt: PromptAnswer | None = None


def hello_message(
    *,
    height: int,
    width: int,
    fps: float,
    session_limit_s: float,
    model_id: str,
    profile: dict[str, Any],
    played_s: float = 0.0,
    rewind_s: float = 0.0,
    resume: tuple[str, float] | None = None,
) -> str:
    """First text of a socket. Clients of the published server ignore types that they don't know.

    Args:
        played_s: seconds of the limit that earlier sockets of this game have used.
        rewind_s: how far back the game can go; 0 says nothing of it.
        resume: the token that takes this game up again after a break, and for how many seconds; None: it can't be.
    """
    back = {} if resume is None else {"resume": {"token": resume[0], "within_s": resume[1]}}
    return _text(
        type="hello",
        width=width,
        height=height,
        fps=fps,
        codec=codec_string(height=height, width=width, fps=fps),
        session_limit_s=session_limit_s,
        model_id=model_id,
        profile=profile,
        played_s=round(played_s, 3),
        **({"rewind_s": rewind_s} if rewind_s else {}),
        **back,
    )


def ack_message(*, seq: int, frame: int) -> str:
    """`frame` numbers the socket's next binary message, from 0: the first made with the keys of `seq`."""
    return _text(type="ack", seq=seq, frame=frame)


def rewound_message(*, frame: int) -> str:
    """The pictures that follow are of latent frame `frame`, and the game goes on from there."""
    return _text(type="rewound", frame=frame)


def error_message(*, code: str, message: str) -> str:
    """A message of this client was refused; the game goes on."""
    return _text(type="error", code=code, message=message)


def log_message(*, tag: str, msg: str, ts: float) -> str:
    """A log line of this client's own game; `ts` in seconds since the epoch."""
    return _text(type="log", tag=tag, msg=msg, ts=ts)


def session_over_message(*, message: str, limit_s: float) -> str:
    """The game is over; a close follows."""
    return _text(type="session_over", message=message, limit_s=limit_s)


def pack_access_unit(*, key: bool, data: bytes) -> bytes:
    """One byte (0x01 key picture, 0x00 other), then one H.264 access unit in Annex-B form."""
    return (KEY_UNIT if key else DELTA_UNIT) + data


def check_user_id(user_id: str) -> str:
    """`user_id` itself.

    Raises:
        InvalidInputError: not 1 to 64 of the allowed characters.
    """
    if not _USER_ID.fullmatch(user_id):
        raise InvalidInputError("user id must be 1 to 64 of A-Z a-z 0-9 _ . -")
    return user_id


def codec_string(*, height: int, width: int, fps: float) -> str:
    """RFC 6381 name of constrained baseline H.264 at this size and rate, such as `avc1.42E01E`."""
    blocks = -(-height // 16) * -(-width // 16)
    for level, rate_limit, size_limit in _LEVELS:
        if blocks <= size_limit and blocks * fps <= rate_limit:
            return f"avc1.42E0{level:02X}"
    return f"avc1.42E0{_LEVELS[-1][0]:02X}"


def close_reason(text: str) -> str:
    """`text` cut to what a close frame holds (123 bytes of UTF-8), on a character's edge."""
    return text.encode()[:123].decode(errors="ignore")


def _text(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
