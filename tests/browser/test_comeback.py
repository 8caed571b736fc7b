"""A connection that breaks: the same world goes on, or the page says that it is too late."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from .conftest import PHONE, WAIT_S, Behind, OpenPage, ServeTiny, wait_state, wait_until
from .wiretap import Wiretap

pytestmark = pytest.mark.browser

LONG_S, SHORT_S = 60.0, 1.0


def play(page: Page) -> Wiretap:
    """Start from the first picture, and wait for moving pictures."""
    wire = Wiretap(page)
    page.locator("#pictures button[data-name]").first.click()
    wait_state(page, "playing")
    wait_until(page, "() => worldloop.framesShown > 4")
    return wire


def shown(page: Page) -> int:
    return int(page.evaluate("() => worldloop.framesShown"))


def seconds_left(page: Page) -> float:
    return float(page.evaluate("() => worldloop.readout().secondsLeft"))


def status(live: Any) -> dict[str, Any]:
    answer: dict[str, Any] = live.get("/status").json()
    return answer


def resumed(live: Any) -> float:
    """Games that were taken up again, by the server's count."""
    lines = live.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("worldloop_games_resumed_total")).split()[1])


def wait_status(live: Any, field: str, value: object, *, timeout_s: float = WAIT_S) -> None:
    """Poll `/status` until a field has a value."""
    end = time.monotonic() + timeout_s
    while (now := status(live))[field] != value:
        if time.monotonic() > end:
            pytest.fail(f"{field} is not {value} after {timeout_s:g} s: {now}")
        time.sleep(0.05)


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
def test_a_cut_connection_comes_back_to_the_same_world(
    behind: Behind, open_page: OpenPage, serve_tiny: ServeTiny, screenshots: Path, options: dict[str, object]
) -> None:
    live = serve_tiny(resume_s=LONG_S)
    proxy = behind(live)
    page = open_page(url=proxy.url, **options)
    wire, before = play(page), resumed(live)
    page.keyboard.down("d")
    proxy.refusing = True
    proxy.cut()
    wait_state(page, "held")
    page.wait_for_timeout(300)
    assert "Connection lost, coming back…" in page.inner_text("#card")
    assert "kept for" in page.inner_text("#card")
    page.screenshot(path=screenshots / f"held_{page.viewport_size['width'] if page.viewport_size else 0}.png")
    assert page.is_visible("#screen")
    # The world waits on the server, and its clock stands still on the page.
    wait_status(live, "ws_active", value=False)
    assert status(live)["busy"]
    left, frames = seconds_left(page), shown(page)
    page.wait_for_timeout(700)
    assert seconds_left(page) == left
    assert shown(page) == frames

    proxy.refusing = False
    wait_state(page, "playing")
    wait_until(page, f"() => worldloop.framesShown > {frames + 8}")
    assert wire.starts == 1
    assert 0 < seconds_left(page) < left
    # The new socket is told at once what is still held.
    assert wire.sockets[-1][0]["pressed"]["d"]
    assert resumed(live) == before + 1


def test_a_silent_connection_is_left_for_a_new_one(
    behind: Behind, open_page: OpenPage, serve_tiny: ServeTiny
) -> None:
    proxy = behind(serve_tiny(resume_s=LONG_S))
    page = open_page(url=proxy.url)
    wire = play(page)
    sockets = len(wire.sockets)
    # The browser knows that it has no network; the new connection finds one.
    page.evaluate("() => Object.defineProperty(navigator, 'onLine', { get: () => false })")
    # A close frame would reach the server and end the world there.
    proxy.silence()
    frames = shown(page)
    wait_until(page, f"() => worldloop.framesShown > {frames + 12}")
    assert page.evaluate("() => worldloop.state") == "playing"
    assert len(wire.sockets) == sockets + 1
    assert wire.starts == 1


def test_too_late_says_so_and_plays_the_same_picture_again(
    behind: Behind, open_page: OpenPage, serve_tiny: ServeTiny, screenshots: Path
) -> None:
    live = serve_tiny(resume_s=SHORT_S)
    proxy = behind(live)
    page = open_page(url=proxy.url)
    wire = play(page)
    proxy.refusing = True
    proxy.cut()
    wait_state(page, "late")
    page.screenshot(path=screenshots / "late_1280.png")
    assert "too late" in page.inner_text("#card")
    assert "kept this world for 1" in page.inner_text("#card")
    proxy.refusing = False
    page.get_by_role("button", name="Play again").click()
    wait_state(page, "playing")
    assert wire.starts == 2


def test_a_world_that_the_server_forgot_is_too_late_too(
    behind: Behind, open_page: OpenPage, serve_tiny: ServeTiny
) -> None:
    live = serve_tiny(resume_s=LONG_S)
    proxy = behind(live)

    def spoil(page: Page) -> None:
        # A token that nobody gave out, as after a restart of the server.
        page.add_init_script(
            """const Real = WebSocket;
            window.WebSocket = class extends Real {
              constructor(url) { super(url.replace(/resume=.*/, "resume=stranger")); }
            };"""
        )

    page = open_page(url=proxy.url, before=spoil)
    play(page)
    proxy.cut()
    wait_state(page, "late")
    assert "resume" in page.evaluate("() => worldloop.lastError")
    assert "too late" in page.inner_text("#card")
    # The server still keeps the world; its own player may replace it at once.
    page.get_by_role("button", name="Play again").click()
    wait_state(page, "playing")


def test_without_resume_a_cut_connection_is_lost(
    behind: Behind, open_page: OpenPage, serve_tiny: ServeTiny
) -> None:
    proxy = behind(serve_tiny(resume_s=0.0))
    page = open_page(url=proxy.url)
    play(page)
    proxy.cut()
    wait_state(page, "lost")
    assert page.get_by_role("button", name="Play again").is_visible()


@pytest.mark.parametrize("way", ["leave the page", "close the tab", "leave the world"])
def test_leaving_frees_the_place_at_once(open_page: OpenPage, serve_tiny: ServeTiny, way: str) -> None:
    live = serve_tiny(resume_s=LONG_S)
    page = open_page(url=live.url)
    play(page)
    assert status(live)["busy"]
    if way == "leave the page":
        page.goto("about:blank")
    elif way == "close the tab":
        page.close()
    else:
        page.keyboard.press("Escape")
    # A world whose connection breaks is kept, and keeps its place, for as long as `LONG_S`.
    wait_status(live, "busy", value=False, timeout_s=LONG_S / 2)


def test_leaving_while_the_connection_is_lost_chooses_again(
    behind: Behind, open_page: OpenPage, serve_tiny: ServeTiny
) -> None:
    live = serve_tiny(resume_s=LONG_S)
    proxy = behind(live)
    page = open_page(url=proxy.url)
    wire = play(page)
    proxy.refusing = True
    proxy.cut()
    wait_state(page, "held")
    page.keyboard.press("Escape")
    wait_state(page, "choose")
    proxy.refusing = False
    # One's own world that waits is no one else who plays.
    page.click("#actions button")
    wait_state(page, "playing")
    assert wire.starts == 2
