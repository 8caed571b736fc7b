"""Every state that a player can be put in, with its words and its way out. Answers are scripted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute

from worldloop.core.types import KEYS

from .conftest import OpenPage, wait_state, wait_until

pytestmark = pytest.mark.browser

PROFILE = {"name": "meadow", "jump_sprint": False, "controls": ["w", "a", "s", "d"]}
FIRST_PERSON = {
    "name": "maze",
    "jump_sprint": True,
    "controls": ["w", "a", "s", "d", "left", "right", "space", "shift"],
}


def answer_start(page: Page, *, status: int = 200, body: object = None, profile: object = None) -> None:
    """Script the two requests of a start: `status` and `body` for the first, success for the second."""
    payload = {"success": True, "profile": profile or PROFILE} if body is None else body

    def first(route: Route) -> None:
        if isinstance(payload, str):
            route.fulfill(status=status, body=payload, content_type="text/plain")
        else:
            route.fulfill(status=status, json=payload)

    page.route("**/z0/*", first)
    page.route("**/create-game/*", lambda route: route.fulfill(json={"success": True}))


def close_socket(page: Page, *, code: int, reason: str = "", before: tuple[object, ...] = ()) -> None:
    """Script the socket: some texts, then a close."""

    def serve(socket: WebSocketRoute) -> None:
        for message in before:
            socket.send(json.dumps(message))
        socket.close(code=code, reason=reason)

    page.route_web_socket("**/ws/*", serve)


def start(page: Page) -> None:
    page.locator("#pictures button[data-name]").first.click()


def words(page: Page) -> str:
    return page.inner_text("#card")


def test_busy_counts_down_retries_and_can_be_cancelled(open_page: OpenPage, screenshots: Path) -> None:
    page = open_page(before=lambda page: page.clock.install())
    answer_start(page, status=423, body="Every place is taken.")
    start(page)
    wait_state(page, "busy")
    page.screenshot(path=screenshots / "busy_1280.png")
    assert "5" in words(page)
    page.clock.run_for(2000)
    assert "3" in words(page)
    with page.expect_request("**/z0/*"):
        page.clock.run_for(3000)
    wait_state(page, "busy")
    page.get_by_role("button", name="Cancel").click()
    wait_state(page, "choose")


def test_a_full_server_at_the_socket_is_busy_too(open_page: OpenPage) -> None:
    page = open_page(before=lambda page: close_socket(page, code=1013, reason="full"))
    answer_start(page)
    start(page)
    wait_state(page, "busy")


@pytest.mark.parametrize(
    ("status", "detail"), [(400, "not a picture that can be read"), (413, "at most 16 MiB are read")]
)
def test_a_refused_picture_shows_the_server_s_words(
    open_page: OpenPage, screenshots: Path, status: int, detail: str
) -> None:
    page = open_page()
    answer_start(page, status=status, body={"detail": detail})
    start(page)
    wait_state(page, "refused")
    page.screenshot(path=screenshots / f"refused_{status}.png")
    assert detail in words(page)
    page.get_by_role("button", name="Choose another").click()
    wait_state(page, "choose")


def test_the_server_itself_refuses_a_file_that_is_no_picture(open_page: OpenPage) -> None:
    page = open_page()
    page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"})
    wait_state(page, "refused")
    assert page.evaluate("() => worldloop.lastError") in words(page)


def test_the_end_of_the_time_shows_its_message_and_offers_another_game(
    open_page: OpenPage, screenshots: Path
) -> None:
    over = {"type": "session_over", "message": "Thank you for walking.", "limit_s": 180}
    page = open_page(before=lambda page: close_socket(page, code=1000, reason="over", before=(over,)))
    answer_start(page)
    start(page)
    wait_state(page, "over")
    page.screenshot(path=screenshots / "over_1280.png")
    assert "Thank you for walking." in words(page)
    assert page.get_by_role("button", name="Play again").is_visible()


@pytest.mark.parametrize(
    ("code", "reason"), [(1011, "EngineError: out of room"), (1008, "too slow"), (3000, "")]
)
def test_a_closed_socket_keeps_the_picture_and_plays_again(
    open_page: OpenPage, code: int, reason: str
) -> None:
    page = open_page(before=lambda page: close_socket(page, code=code, reason=reason))
    answer_start(page)
    start(page)
    wait_state(page, "lost")
    assert reason[1:] in words(page)  # as a sentence, with a capital
    assert page.is_visible("#preview")
    with page.expect_request("**/z0/*"):
        page.get_by_role("button", name="Play again").click()


def test_a_server_that_is_gone_is_said_so(open_page: OpenPage, screenshots: Path) -> None:
    page = open_page()
    page.route("**/z0/*", lambda route: route.abort())
    start(page)
    wait_state(page, "lost")
    page.screenshot(path=screenshots / "lost_1280.png")
    assert "reached" in words(page)


def test_a_browser_without_the_decoder_is_told_which_work(open_page: OpenPage, screenshots: Path) -> None:
    page = open_page(before=lambda page: page.add_init_script("delete window.VideoDecoder"))
    wait_state(page, "unsupported")
    page.screenshot(path=screenshots / "unsupported_1280.png")
    assert "WebCodecs" in words(page)
    assert "Chrome" in words(page)


def test_a_first_person_world_turns_with_the_arrows_and_shows_its_keys(
    open_page: OpenPage, screenshots: Path
) -> None:
    sent: list[dict[str, object]] = []

    def serve(socket: WebSocketRoute) -> None:
        socket.on_message(lambda text: sent.append(json.loads(text)))

    page = open_page(before=lambda page: page.route_web_socket("**/ws/*", serve))
    answer_start(page, profile=FIRST_PERSON)
    start(page)
    wait_state(page, "loading")
    help_line = page.inner_text("#help")
    page.screenshot(path=screenshots / "loading_1280.png")
    assert "look" in help_line
    assert "jump" in help_line
    assert "sprint" in help_line
    page.keyboard.down("ArrowLeft")
    page.keyboard.down("Space")
    wait_until(page, "() => worldloop.pressed.left && worldloop.pressed.space")
    wanted = {**dict.fromkeys(KEYS, False), "left": True, "space": True}
    for _ in range(1000):
        if sent and sent[-1]["pressed"] == wanted:
            break
        page.wait_for_timeout(20)
    assert sent[-1]["pressed"] == wanted
    page.keyboard.press("Escape")
    wait_state(page, "choose")
    assert not page.evaluate("() => worldloop.pressed.left")


@pytest.mark.parametrize(("width", "height"), [(360, 640), (390, 844), (1280, 800), (1600, 900)])
def test_nothing_scrolls_sideways_and_the_stage_never_jumps(
    open_page: OpenPage, width: int, height: int
) -> None:
    page = open_page(viewport={"width": width, "height": height})
    answer_start(page, status=400, body={"detail": "a long word " * 12})
    before = page.locator("#stage").bounding_box()
    start(page)
    wait_state(page, "refused")
    assert page.locator("#stage").bounding_box() == before
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_picture_comes_by_drop_and_by_paste(open_page: OpenPage, way: str) -> None:
    page = open_page()
    answer_start(page, status=400, body={"detail": "seen"})
    with page.expect_request("**/z0/*") as sent:
        page.evaluate(
            """(way) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array([1, 2, 3])], "mine.png", { type: "image/png" }));
              window.dispatchEvent(way === "drop"
                ? new DragEvent("drop", { dataTransfer: data, cancelable: true })
                : new ClipboardEvent("paste", { clipboardData: data, cancelable: true }));
            }""",
            way,
        )
    assert sent.value.method == "POST"
    wait_state(page, "refused")


def test_the_keyboard_alone_starts_a_game(open_page: OpenPage) -> None:
    page = open_page()
    answer_start(page, status=400, body={"detail": "seen"})
    page.locator("#pictures button[data-name]").first.focus()
    page.keyboard.press("Enter")
    wait_state(page, "refused")
    wait_until(page, "() => document.activeElement.textContent === 'Choose another'")
    assert page.inner_text("#announce") != ""
