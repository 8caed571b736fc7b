"""Playing in a real browser: pictures arrive, keys move the world the right way, uploads start worlds."""

from __future__ import annotations

import io
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image, ImageOps
from playwright.sync_api import Page

from worldloop.simulators.tiles import TILE_SIZE

from .conftest import PHONE, OpenPage, wait_state, wait_until
from .seeing import expect_first, first_sight, shift
from .walking import free_tiles, hold

pytestmark = pytest.mark.browser


def roomiest_picture(page: Page) -> str:
    """Name of the gallery picture with the most room on both sides of the walker."""
    sources = page.evaluate(
        "() => [...document.querySelectorAll('#pictures button[data-name]')]"
        ".map((button) => [button.dataset.name, button.querySelector('img').src])"
    )
    room: dict[str, int] = {}
    for name, source in sources:
        with urlopen(source) as answer:
            room[name] = min(free_tiles(answer.read()))
    best = max(room, key=lambda name: room[name])
    assert room[best] >= 2, f"no start picture leaves room to walk both ways: {room}"
    return best


def play(page: Page, name: str) -> None:
    """Start from a gallery picture with one click, and wait for moving pictures."""
    page.click(f"#pictures button[data-name='{name}']")
    wait_state(page, "playing", timeout_s=60)
    wait_until(page, "() => worldloop.framesShown > 8")


def test_keys_move_the_world_and_nothing_moves_without(open_page: OpenPage, screenshots: Path) -> None:
    page = open_page()
    page.screenshot(path=screenshots / "choose_1280.png")
    play(page, roomiest_picture(page))

    east = hold(page, "d")
    page.screenshot(path=screenshots / "playing_1280.png")
    west = hold(page, "a")
    still = hold(page, None)

    # The way is free for two tiles at least, of which a busy machine may miss some pictures; what lies beyond the
    # picture's edge is dreamed and may be solid.
    assert sum(east) <= -TILE_SIZE, f"D: {east}"
    assert sum(move > 0 for move in east) <= 0.1 * sum(move < 0 for move in east), f"D: {east}"
    assert sum(west) >= TILE_SIZE, f"A: {west}"
    assert sum(move < 0 for move in west) <= 0.1 * sum(move > 0 for move in west), f"A: {west}"
    assert sum(move == 0 for move in still) >= 0.95 * len(still) > 5, f"no key: {still}"
    readout = page.evaluate("() => worldloop.readout()")
    assert readout["picturesPerSecond"] > 0
    assert readout["latencyMs"] > 0


def test_the_measure_of_motion_sees_a_planted_shift() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (96, 160, 3)).astype(np.uint8)
    assert shift(picture, np.roll(picture, -4, axis=1)) == -4
    assert shift(picture, np.roll(picture, 3, axis=1)) == 3
    assert shift(picture, picture) == 0


def test_arrow_keys_walk_and_a_lost_focus_lets_go(open_page: OpenPage) -> None:
    page = open_page()
    play(page, roomiest_picture(page))
    page.keyboard.down("ArrowRight")
    assert page.evaluate("() => worldloop.pressed.d")
    page.evaluate("() => window.dispatchEvent(new Event('blur'))")
    assert not page.evaluate("() => worldloop.pressed.d")


def test_a_bad_message_is_reported_and_the_game_goes_on(open_page: OpenPage) -> None:
    page = open_page()
    play(page, roomiest_picture(page))
    page.evaluate("() => worldloop.debugSend('{ this is not JSON')")
    wait_until(page, "() => worldloop.lastError !== null")
    assert page.is_visible("#notice")
    shown = page.evaluate("() => worldloop.framesShown")
    wait_until(page, f"() => worldloop.framesShown > {shown + 8}")
    assert page.evaluate("() => worldloop.state") == "playing"


def test_escape_leaves_and_the_same_picture_plays_again(open_page: OpenPage) -> None:
    page = open_page()
    play(page, roomiest_picture(page))
    page.keyboard.press("Escape")
    wait_state(page, "choose")
    page.click("#actions button")
    wait_state(page, "playing", timeout_s=60)


def test_autoplay_starts_the_named_picture(open_page: OpenPage) -> None:
    name = roomiest_picture(open_page())
    page = open_page(f"?autoplay={name}")
    wait_state(page, "playing", timeout_s=60)


def portrait_photo() -> tuple[bytes, np.ndarray]:
    """A JPEG stored on its side with EXIF orientation 6, and the upright crop, uint8 [96, 160, 3].

    Upright: four colours in the middle, grey bands at the head and foot that a centred cover crop cuts away.
    """
    upright = np.full((900, 600, 3), 128, np.uint8)
    upright[250:450, :300], upright[250:450, 300:] = (210, 40, 40), (40, 170, 60)
    upright[450:650, :300], upright[450:650, 300:] = (40, 70, 210), (235, 220, 90)
    stored = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    stored.save(file, "JPEG", quality=95, exif=exif)
    assert ImageOps.exif_transpose(Image.open(io.BytesIO(file.getvalue()))).size == (600, 900)
    return file.getvalue(), np.asarray(ImageOps.fit(Image.fromarray(upright), (160, 96)))


def test_an_uploaded_portrait_is_upright_and_covers(open_page: OpenPage, screenshots: Path) -> None:
    photo, wanted = portrait_photo()
    page = open_page()
    expect_first(page)
    page.set_input_files("#file", {"name": "portrait.jpg", "mimeType": "image/jpeg", "buffer": photo})
    wait_state(page, "playing", timeout_s=60)
    first = first_sight(page)
    page.screenshot(path=screenshots / "upload_1280.png")
    # A decoder that is slow to begin may show a later picture first; without a key it is as good as the first.
    assert first.index <= 9
    # The autoencoder of a small world can't draw flat colours well: each quadrant must be nearest its own.
    seen = [first.picture[rows, columns].mean((0, 1)) for rows, columns in quadrants()]
    own = [wanted[rows, columns].mean((0, 1)) for rows, columns in quadrants()]
    nearest = [int(np.argmin([np.abs(colour - other).sum() for other in own])) for colour in seen]
    assert nearest == [0, 1, 2, 3], f"quadrants {np.round(seen).tolist()} for {np.round(own).tolist()}"


def quadrants() -> list[tuple[slice, slice]]:
    """Inner parts of the four quadrants, clear of their borders."""
    rows, columns = (slice(6, 42), slice(54, 90)), (slice(10, 70), slice(90, 150))
    return [(row, column) for row in rows for column in columns]


def test_a_thumb_on_the_pad_is_a_key(open_page: OpenPage, screenshots: Path) -> None:
    page = open_page(**PHONE)
    page.screenshot(path=screenshots / "choose_390.png")
    play(page, roomiest_picture(page))
    page.screenshot(path=screenshots / "playing_390.png")
    devtools = page.context.new_cdp_session(page)

    def touch(kind: str, key: str | None) -> None:
        points = []
        if key is not None:
            box = page.locator(f"#pad [data-key='{key}']").bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 44
            points = [{"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        held = "Object.keys(worldloop.pressed).filter((key) => worldloop.pressed[key]).join()"
        wait_until(page, f"() => {held} === '{key or ''}'")

    touch("touchStart", "d")
    touch("touchMove", "a")
    touch("touchMove", "w")
    touch("touchEnd", None)
