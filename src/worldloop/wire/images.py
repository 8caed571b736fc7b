"""The shapes of the images API, as OpenAI's clients send and read them.

Owns fields, their ranges, and the form of answers and events. Does not own errors (`wire.openai`), whether a size fits
the device, or pictures (`session.pictures`). Called by `server.image_routes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from worldloop.wire.openai import (
    MAX_SEED,
    WrongFieldError,
    check_bool,
    check_choice,
    check_integer,
    check_known,
    check_model,
    check_number,
    check_text,
    shown,
)

MAX_COUNT = 10
MAX_PREVIEWS = 8
MAX_GUIDANCE = 100.0
MAX_SHIFT = 100.0
MIN_SHIFT = 0.01
MAX_USER = 512

FIELDS = (
    "prompt",
    "model",
    "n",
    "size",
    "response_format",
    "output_format",
    "stream",
    "partial_images",
    "seed",
    "negative_prompt",
    "num_inference_steps",
    "guidance_scale",
    "flow_shift",
    "background",
    "quality",
    "moderation",
    "style",
    "user",
    "safety_identifier",
)

SETTLED: Mapping[str, tuple[str, ...]] = {
    "background": ("auto", "opaque"),
    "quality": ("auto",),
    "moderation": ("auto", "low"),
    "style": ("auto",),
}
"""Fields that are no choice here, with the values that say what is done anyway."""

Format = Literal["png", "jpeg", "webp"]
FORMATS: tuple[Format, ...] = ("png", "jpeg", "webp")

_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


class ImageFacts(Protocol):
    """What is served; see `session.picture_host.PictureFacts`. Sizes are (height, width)."""

    @property
    def model(self) -> str: ...
    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def sizes(self) -> tuple[tuple[int, int], ...] | None: ...
    @property
    def multiple(self) -> int: ...
    @property
    def max_pixels(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def guidance(self) -> float: ...
    @property
    def shift(self) -> float: ...
    @property
    def steps_max(self) -> int: ...
    @property
    def prompt_max(self) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageForm:
    """A checked request.

    Attributes:
        size: (height, width).
        seed: of the first picture, the next has the next; None draws one.
        previews: pictures on the way, of each.
        file_format: of the files.
        as_url: pictures are answered by address, not in the answer.
    """

    prompt: str
    negative: str
    count: int
    size: tuple[int, int]
    seed: int | None
    steps: int
    guidance: float
    shift: float
    stream: bool
    previews: int
    file_format: Format
    as_url: bool


class ImageTimings(BaseModel):
    """Seconds: in the queue, of the device by phase, of writing the file, and from the request to the file."""

    queued: float
    device: dict[str, float]
    file: float
    total: float


class ImageAnswer(BaseModel):
    """One picture. Beyond OpenAI's `b64_json` and `url`: what it was really made with, as fields of a request."""

    b64_json: str | None = None
    url: str | None = None
    id: str
    model: str
    size: str
    seed: int
    num_inference_steps: int
    guidance_scale: float
    flow_shift: float
    negative_prompt: str
    pixel_hash: str
    file_hash: str
    noise_hash: str
    model_hash: str
    timings: ImageTimings
    receipt: dict[str, Any]


class QueuedEvent(BaseModel):
    """The request's place: how many come before it; 0 is made now."""

    type: Literal["image_generation.queued"] = "image_generation.queued"
    position: int
    eta_seconds: float | None


class StepEvent(BaseModel):
    """Picture `index` of the request is `done` of its passes far; `eta_seconds` until the whole request is."""

    type: Literal["image_generation.step"] = "image_generation.step"
    index: int
    done: int
    of: int
    eta_seconds: float | None


class PartialImageEvent(BaseModel):
    """What is seen of picture `index` so far."""

    type: Literal["image_generation.partial_image"] = "image_generation.partial_image"
    index: int
    partial_image_index: int
    b64_json: str
    created_at: int
    output_format: Format
    size: str
    background: Literal["opaque"] = "opaque"
    quality: Literal["auto"] = "auto"


class TokenDetails(BaseModel):
    """Nothing is counted in tokens here; clients' types need the field."""

    image_tokens: int = 0
    text_tokens: int = 0


