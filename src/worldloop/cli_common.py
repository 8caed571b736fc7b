"""What all commands share: errors as one line, and `NAME=VALUE` flags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from worldloop.core.errors import InvalidInputError, WorldloopError


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn our own errors into one line and their exit code."""
    try:
        yield
    except WorldloopError as error:
        typer.echo(f"worldloop: {error}", err=True)
        raise typer.Exit(error.exit_code) from None


def assignments(pairs: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` pairs; numbers, booleans and lists as JSON, anything else as text."""
    result: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise InvalidInputError(f"--set {pair!r} must be NAME=VALUE")
        try:
            result[name] = json.loads(text)
        except json.JSONDecodeError:
            result[name] = text
    return result
