"""What a test sees on the page's canvas, as arrays, and how its content moved.

Owns no browser. The recorder runs in the page, so that no picture is missed between two calls.
"""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Page

HEIGHT: Final = 96
WIDTH: Final = 160
WALKER: Final = (slice(48, 64), slice(80, 96))
"""Rows and columns of the walker's cell, which animates in place."""

REACH: Final = 7
"""Largest shift looked for between two pictures: below half a tile, as rows of equal tiles repeat."""

# Reads the canvas at its model size: a stream may enlarge every pixel.
_GRAB = """() => {
  const small = new OffscreenCanvas(160, 96);
  const context = small.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = false;
  window.grab = () => {
    context.drawImage(document.getElementById("screen"), 0, 0, 160, 96);
    const bytes = context.getImageData(0, 0, 160, 96).data;
    let text = "";
    for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
    return { index: worldloop.framesShown, pixels: btoa(text) };
  };
}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """One picture: its number on the page, and uint8 `[96, 160, 3]`."""

    index: int
    picture: NDArray[np.uint8]


def _sight(grabbed: dict[str, object]) -> Sight:
    pixels = np.frombuffer(base64.b64decode(str(grabbed["pixels"])), np.uint8)
    return Sight(index=int(str(grabbed["index"])), picture=pixels.reshape(HEIGHT, WIDTH, 4)[..., :3].copy())


def expect_first(page: Page) -> None:
    """Keep the next game's first picture for `first_sight`."""
    page.evaluate(_GRAB)
    page.evaluate(
        """() => { window.firstSight = new Promise((resolve) => {
          const look = () => worldloop.framesShown > 0 ? resolve(grab()) : requestAnimationFrame(look);
          requestAnimationFrame(look);
        }); }"""
    )


def first_sight(page: Page) -> Sight:
    """The picture that `expect_first` waited for."""
    return _sight(page.evaluate("() => window.firstSight"))


def begin_recording(page: Page) -> None:
    """Keep every picture from now on."""
    page.evaluate(_GRAB)
    page.evaluate(
        """() => {
          window.sights = [grab()];
          const look = () => {
            if (window.sights === null) return;
            if (worldloop.framesShown !== window.sights.at(-1).index) window.sights.push(grab());
            requestAnimationFrame(look);
          };
          requestAnimationFrame(look);
        }"""
    )


def end_recording(page: Page) -> list[Sight]:
    """Every picture since `begin_recording`."""
    grabbed = page.evaluate("() => { const all = window.sights; window.sights = null; return all; }")
    return [_sight(one) for one in grabbed]


def shift(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> int:
    """Columns by which the content moved to the right (negative: left), within `REACH`.

    The walker's cell is left out on both sides. Standing still wins ties, as on a picture of one colour.
    """
    old, new = before.astype(np.float32), after.astype(np.float32)
    seen = np.ones((HEIGHT, WIDTH), np.bool_)
    seen[WALKER] = False
    costs: dict[int, float] = {}
    for columns in sorted(range(-REACH, REACH + 1), key=abs):
        here = slice(max(columns, 0), WIDTH + min(columns, 0))
        there = slice(max(-columns, 0), WIDTH + min(-columns, 0))
        both = seen[:, here] & seen[:, there]
        costs[columns] = float(np.abs(new[:, here] - old[:, there])[both].mean())
    return min(costs, key=lambda columns: costs[columns])


def shifts(sights: list[Sight]) -> list[int]:
    """Shift between pictures that follow one another; pairs with a missed picture between are left out."""
    pairs = itertools.pairwise(sights)
    return [shift(a.picture, b.picture) for a, b in pairs if b.index - a.index == 1]
