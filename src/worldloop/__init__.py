"""worldloop: the open-source server for generative worlds.

The package imports in milliseconds; torch loads on first use of a world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worldloop.core.errors import (
    BusyError,
    CheckpointError,
    EngineError,
    InvalidInputError,
    NotReadyError,
    PictureError,
    SessionEndedError,
    SettingsError,
    TicketError,
    WorldloopError,
)

if TYPE_CHECKING:
    from worldloop.api import Session, World, load_world

__version__ = "0.1.0"

__all__ = [
    "BusyError",
    "CheckpointError",
    "EngineError",
    "InvalidInputError",
    "NotReadyError",
    "PictureError",
    "Session",
    "SessionEndedError",
    "SettingsError",
    "TicketError",
    "World",
    "WorldloopError",
    "load_world",
]

_LAZY = ("Session", "World", "load_world")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from worldloop import api

        return getattr(api, name)
    raise AttributeError(f"module 'worldloop' has no attribute {name!r}")
