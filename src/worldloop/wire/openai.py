"""What all of OpenAI's shapes have in common: errors, models, and checks of single fields.

Owns the form of an error and the sentences that refuse a field. Does not own any route's fields (`wire.videos`,
`wire.images`). Called by them and by `server.openai`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import BaseModel

from worldloop.core.errors import InvalidInputError

MAX_SEED = 2**32 - 1

Capability = Literal["world", "video", "picture"]


class WrongFieldError(InvalidInputError):
    """A field of the request is wrong; `param` names it, None when it is the body as a whole."""

    def __init__(self, param: str | None, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param, self.code = param, code


class PictureFactsAnswer(BaseModel):
    """What pictures a model makes: `sizes` are the only ones, null for any multiple of `multiple` that fits."""

    size: str
    sizes: list[str] | None
    multiple: int
    max_pixels: int
    num_inference_steps: int
    guidance_scale: float
    flow_shift: float
    prompt_max: int


class ModelAnswer(BaseModel):
    """One model. Beyond OpenAI's fields: what it can do, and of what makes pictures, which ones."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "worldloop"
    capabilities: list[Capability]
    picture: PictureFactsAnswer | None = None


class ModelListAnswer(BaseModel):
    """Every model that is served."""

    object: Literal["list"] = "list"
    data: list[ModelAnswer]


REQUEST_ERROR = "invalid_request_error"
"""The kind of errors that are the client's."""


def error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def check_known(fields: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Every field is one of these; else `WrongFieldError`, as all checks here."""
    for name in fields:
        if name not in allowed:
            raise WrongFieldError(
                printable(name[:64]),
                f"unknown field {shown(name)}; have {', '.join(allowed)}",
                code="unknown_parameter",
            )


def check_integer(name: str, value: object, least: int, most: int) -> int:
    """A whole number; neither a truth value nor 3.0 is one."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WrongFieldError(name, f"{name} {shown(value)} must be a whole number in {least}..{most}")
    return value


def check_number(name: str, value: object, least: float, most: float) -> float:
    """A finite number, whole or not."""
    wrong = isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most
    if wrong or not math.isfinite(value):  # type: ignore[arg-type]
        raise WrongFieldError(name, f"{name} {shown(value)} must be a number in {least:g}..{most:g}")
    return float(value)  # type: ignore[arg-type]


def check_bool(name: str, value: object) -> bool:
    """true or false, as such."""
    if not isinstance(value, bool):
        raise WrongFieldError(name, f"{name} {shown(value)} must be true or false")
    return value


def check_choice(name: str, value: object, allowed: Collection[str]) -> str:
    """One of these words."""
    if not isinstance(value, str) or value not in allowed:
        words = " or ".join(repr(word) for word in allowed)
        raise WrongFieldError(name, f"{name} {shown(value)} must be {words}")
    return value


def check_text(name: str, value: object, longest: int, *, empty: bool = False) -> str:
    """A text of at most `longest` characters, which says something unless it may be `empty`."""
    if not isinstance(value, str) or not (empty or value.strip()):
        what = "a text" if empty else "a text that says something"
        raise WrongFieldError(name, f"{name} {shown(value)} must be {what}")
    if len(value) > longest:
        raise WrongFieldError(name, f"{name} has {len(value)} characters; at most {longest} are allowed")
    if printable(value) != value:
        raise WrongFieldError(name, f"{name} holds half of a character (a lone surrogate); send whole ones")
    return value


def check_model(value: object, served: str) -> None:
    """Absent, or the served model's id."""
    if value is not None and value != served:
        raise WrongFieldError("model", f"model {shown(value)} is not served; {served!r} is")


def shown(value: object) -> str:
    """A value as a message may hold it."""
    text = repr(value)
    return text if len(text) <= 64 else text[:60] + " ..."


def printable(text: str) -> str:
    """The text with what UTF-8 can't hold replaced."""
    return text.encode(errors="replace").decode()
