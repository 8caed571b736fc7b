"""Words to a world in a real browser: a picture appears step by step, one steps inside, and keys move it."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from worldloop.simulators.tiles import TILE_SIZE

from .conftest import SERVED, OpenPage, wait_state, wait_until
from .seeing import expect_first, first_sight
from .walking import free_tiles, hold, pass_by
from .wiretap import Wiretap

pytestmark = pytest.mark.browser

HELD = 2
"""The pass that waits while a drawing is cancelled."""
SEEDS = 12
"""Places that are drawn, at most, until one has room to walk."""


@pytest.fixture(scope="module")
def tiny(
    tmp_path_factory: pytest.TempPathFactory, load_script: Callable[[Path], ModuleType], one_thread: None
) -> Iterator[Any]:
    """A server of a random world and a random picture model of one autoencoder."""
    from worldloop.host import WorldHost
    from worldloop.picture_host import PictureHost
    from worldloop.testing import tiny_picture, tiny_world

    folder = tiny_world(tmp_path_factory.mktemp("browser") / "tiny")
    path = tiny_picture(folder)
    with closing(WorldHost.open(str(folder), threads=1, warmup=False)) as host:
        pictures = PictureHost.load(host.engine, path, device=host.model.device)
        with closing(load_script(SERVED).Live(host, picture_host=pictures, stream_fps=15)) as live:
            yield live


def watch_stage(page: Page) -> None:
    """Keep the address of every picture that the stage shows from now on."""
    page.evaluate(
        """() => {
          window.shownPictures = [];
          const image = document.getElementById("preview");
          new MutationObserver(() => window.shownPictures.push(image.src))
            .observe(image, { attributes: true, attributeFilter: ["src"] });
        }"""
    )


def shown_pictures(page: Page) -> list[np.ndarray]:
    """Pictures since `watch_stage`, uint8 `[H, W, 3]`."""
    addresses = page.evaluate("() => window.shownPictures")
    files = [base64.b64decode(address.partition(",")[2]) for address in addresses]
    return [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]


def draw(page: Page, words: str, seed: int) -> np.ndarray:
    """Have a place drawn; its picture, uint8 `[H, W, 3]`."""
    watch_stage(page)
    page.fill("#seed", str(seed))
    page.fill("#words", words)
    page.keyboard.press("Enter")
    wait_state(page, "drawn", timeout_s=120)
    return shown_pictures(page)[-1]


def test_a_picture_appears_step_by_step_and_is_stepped_into(open_page: OpenPage, tiny: Any) -> None:
    page = open_page(url=tiny.url)
    wire = Wiretap(page)
    picture = draw(page, "a lake in the east", 7)
    on_the_way = shown_pictures(page)

    # As many as steps can show, each nearer to the last.
    assert page.evaluate("() => worldloop.partials") == len(on_the_way) - 1 >= 2
    gaps = [np.abs(each.astype(int) - picture).mean() for each in on_the_way]
    assert picture.std() > 1
    assert gaps[0] > gaps[-1] == 0
    again = draw(page, "a lake in the east", 7)
    other = draw(page, "a lake in the east", 8)
    assert np.array_equal(again, picture)
    assert not np.array_equal(other, picture)

    expect_first(page)
    with page.expect_response("**/z0/*") as started:
        page.keyboard.press("Enter")  # on the button that steps inside
    wait_state(page, "playing", timeout_s=60)
    assert started.value.status == 200
    assert b"picture_id" in (started.value.request.post_data_buffer or b"")
    assert wire.starts == 1
    first = first_sight(page).picture.astype(float)
    shown = np.asarray(Image.fromarray(other).resize((160, 96), Image.Resampling.NEAREST)).astype(float)
    assert np.abs(first - shown).mean() < np.abs(first - shown[::-1]).mean()


def test_a_refusal_of_the_server_is_shown_and_another_order_works(open_page: OpenPage, tiny: Any) -> None:
    page = open_page(url=tiny.url)
    # The page checks a seed itself; a script can't.
    page.route(
        "**/v1/images/generations",
        lambda route: route.continue_(post_data={**route.request.post_data_json, "seed": -1}),
        times=1,
    )
    page.fill("#words", "a lake")
    page.click("#draw")
    wait_state(page, "refused")
    assert "seed" in page.inner_text("#card").lower()
    page.keyboard.press("Enter")
    assert draw(page, "a lake", 1).std() > 1


def test_cancelling_frees_the_queue(open_page: OpenPage, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from worldloop.loops.causal_pictures import CausalPictures

    predict, gate = CausalPictures.predict, threading.Event()

    def held(self: CausalPictures, *parts: Any, step: int, **more: Any) -> Any:
        assert step < HELD or gate.wait(60), "nobody opened the gate"
        return predict(self, *parts, step=step, **more)

    monkeypatch.setattr(CausalPictures, "predict", held)
    page = open_page(url=tiny.url)
    page.fill("#words", "a lake")
    page.click("#draw")
    wait_state(page, "drawing")
    wait_until(page, "() => worldloop.partials > 0", timeout_s=60)
    page.keyboard.press("Enter")  # the button that cancels has the focus
    wait_state(page, "choose")
    cancelled = 'worldloop_images_total{event="cancelled"} 1.0'
    for _ in range(2000):
        if cancelled in tiny.get("/metrics").text:
            break
    else:
        pytest.fail(f"no {cancelled}")
    gate.set()
    assert draw(page, "a lake", 1).std() > 1


def test_a_place_of_words_is_walked_in(open_page: OpenPage, screenshots: Path) -> None:
    page = open_page()
    for seed in range(SEEDS):
        picture = draw(page, "open grass, flowers in the north", seed)
        if min(free_tiles(png_of(picture))) >= 2:
            break
    else:
        pytest.fail(f"none of {SEEDS} places has room to walk both ways")
    page.screenshot(path=screenshots / "drawn_1280.png")
    assert page.evaluate("() => worldloop.partials") >= 3
    page.keyboard.press("Enter")
    wait_state(page, "playing", timeout_s=60)
    pass_by(page, 8)

    east, west, rest = hold(page, "d"), hold(page, "a"), hold(page, None)

    assert sum(east) <= -TILE_SIZE, f"D: {east}"
    assert sum(west) >= TILE_SIZE, f"A: {west}"
    assert sum(move == 0 for move in rest) >= 0.95 * len(rest) > 5, f"no key: {rest}"


def png_of(picture: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return out.getvalue()
