"""Files: written whole or not at all, and told apart by what is in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldloop.core.errors import InvalidInputError


def check_writable(path: Path) -> None:
    """Whether a file may be written there, asked before the work of hours is to be saved.

    Raises:
        InvalidInputError: `path` is a folder, or its own folder is missing.
    """
    if path.is_dir():
        raise InvalidInputError(f"{path.name} cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{path.name} cannot be written: there is no folder {str(path.parent)!r}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the block ends well, and is gone when not.

    Raises:
        InvalidInputError: as `check_writable`.
    """
    check_writable(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def file_hash(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
