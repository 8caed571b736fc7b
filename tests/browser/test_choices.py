"""Choosing a model, and the "More" panel: what is chosen reaches the server, and the page shows what it does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route

from .conftest import PHONE, WAIT_S, OpenPage, ServeTiny, wait_state, wait_until
from .wiretap import Wiretap

pytestmark = pytest.mark.browser

SETTINGS: dict[str, Any] = {"slots": 2, "resume_s": 0.0}


@contextmanager
def quiet(page: Page) -> Iterator[None]:
    """No error on the console meanwhile."""
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield
    assert errors == []


def models(live: Any) -> dict[str, Any]:
    answer: dict[str, Any] = live.get("/models").json()
    return answer


def start(page: Page) -> dict[str, Any]:
    """Start from the first picture; the server's answer to it."""
    with page.expect_response("**/z0/*") as response:
        page.locator("#pictures button[data-name]").first.click()
    answer: dict[str, Any] = response.value.json()
    return answer


def test_a_newcomer_sees_pictures_and_one_button_more(open_page: OpenPage, server_url: str) -> None:
    page = open_page(url=server_url)
    assert page.is_visible("#pictures")
    assert page.is_hidden("#panel")
    assert page.is_hidden("#model") == (len(page.request.get(f"{server_url}/models").json()["models"]) == 1)


def test_the_chosen_model_plays(open_page: OpenPage, serve_tiny: ServeTiny, screenshots: Path) -> None:
    live = serve_tiny(**SETTINGS)
    page = open_page(url=live.url)
    with quiet(page):
        labels = page.locator("#model-id option").all_inner_texts()
        assert labels == ["tiny-3nr · 3 passes, no clean pass", "tiny-3r · 3 passes + clean pass"]
        active = models(live)["active_model_id"]
        assert page.input_value("#model-id") == active
        wanted = "tiny-3nr" if active == "tiny-3r" else "tiny-3r"
        page.select_option("#model-id", wanted)
        assert "moment" in page.inner_text("#model-hint")
        page.screenshot(path=screenshots / "models_1280.png")
        assert start(page)["model_id"] == wanted
        wait_state(page, "playing")
        assert models(live)["active_model_id"] == wanted
        wait_until(page, "() => !document.getElementById('model-hint').textContent.includes('moment')")
        page.keyboard.press("Escape")
        # Without a choice of one's own, what is served stays.
        other = open_page(url=live.url)
        assert other.input_value("#model-id") == wanted


def test_a_model_in_play_can_be_joined_but_not_changed(
    open_page: OpenPage, serve_tiny: ServeTiny, screenshots: Path
) -> None:
    live = serve_tiny(**SETTINGS)
    active = models(live)["active_model_id"]
    page = open_page(url=live.url)
    with live.playing("ann") as ann:
        ann.unit()
        page.select_option("#model-id", "tiny-3nr" if active == "tiny-3r" else "tiny-3r")
        page.locator("#pictures button[data-name]").first.click()
        wait_state(page, "busy")
        page.screenshot(path=screenshots / "busy_model_1280.png")
        assert "when nobody plays" in page.inner_text("#card")
        page.get_by_role("button", name=f"Play {active}").click()
        wait_state(page, "playing")
        assert page.input_value("#model-id") == active


def test_a_refused_model_shows_the_server_s_words(open_page: OpenPage, serve_tiny: ServeTiny) -> None:
    live = serve_tiny(**SETTINGS)

    def one_more(route: Route) -> None:
        answer = models(live)
        answer["models"].append("ghost-3r")
        answer["details"]["ghost-3r"] = answer["details"]["tiny-3r"]
        route.fulfill(json=answer)

    page = open_page(url=live.url, before=lambda page: page.route("**/models", one_more))
    page.select_option("#model-id", "ghost-3r")
    page.locator("#pictures button[data-name]").first.click()
    wait_state(page, "refused")
    assert "ghost-3r" in page.inner_text("#card")
    assert "tiny-3nr" in page.inner_text("#card")


