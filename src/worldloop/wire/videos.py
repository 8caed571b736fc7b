"""The shapes of the videos API, as OpenAI's clients send and read them.

Owns fields, their ranges, and the form of answers. Does not own errors (`wire.openai`), jobs (`session.videos`) or
pictures: a first frame's bytes pass through. Called by `server.video_routes`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from worldloop.wire.openai import (
    MAX_SEED,
    WrongFieldError,
    check_choice,
    check_integer,
    check_known,
    check_model,
    check_text,
    shown,
)

MAX_PROMPT = 4000
DEFAULT_SECONDS = 4
MAX_LIST = 100

FIELDS = ("prompt", "model", "seconds", "size", "seed", "input_reference", "first_frame")
REFERENCE_URL = "input_reference[image_url]"
"""The name under which clients put a reference object into a form."""

_WHOLE = re.compile(r"[0-9]{1,10}")
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,32};base64,")

Status = Literal["queued", "in_progress", "completed", "failed"]


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
    """A checked request. `reference` is an image file's bytes; `drawn` is whether a picture model may draw the first
    frame; `seed` None draws one.
    """

    prompt: str
    seconds: int
    seed: int | None
    reference: bytes | None
    drawn: bool


class VideoErrorAnswer(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class VideoAnswer(BaseModel):
    """One job. Beyond OpenAI's fields: `seed`, `first_frame` (`given`, `none`, or the picture model's id that draws
    it), `queue_position` (0: being made), `eta_seconds` until it is done.
    """

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
    first_frame: str
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


def parse_video(fields: Mapping[str, Any], facts: VideoFacts) -> VideoForm:
    """Read `POST /v1/videos`: JSON values, or a form's texts with `input_reference` as its file's bytes.

    Raises:
        WrongFieldError: names the field, what was found and what is allowed.
    """
    check_known(fields, (*FIELDS, REFERENCE_URL))
    check_model(fields.get("model"), facts.model)
    size = fields.get("size")
    if size is not None and size != facts.size:
        raise WrongFieldError("size", f"size {shown(size)}: this model makes {facts.size!r} only")
    first_frame = fields.get("first_frame")
    if first_frame is not None:
        check_choice("first_frame", first_frame, ("none",))
    reference = _reference(fields)
    if first_frame is not None and reference is not None:
        raise WrongFieldError("first_frame", "first_frame 'none' excludes input_reference, which is one")
    seconds = fields.get("seconds")
    seed = fields.get("seed")
    return VideoForm(
        prompt=check_prompt(fields.get("prompt")),
        seconds=DEFAULT_SECONDS if seconds is None else _integer("seconds", seconds, 1, facts.longest_s),
        seed=None if seed is None else _integer("seed", seed, 0, MAX_SEED),
        reference=reference,
        drawn=first_frame is None,
    )


def parse_remix(fields: Mapping[str, Any]) -> str:
    """Read `POST /v1/videos/{id}/remix`: the new prompt; errors as `parse_video`."""
    check_known(fields, ("prompt",))
    return check_prompt(fields.get("prompt"))


def check_prompt(value: object) -> str:
    """A text with something in it, at most `MAX_PROMPT` characters; errors as `parse_video`."""
    return check_text("prompt", value, MAX_PROMPT)


def parse_page(query: Mapping[str, str]) -> tuple[int, str, str | None]:
    """(limit, order, after) of `GET /v1/videos`; errors as `parse_video`."""
    check_known(query, ("limit", "order", "after"))
    order = check_choice("order", query.get("order", "desc"), ("asc", "desc"))
    return _integer("limit", query.get("limit", "20"), 1, MAX_LIST), order, query.get("after")


def parse_variant(query: Mapping[str, str]) -> None:
    """Check the query of `GET /v1/videos/{id}/content`; errors as `parse_video`."""
    check_known(query, ("variant",))
    variant = query.get("variant", "video")
    if variant != "video":
        raise WrongFieldError("variant", f"variant {shown(variant)} is not made; 'video' is")


def _integer(name: str, value: object, least: int, most: int) -> int:
    """A form has its numbers as texts."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    return check_integer(name, value, least, most)


def _reference(fields: Mapping[str, Any]) -> bytes | None:
    name = "input_reference"
    value = fields.get(name, {"image_url": fields[REFERENCE_URL]} if REFERENCE_URL in fields else None)
    if value is None or isinstance(value, bytes):
        return value
    url = value.get("image_url") if isinstance(value, dict) and set(value) == {"image_url"} else None
    if isinstance(url, str) and (head := _DATA_URL.match(url)):
        try:
            return base64.b64decode(url[head.end() :], validate=True)
        except ValueError:
            pass
    raise WrongFieldError(
        name, f"{name} must be an image file, or {{'image_url': 'data:image/png;base64,...'}}"
    )
