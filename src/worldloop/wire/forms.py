"""The form fields of `POST /z0`, read into plain values.

Owns synonyms and ranges of the fields. Whether a choice fits the active checkpoint is the host's to say.
Called by `server.world_routes`, which makes the host's `GameOptions` of the result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worldloop.core.errors import InvalidInputError

NFE_MODES = ("repeat", "grid")
SPHERE_MODES = ("off", "decode", "all")
REPREFILL_MAX = 4096
GRID_MAX = 256

Mask = tuple[tuple[bool, ...], ...]

_SPHERE_WORDS = {"": "off", "0": "off", "false": "off", "none": "off", "1": "all", "true": "all", "on": "all"}
_DIGITS = re.compile(r"[0-9]{1,9}")
_GRID = re.compile(r"([0-9]{1,3})x([0-9]{1,3})")


@dataclass(frozen=True, kw_only=True, slots=True)
class StartForm:
    """Fields of `POST /z0` beside the file; see `session.host.GameOptions` for their meaning.

    `picture_id` names a picture that this server made; None: the file is the picture.
    """

    picture_id: str | None = None
    nfe: int | None = None
    nfe_mode: str = "repeat"
    sphere: str = "off"
    reprefill_every: int | None = None
    focus: str | Mask | None = None


def parse_start_form(
    *,
    picture_id: str = "",
    file: bool = False,
    nfe: str = "",
    nfe_mode: str = "",
    sphere: str = "",
    reprefill_every: str = "",
    focus_mask: str = "",
    nfe_max: int = 32,
) -> StartForm:
    """Read every field; `file`: a picture was sent as a file.

    Raises:
        InvalidInputError: names the field, what was found and what is allowed.
    """
    return StartForm(
        picture_id=parse_picture_id(picture_id, file=file),
        nfe=parse_nfe(nfe, maximum=nfe_max),
        nfe_mode=parse_nfe_mode(nfe_mode),
        sphere=parse_sphere(sphere),
        reprefill_every=parse_reprefill(reprefill_every),
        focus=parse_focus_mask(focus_mask),
    )


def parse_picture_id(raw: str, *, file: bool) -> str | None:
    """Empty: None. Whether there is such a picture is not the wire's to say."""
    word = raw.strip()
    if word and file:
        raise InvalidInputError("send either the file z0_image or picture_id, not both")
    return word or None


def parse_nfe(raw: str, *, maximum: int) -> int | None:
    """Empty or 0: None, the checkpoint's own number of denoising calls."""
    word = raw.strip()
    allowed = f"nfe must be an integer in 1..{maximum}, or 0 for the checkpoint's own"
    value = _integer(word or "0", allowed)
    if value > maximum:
        raise InvalidInputError(f"{allowed}; got {value}")
    return value or None


def parse_nfe_mode(raw: str) -> str:
    """Empty: `repeat`."""
    word = raw.strip().lower() or NFE_MODES[0]
    if word not in NFE_MODES:
        raise InvalidInputError(f"nfe_mode must be one of {', '.join(NFE_MODES)}; got {_shown(raw)}")
    return word


def parse_sphere(raw: str) -> str:
    """`off`, `decode` or `all`, with the synonyms of the published server."""
    word = raw.strip().lower()
    word = _SPHERE_WORDS.get(word, word)
    if word not in SPHERE_MODES:
        raise InvalidInputError(f"sphere must be one of {', '.join(SPHERE_MODES)}; got {_shown(raw)}")
    return word


def parse_reprefill(raw: str) -> int | None:
    """Empty: None, keep what is served. 0 or a word for off: 0."""
    word = raw.strip().lower()
    if not word:
        return None
    if word in ("off", "none", "false"):
        return 0
    allowed = f"reprefill_every must be an integer in 0..{REPREFILL_MAX}"
    value = _integer(word, allowed)
    if value > REPREFILL_MAX:
        raise InvalidInputError(f"{allowed}; got {value}")
    return value


def parse_focus_mask(raw: str) -> str | Mask | None:
    """Empty: None, the served default. `none`: no region. `HxW:bits`: rows of booleans, `[H][W]`."""
    word = raw.strip().lower()
    if word in ("", "default", "diamond", "keep"):
        return None
    if word in ("none", "off", "0", "false"):
        return "none"
    grid, colon, bits = word.partition(":")
    size = _GRID.fullmatch(grid.strip())
    if not colon or size is None:
        raise InvalidInputError("focus_mask must be empty, 'none' or 'HxW:' and H*W characters of 0 and 1")
    height, width = int(size[1]), int(size[2])
    if not (1 <= height <= GRID_MAX and 1 <= width <= GRID_MAX):
        raise InvalidInputError(f"focus_mask grid {height}x{width} must be within 1..{GRID_MAX} each way")
    bits = bits.strip()
    if len(bits) != height * width or set(bits) - {"0", "1"}:
        raise InvalidInputError(f"focus_mask {height}x{width} needs {height * width} characters of 0 and 1")
    if "1" not in bits:
        raise InvalidInputError("focus_mask marks nothing; send 'none' for no region")
    return tuple(tuple(bit == "1" for bit in bits[row * width : (row + 1) * width]) for row in range(height))


def _integer(word: str, allowed: str) -> int:
    if not _DIGITS.fullmatch(word):
        raise InvalidInputError(f"{allowed}; got {_shown(word)}")
    return int(word)


def _shown(raw: str) -> str:
    return repr(raw if len(raw) <= 40 else raw[:40] + "...")