def test_the_panel_s_choices_reach_the_server(
    open_page: OpenPage, serve_tiny: ServeTiny, screenshots: Path
) -> None:
    live = serve_tiny(**SETTINGS)
    page = open_page(url=live.url, viewport={"width": 1280, "height": 1700})
    with quiet(page):
        page.select_option("#model-id", "tiny-3r")
        page.click("#more")
        assert page.is_disabled("#knob-nfe_mode")
        page.select_option("#knob-nfe", "6")
        page.select_option("#knob-nfe_mode", "grid")
        page.select_option("#knob-sphere", "all")
        page.select_option("#knob-reprefill_every", "64")
        page.select_option("#knob-focus_mask", "painted")
        painted = paint(page)
        assert page.inner_text("#more") == "More (5)"
        page.screenshot(path=screenshots / "panel_1280.png")
        answer = start(page)
        wait_state(page, "playing")
        wait_until(page, "() => document.getElementById('now-nfe').textContent.startsWith('Now: 6')")
        assert page.inner_text("#now-reprefill_every").startswith("Now: every 64 frames")
        page.keyboard.press("Escape")
    now = models(live)
    assert (now["nfe"]["override"], now["nfe"]["mode"], now["nfe"]["active_steps"]) == (6, "grid", 6)
    assert now["sphere"]["mode"] == "all"
    assert now["reprefill"]["every"] == 64
    assert (answer["focus"]["mode"], answer["focus"]["tokens"]) == ("custom", painted)

    page.click("#reset")
    assert page.inner_text("#more") == "More"
    start(page)
    wait_state(page, "playing")
    now = models(live)
    assert (now["nfe"]["override"], now["nfe"]["active_steps"], now["sphere"]["mode"]) == (None, 3, "off")


def paint(page: Page) -> int:
    """Paint a bar with the pointer and a cell with the keyboard; the number of cells."""
    board = page.locator(".board canvas")
    height, width = board.evaluate("(canvas) => [canvas.height, canvas.width]")
    box = board.bounding_box()
    assert box is not None
    cell = box["width"] / width
    page.mouse.move(box["x"] + 0.5 * cell, box["y"] + 0.5 * cell)
    page.mouse.down()
    page.mouse.move(box["x"] + 3.5 * cell, box["y"] + 0.5 * cell, steps=12)
    page.mouse.up()
    board.focus()
    for key in ("ArrowDown", "Space", "ArrowRight", "Space", "Space"):
        page.keyboard.press(key)
    assert f"{round(100 * 5 / (height * width))}\N{NO-BREAK SPACE}% painted" in page.inner_text(".painter p")
    return 5


def test_a_model_without_a_clean_pass_cannot_rebuild(open_page: OpenPage, serve_tiny: ServeTiny) -> None:
    page = open_page(url=serve_tiny(**SETTINGS).url)
    page.click("#more")
    page.select_option("#model-id", "tiny-3r")
    page.select_option("#knob-reprefill_every", "64")
    page.select_option("#model-id", "tiny-3nr")
    assert page.is_disabled("#knob-reprefill_every")
    assert "no clean pass" in page.inner_text("#why-reprefill_every")
    # What can't be chosen is not sent: the server would refuse it.
    assert start(page)["model_id"] == "tiny-3nr"
    wait_state(page, "playing")


def until_said(page: Page, sent: list[dict[str, Any]], field: str, value: object) -> None:
    """Wait until the newest message says this. How fast pictures are shown then is the machine's."""
    end = time.monotonic() + WAIT_S
    while field not in sent[-1] or sent[-1][field] != value:
        assert time.monotonic() < end, sent[-1]
        page.wait_for_timeout(20)


def test_the_rates_change_while_the_world_plays(open_page: OpenPage, serve_tiny: ServeTiny) -> None:
    live = serve_tiny(**SETTINGS)
    page = open_page(url=live.url)
    wire = Wiretap(page)
    start(page)
    wait_state(page, "playing")
    page.click("#more")
    assert page.inner_text("#now-stream_fps") == "Now: 15"
    page.select_option("#knob-stream_fps", "30")
    page.select_option("#knob-fps_embedding", "none")
    sent = wire.sockets[-1]
    until_said(page, sent, "stream_fps", 30)
    until_said(page, sent, "fps_embedding", None)
    assert "fps_embedding" not in sent[0]
    # A choice keeps the focus; keys still walk.
    page.keyboard.down("w")
    assert page.evaluate("() => worldloop.pressed.w")
    page.keyboard.up("w")
    page.click("#reset")
    until_said(page, sent, "stream_fps", 15)
    assert "fps_embedding" not in sent[-1]
    assert page.evaluate("() => worldloop.lastError") is None


def test_the_panel_fits_a_phone(open_page: OpenPage, serve_tiny: ServeTiny, screenshots: Path) -> None:
    page = open_page(url=serve_tiny(**SETTINGS).url, **{**PHONE, "viewport": {"width": 360, "height": 640}})
    page.click("#more")
    page.select_option("#knob-focus_mask", "painted")
    page.screenshot(path=screenshots / "panel_360.png")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    low = (
        "[...document.querySelectorAll('#panel select')].filter((s) => s.getBoundingClientRect().height < 44)"
    )
    assert page.evaluate(f"() => {low}.length") == 0
