"""What a device's errors mean to the engine, which knows none of them. Called by `host`."""

from __future__ import annotations

from worldloop.engine.engine import Failure
from worldloop.models import device


def classify(error: BaseException) -> Failure:
    """The kind of an error that came out of a plan."""
    if device.out_of_memory(error):
        return Failure.MEMORY
    return Failure.DEVICE if device.is_lost(error) else Failure.SESSION
