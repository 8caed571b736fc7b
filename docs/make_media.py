"""Makes the pictures of the README from the real thing: `python docs/make_media.py [clip] [page] [prompt]`, or all.

The clip is dreamed through the Python API. The screenshots are of the page in Chromium, playing a live game, and
drawing a place from words.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

import worldloop

FOLDER = Path(__file__).parent / "images"
LATENTS = 44
BLOCKED = 12.0
"""Mean difference of two pictures, in byte values, under which the walker stood still."""
SCALE = 3
GIF_MS = 60
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def make_clip(path: Path, picture: str, seed: int) -> None:
    """A GIF of every second dreamed picture, near the speed of play: a stroll that turns where it is blocked."""
    rng = np.random.default_rng(seed)
    with worldloop.load_world("meadow") as world, world.start(picture, seed=seed) as session:
        frames = [session.first[0], *session.step()[1::2]]
        key, left = "d", 6
        for _ in range(LATENTS):
            made = session.step({key})
            moved = np.abs(made[3].astype(float) - frames[-1]).mean() > BLOCKED
            frames.extend(made[1::2])
            left -= 1
            if not moved or left == 0:
                key, left = str(rng.choice([k for k in "wasd" if k != key])), int(rng.integers(3, 9))
    height, width = frames[0].shape[:2]
    size = (width * SCALE, height * SCALE)
    images = [Image.fromarray(frame).resize(size, Image.Resampling.NEAREST) for frame in frames]
    palette = Image.fromarray(np.concatenate(frames[::15])).quantize(200)
    images = [image.quantize(200, palette=palette, dither=Image.Dither.NONE) for image in images]
    images[0].save(path, save_all=True, append_images=images[1:], duration=GIF_MS, loop=0, optimize=True)


WORDS = "a lake in the east, pine forest in the north, a path"
SEED = 3


@contextmanager
def server() -> Iterator[str]:
    """A real server's URL."""
    command = [sys.executable, "-m", "worldloop", "play", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("ready ").strip()
        process.send_signal(signal.SIGTERM)


def make_screenshots(folder: Path) -> None:
    """`page.png` while a game plays, and `phone.png`."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        for name, size in (("page", (1280, 860)), ("phone", (390, 844))):
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]},
                has_touch=name == "phone",
                color_scheme="light",
            )
            page = context.new_page()
            page.goto(f"{url}/?autoplay=crossroads")
            page.wait_for_selector("body[data-state=playing]")
            page.keyboard.down("a")
            page.wait_for_timeout(2500)
            page.screenshot(path=str(folder / f"{name}.png"))
            context.close()
        browser.close()


def make_prompt(path: Path) -> None:
    """The page once a place is drawn from words."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
        page.goto(url)
        page.fill("#words", WORDS)
        page.fill("#seed", str(SEED))
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-state=drawn]")
        page.screenshot(path=str(path))
        browser.close()


MEDIA = {"clip", "page", "prompt"}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    wanted = set(sys.argv[1:]) or MEDIA
    if unknown := wanted - MEDIA:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; have {', '.join(sorted(MEDIA))}")
    if "clip" in wanted:
        make_clip(FOLDER / "meadow.gif", "greenwood", seed=9)
    if "page" in wanted:
        make_screenshots(FOLDER)
    if "prompt" in wanted:
        make_prompt(FOLDER / "prompt.png")
