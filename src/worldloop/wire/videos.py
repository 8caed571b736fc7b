"""The shapes of the videos API, as OpenAI's clients send and read them.

Owns fields, their ranges, and the form of answers and errors. Does not own jobs (`session.videos`) or pictures: a first
frame's bytes pass through. Called by `server.video_routes`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from worldloop.core.errors import InvalidInputError

MAX_PROMPT = 4000
DEFAULT_SECONDS = 4
MAX_LIST = 100
MAX_SEED = 2**32 - 1

FIELDS = ("prompt", "model", "seconds", "size", "seed", "input_reference")
REFERENCE_URL = "input_reference[image_url]"
"""The name under which clients put a reference object into a form."""

_WHOLE = re.compile(r"[0-9]{1,10}")
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,32};base64,")

Status = Literal["queued", "in_progress", "completed", "failed"]


class WrongFieldError(InvalidInputError):
    """A field of the request is wrong; `param` names it, None when it is the body as a whole."""

    def __init__(self, param: str | None, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFacts:
    """What is served: the model's id, its only picture size, and the longest video."""

    model: str
    width: int
    height: int
    longest_s: int

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoForm:
    """A checked request. `reference` is an image file's bytes; `seed` None draws one."""

    prompt: str
    seconds: int
    seed: int | None
    reference: bytes | None


class VideoErrorAnswer(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class VideoAnswer(BaseModel):
    """One job. Beyond OpenAI's fields: `seed`, `queue_position` (0: being made), `eta_seconds` until it is done."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: Status
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    error: VideoErrorAnswer | None
    prompt: str
    seconds: str
    size: str
    remixed_from_video_id: str | None
    seed: int
    queue_position: int | None
    eta_seconds: float | None


class VideoListAnswer(BaseModel):
    """One page of jobs."""

    object: Literal["list"] = "list"
    data: list[VideoAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedAnswer(BaseModel):
    """A job that is gone."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


def error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def parse_video(fields: Mapping[str, Any], facts: VideoFacts) -> VideoForm:
    """Read `POST /v1/videos`: JSON values, or a form's texts with `input_reference` as its file's bytes.

    Raises:
        WrongFieldError: names the field, what was found and what is allowed.
    """
    _known(fields, (*FIELDS, REFERENCE_URL))
    model = fields.get("model")
    if model is not None and model != facts.model:
        raise WrongFieldError("model", f"model {_shown(model)} is not served; {facts.model!r} is")
    size = fields.get("size")
    if size is not None and size != facts.size:
        raise WrongFieldError("size", f"size {_shown(size)}: this model makes {facts.size!r} only")
    seconds = fields.get("seconds")
    seed = fields.get("seed")
    return VideoForm(
        prompt=check_prompt(fields.get("prompt")),
        seconds=DEFAULT_SECONDS if seconds is None else _integer("seconds", seconds, 1, facts.longest_s),
        seed=None if seed is None else _integer("seed", seed, 0, MAX_SEED),
        reference=_reference(fields),
    )


def parse_remix(fields: Mapping[str, Any]) -> str:
    """Read `POST /v1/videos/{id}/remix`: the new prompt; errors as `parse_video`."""
    _known(fields, ("prompt",))
    return check_prompt(fields.get("prompt"))


def check_prompt(value: object) -> str:
    """A text with something in it, at most `MAX_PROMPT` characters; errors as `parse_video`."""
    if not isinstance(value, str) or not value.strip():
        raise WrongFieldError("prompt", f"prompt {_shown(value)} must be a text that says something")
    if len(value) > MAX_PROMPT:
        raise WrongFieldError(
            "prompt", f"prompt has {len(value)} characters; at most {MAX_PROMPT} are allowed"
        )
    return value


def parse_page(query: Mapping[str, str]) -> tuple[int, str, str | None]:
    """(limit, order, after) of `GET /v1/videos`; errors as `parse_video`."""
    _known(query, ("limit", "order", "after"))
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise WrongFieldError("order", f"order {_shown(order)} must be 'asc' or 'desc'")
    return _integer("limit", query.get("limit", "20"), 1, MAX_LIST), order, query.get("after")


def parse_variant(query: Mapping[str, str]) -> None:
    """Check the query of `GET /v1/videos/{id}/content`; errors as `parse_video`."""
    _known(query, ("variant",))
    variant = query.get("variant", "video")
    if variant != "video":
        raise WrongFieldError("variant", f"variant {_shown(variant)} is not made; 'video' is")


def _known(fields: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for name in fields:
        if name not in allowed:
            names = ", ".join(allowed)
            raise WrongFieldError(
                name[:64], f"unknown field {_shown(name)}; have {names}", code="unknown_parameter"
            )


def _integer(name: str, value: object, least: int, most: int) -> int:
    allowed = f"{name} {_shown(value)} must be a whole number in {least}..{most}"
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WrongFieldError(name, allowed)
    return value


def _reference(fields: Mapping[str, Any]) -> bytes | None:
    name = "input_reference"
    value = fields.get(name, {"image_url": fields[REFERENCE_URL]} if REFERENCE_URL in fields else None)
    if value is None or isinstance(value, bytes):
        return value
    url = value.get("image_url") if isinstance(value, dict) and set(value) == {"image_url"} else None
    if isinstance(url, str) and (head := _DATA_URL.match(url)):
        try:
            return base64.b64decode(url[head.end() :], validate=True)
        except binascii.Error:
            pass
    raise WrongFieldError(
        name, f"{name} must be an image file, or {{'image_url': 'data:image/png;base64,...'}}"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:60] + " ..."
