"""worldloop: the open-source server for generative worlds.

The package imports in milliseconds; torch loads on first use of a world. Importing it also makes
"worldloop/Dream-v0" known to Gymnasium, if that is used.
"""

from __future__ import annotations

from importlib import import_module
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
    SnapshotError,
    TicketError,
    WorldloopError,
)
from worldloop.registration import register

if TYPE_CHECKING:
    from worldloop.api import Session, World, load_world
    from worldloop.facade import CtrlInput, WorldEngine
    from worldloop.pictures import PictureMaker, load_picture
    from worldloop.videos import Roll, VideoMaker, load_video

__version__ = "0.1.0"

__all__ = [
    "BusyError",
    "CheckpointError",
    "CtrlInput",
    "EngineError",
    "InvalidInputError",
    "NotReadyError",
    "PictureError",
    "PictureMaker",
    "Roll",
    "Session",
    "SessionEndedError",
    "SettingsError",
    "SnapshotError",
    "TicketError",
    "VideoMaker",
    "World",
    "WorldEngine",
    "WorldloopError",
    "load_picture",
    "load_video",
    "load_world",
]

_LAZY = {
    "CtrlInput": "facade",
    "PictureMaker": "pictures",
    "Roll": "videos",
    "Session": "api",
    "VideoMaker": "videos",
    "World": "api",
    "WorldEngine": "facade",
    "load_picture": "pictures",
    "load_video": "videos",
    "load_world": "api",
}

register()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"worldloop.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'worldloop' has no attribute {name!r}")