class Usage(BaseModel):
    """As `TokenDetails`."""

    input_tokens: int = 0
    input_tokens_details: TokenDetails = TokenDetails()
    output_tokens: int = 0
    total_tokens: int = 0


class CompletedEvent(ImageAnswer):
    """Picture `index` of the request is there."""

    type: Literal["image_generation.completed"] = "image_generation.completed"
    index: int
    created_at: int
    output_format: Format
    background: Literal["opaque"] = "opaque"
    quality: Literal["auto"] = "auto"
    usage: Usage = Usage()


class ErrorAnswer(BaseModel):
    """What went wrong, as in an answer that is an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class FailedEvent(BaseModel):
    """There will be no more pictures. Clients raise on the field `error`."""

    type: Literal["image_generation.failed"] = "image_generation.failed"
    error: ErrorAnswer


class ImagesAnswer(BaseModel):
    """The answer of a request that does not stream."""

    created: int
    background: Literal["opaque"] = "opaque"
    output_format: Format
    size: str
    data: list[ImageAnswer]


def parse_image(fields: Mapping[str, Any], facts: ImageFacts) -> ImageForm:
    """Read `POST /v1/images/generations`. A field that is null counts as absent.

    Raises:
        WrongFieldError: names the field, what was found and what is allowed.
    """
    check_known(fields, FIELDS)
    given = {name: value for name, value in fields.items() if value is not None}
    check_model(given.get("model"), facts.model)
    for name, allowed in SETTLED.items():
        check_choice(name, given.get(name, "auto"), allowed)
    for name in ("user", "safety_identifier"):
        check_text(name, given.get(name, ""), MAX_USER, empty=True)
    count = check_integer("n", given.get("n", 1), 1, MAX_COUNT)
    stream = check_bool("stream", given.get("stream", False))
    previews = check_integer("partial_images", given.get("partial_images", 0), 0, MAX_PREVIEWS)
    if previews and not stream:
        raise WrongFieldError("partial_images", "partial_images needs stream to be true")
    return ImageForm(
        prompt=check_text("prompt", fields.get("prompt"), facts.prompt_max),
        negative=check_text(
            "negative_prompt", given.get("negative_prompt", ""), facts.prompt_max, empty=True
        ),
        count=count,
        size=_size(given.get("size", "auto"), facts),
        # Every picture's seed has to be one.
        seed=check_integer("seed", given["seed"], 0, MAX_SEED + 1 - count) if "seed" in given else None,
        steps=check_integer(
            "num_inference_steps", given.get("num_inference_steps", facts.steps), 1, facts.steps_max
        ),
        guidance=check_number("guidance_scale", given.get("guidance_scale", facts.guidance), 0, MAX_GUIDANCE),
        shift=check_number("flow_shift", given.get("flow_shift", facts.shift), MIN_SHIFT, MAX_SHIFT),
        stream=stream,
        previews=previews,
        file_format=_format(given.get("output_format", "png")),
        as_url=check_choice("response_format", given.get("response_format", "b64_json"), ("b64_json", "url"))
        == "url",
    )


def written(size: tuple[int, int]) -> str:
    """(height, width) as "WxH"."""
    return f"{size[1]}x{size[0]}"


def _format(value: object) -> Format:
    word = check_choice("output_format", value, FORMATS)
    return next(each for each in FORMATS if each == word)


def _size(value: object, facts: ImageFacts) -> tuple[int, int]:
    if value == "auto":
        return facts.size
    if facts.sizes is not None:
        allowed = " or ".join(f"'{written(size)}'" for size in facts.sizes)
    else:
        allowed = f"WIDTHxHEIGHT in multiples of {facts.multiple}"
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = (int(match[2]), int(match[1])) if match is not None else (0, 0)
    wrong = (
        size not in facts.sizes if facts.sizes is not None else any(side % facts.multiple for side in size)
    )
    if match is None or wrong:
        raise WrongFieldError("size", f"size {shown(value)} must be 'auto' or {allowed}")
    if (pixels := size[0] * size[1]) > facts.max_pixels:
        raise WrongFieldError(
            "size", f"size {value!r} has {pixels} pixels; at most {facts.max_pixels} are allowed"
        )
    return size
