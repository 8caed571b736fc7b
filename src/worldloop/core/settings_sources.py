"""Where settings come from, and what is said when one is wrong.

Owns reading a file, and the sentences. Does not own names and ranges (`core.settings`), its only user.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from worldloop.core.errors import SettingsError


class Given(PydanticBaseSettingsSource):
    """A source that is a dictionary already."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = dict(values)

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def read_toml(path: Path) -> dict[str, Any]:
    """A settings file's values. Raises `SettingsError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {path.name}: {error.strerror or 'cannot be read'}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path.name}: not TOML: {error}") from None


def check_name(name: str, names: Iterable[str], source: str, *, shown: str | None = None) -> None:
    """Raise `SettingsError`, with what is like it, unless `name` is among `names`."""
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise SettingsError(f"unknown setting {shown or name!r} ({source}){hint}")


def explain(error: ValidationError) -> str:
    """Every problem, by the setting's name."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in problem["loc"]) or "settings"
        lines.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
