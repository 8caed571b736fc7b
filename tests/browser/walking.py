"""Walking on the page: how much room there is, and how the content moves while a key is held.

Counts pictures, not seconds, so that a busy machine sees what an idle one sees.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from playwright.sync_api import Page

from worldloop.simulators.measure import tile_kinds
from worldloop.simulators.tiles import SOLID

from .conftest import wait_until
from .seeing import begin_recording, end_recording, shifts

WALKER_ROW, WALKER_COLUMN = 3, 5
HELD_PICTURES, SETTLE_PICTURES = 40, 16


def free_tiles(png: bytes) -> tuple[int, int]:
    """Walkable tiles in view to the west and to the east of the walker."""
    kinds, _ = tile_kinds(np.asarray(Image.open(io.BytesIO(png)).convert("RGB")))
    solid = SOLID[kinds[WALKER_ROW]]
    west, east = solid[:WALKER_COLUMN][::-1], solid[WALKER_COLUMN + 1 :]
    return _run(west), _run(east)


def _run(solid: np.ndarray) -> int:
    return int(np.argmax(solid)) if solid.any() else len(solid)


def pass_by(page: Page, pictures: int) -> None:
    """Wait for so many pictures more, however long a busy machine takes."""
    shown = page.evaluate("() => worldloop.framesShown")
    wait_until(page, f"() => worldloop.framesShown >= {shown + pictures}", timeout_s=120)


def hold(page: Page, key: str | None) -> list[int]:
    """Hold a key, or none, for some pictures; the shifts between them."""
    begin_recording(page)
    if key is not None:
        page.keyboard.down(key)
    pass_by(page, HELD_PICTURES)
    if key is not None:
        page.keyboard.up(key)
    moves = shifts(end_recording(page))
    pass_by(page, SETTLE_PICTURES)
    return moves
