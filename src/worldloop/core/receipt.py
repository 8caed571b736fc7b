"""Receipts of pictures: what one was made from, on what, and the hashes of what came out, so that it can be made again.

Owns the form (JSON) and the comparison. Makes no pictures and reads no checkpoints. Written by the server and
`worldloop picture`, read by `worldloop verify`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from worldloop.core.errors import InvalidInputError

SCHEMA: Final = 1
"""Version of the form."""

_ORDER: Final = {
    "prompt": str, "negative": str, "size": list, "seed": int, "steps": int, "guidance": float, "shift": float,
}  # fmt: skip
_FORMATS: Final = ("png", "jpeg", "webp")
_MADE: Final = ("noise_hash", "pixel_hash", "file_hash")
"""What tells whether the same came out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """How one picture was made. Hashes are SHA-256, hexadecimal.

    Attributes:
        order: prompt, negative, size ([height, width]), seed, steps (as asked), guidance and shift.
        steps: that were made, after duplicates were dropped.
        format: of the file: png, jpeg or webp.
        model: its id.
        model_hash: of the checkpoint.
        noise_hash: of the noise that it began with, float32.
        pixel_hash: of the bytes of uint8 `[H, W, 3]`.
        file_hash: of the file.
        machine: what else the bytes depend on: device, number formats, threads, versions.
    """

    order: Mapping[str, Any]
    steps: int
    format: str
    model: str
    model_hash: str
    noise_hash: str
    pixel_hash: str
    file_hash: str
    machine: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Receipt:
        """Read a receipt's file; errors as `parse`, and when it cannot be read."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInputError(f"receipt {path.name}: {error.strerror or 'cannot be read'}") from None
        except ValueError as error:
            raise InvalidInputError(f"receipt {path.name}: not JSON: {error}") from None
        return cls.parse(found)

    @classmethod
    def parse(cls, found: object) -> Receipt:
        """A receipt from its JSON object.

        Raises:
            InvalidInputError: it is none; names the first thing that is wrong.
        """
        if not isinstance(found, dict):
            raise InvalidInputError("a receipt is a JSON object")
        if found.get("schema") != SCHEMA:
            raise InvalidInputError(f"receipt: schema={found.get('schema')!r}; {SCHEMA} is read here")
        kinds = {name: str for name in (f.name for f in fields(cls))}
        _check("receipt", found, {**kinds, "order": dict, "machine": dict, "steps": int, "schema": int})
        _check("receipt: order", found["order"], _ORDER)
        size = found["order"]["size"]
        if len(size) != 2 or not all(type(side) is int for side in size):
            raise InvalidInputError(f"receipt: order: size={size!r} must be [height, width]")
        if found["format"] not in _FORMATS:
            raise InvalidInputError(
                f"receipt: format={found['format']!r} must be one of {', '.join(_FORMATS)}"
            )
        order = {name: found["order"][name] for name in _ORDER}
        return cls(**{**{name: found[name] for name in kinds}, "order": {**order, "size": tuple(size)}})

    def differences(self, other: Receipt) -> list[str]:
        """How `other`, made again, is not this one: checkpoint and machine first, then what came out."""
        lines = []
        if other.model_hash != self.model_hash:
            lines.append(
                f"checkpoint: {self.model} {self.model_hash[:12]} then, {other.model} {other.model_hash[:12]} now"
            )
        for name in sorted({*self.machine, *other.machine}):
            then, now = self.machine.get(name), other.machine.get(name)
            if then != now:
                lines.append(f"{name}: {then} then, {now} now")
        if other.steps != self.steps:
            lines.append(f"steps: {self.steps} then, {other.steps} now")
        for name in _MADE:
            then, now = getattr(self, name), getattr(other, name)
            if then != now:
                lines.append(f"{name}: {then[:12]} then, {now[:12]} now")
        return lines

    def same_bytes(self, other: Receipt) -> bool:
        """Whether noise, pixels and file are equal."""
        return all(getattr(self, name) == getattr(other, name) for name in _MADE)


def _check(where: str, found: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    for name in found:
        if name not in kinds:
            raise InvalidInputError(f"{where}: unknown {name!r}; have {', '.join(kinds)}")
    for name, kind in kinds.items():
        value = found.get(name)
        whole_for_float = kind is float and type(value) is int
        if (
            type(value) is not kind
            and not whole_for_float
            and not (kind is list and isinstance(value, tuple))
        ):
            raise InvalidInputError(f"{where}: {name}={value!r} must be {_NAMES[kind]}")


_NAMES: Final = {str: "text", int: "a whole number", float: "a number", dict: "an object", list: "a list"}
