"""Every state of drawing a place from words, with its words and its way out. The server's answers are scripted."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, Route

from .conftest import PHONE, OpenPage, ServeTiny, wait_state, wait_until

pytestmark = pytest.mark.browser

FACTS: dict[str, Any] = {"model": "scripted-picture", "size": "160x96", "sizes": [], "prompt_max": 40}
SEVERAL = {**FACTS, "sizes": ["96x96", "160x96"]}

# Orders are answered by the test, event by event: `push`, `finish`, and what became of them.
ORDERS = """() => {
  const real = window.fetch;
  window.orders = [];
  window.fetch = (address, options = {}) => {
    if (!String(address).includes("/v1/images/")) return real(address, options);
    return new Promise((resolve, reject) => {
      const order = { body: JSON.parse(options.body), aborted: false };
      window.orders.push(order);
      const events = new ReadableStream({ start: (controller) => { order.controller = controller; } });
      options.signal.addEventListener("abort", () => {
        order.aborted = true;
        reject(new DOMException("aborted", "AbortError"));
        order.controller.error(new DOMException("aborted", "AbortError"));
      });
      order.answer = (status, body) => resolve(new Response(body ?? events,
        { status, headers: { "Content-Type": body ? "application/json" : "text/event-stream" } }));
      order.fail = () => reject(new TypeError("no connection"));
      // In two pieces, as a network may cut it.
      order.push = (event) => {
        const bytes = new TextEncoder().encode(`event: ${event.type}\\ndata: ${JSON.stringify(event)}\\n\\n`);
        order.controller.enqueue(bytes.slice(0, 9));
        order.controller.enqueue(bytes.slice(9));
      };
    });
  };
}"""


OpenForm = Callable[..., Page]


@pytest.fixture
def open_form(open_page: OpenPage, serve_tiny: ServeTiny) -> OpenForm:
    """`open_form(facts=FACTS, **context options)`: a page whose server draws as the test says."""

    def open_one(facts: object = FACTS, **options: Any) -> Page:
        return open_page(
            url=serve_tiny(slots=2, resume_s=0.0).url, before=lambda page: scripted(page, facts), **options
        )

    return open_one


def scripted(page: Page, facts: object) -> None:
    page.route("**/page", lambda route: route.fulfill(json={"prompt": facts}))
    page.add_init_script(f"({ORDERS})()")


def flat(colour: tuple[int, int, int]) -> str:
    """A picture of one colour as the events hold it."""
    out = io.BytesIO()
    Image.new("RGB", (160, 96), colour).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def push(page: Page, kind: str, **fields: object) -> None:
    event = {"type": f"image_generation.{kind}", **fields}
    page.evaluate("(event) => orders.at(-1).push(event)", event)


def partial(page: Page, colour: tuple[int, int, int]) -> None:
    push(page, "partial_image", b64_json=flat(colour), output_format="png")


def complete(page: Page, size: str = "160x96") -> None:
    push(page, "completed", id="img_1", b64_json=flat((60, 120, 60)), output_format="png", size=size)
    wait_state(page, "drawn")


def answer(page: Page, status: int = 200, body: object = None) -> None:
    text = None if body is None else json.dumps(body)
    page.evaluate("([status, body]) => orders.at(-1).answer(status, body)", [status, text])


def ask(page: Page, words: str = "a lake in the east", seed: str = "7") -> None:
    """Fill in the form and press Enter."""
    page.fill("#seed", seed)
    page.fill("#words", words)
    page.keyboard.press("Enter")


def seen_colour(page: Page) -> list[int]:
    """Red, green and blue in the middle of the picture on the stage."""
    return list(
        page.evaluate(
            """async () => {
              const image = document.getElementById("preview");
              await image.decode();
              const small = new OffscreenCanvas(1, 1).getContext("2d");
              small.drawImage(image, 0, 0, 1, 1);
              return [...small.getImageData(0, 0, 1, 1).data.slice(0, 3)];
            }"""
        )
    )


def words(page: Page) -> str:
    return page.inner_text("#card")


def test_without_a_picture_model_there_is_no_form(open_form: OpenForm) -> None:
    page = open_form(None)
    assert page.is_hidden("#prompt")
    assert page.is_visible("#pictures")


def test_a_place_is_drawn_step_by_step(open_form: OpenForm, screenshots: Path) -> None:
    page = open_form()
    page.screenshot(path=screenshots / "prompt_1280.png")
    assert page.is_hidden("#picture-size")
    ask(page)
    wait_state(page, "drawing")
    order = page.evaluate("() => orders[0].body")
    assert order == {
        "prompt": "a lake in the east", "seed": 7, "output_format": "png", "stream": True, "partial_images": 4,
    }  # fmt: skip
    answer(page)
    push(page, "queued", position=2, eta_seconds=12.2)
    wait_until(
        page, "() => document.getElementById('text').textContent.includes('2 pictures come before yours')"
    )
    assert "about 12" in words(page)
    assert page.is_hidden("#preview")
    push(page, "step", done=3, of=12, eta_seconds=4.4)
    wait_until(page, "() => document.getElementById('text').textContent.startsWith('Step 3 of 12')")
    assert page.evaluate("() => document.getElementById('progress').value") == 0.25
    partial(page, (200, 20, 20))
    wait_until(page, "() => !document.getElementById('preview').hidden")
    assert seen_colour(page) == [200, 20, 20]
    partial(page, (20, 20, 200))
    wait_until(page, "() => worldloop.partials === 2")
    assert seen_colour(page) == [20, 20, 200]
    page.screenshot(path=screenshots / "drawing_1280.png")
    complete(page)
    assert seen_colour(page) == [60, 120, 60]
    assert "a lake in the east" in words(page)
    assert "seed 7" in words(page)
    assert "its own size" not in words(page)
    assert page.is_hidden("#progress")
    assert "a lake in the east" in page.inner_text("#announce")
    page.screenshot(path=screenshots / "drawn_1280.png")


def test_enter_steps_inside_with_the_picture_s_id(open_form: OpenForm) -> None:
    page = open_form()
    page.route("**/z0/*", lambda route: route.fulfill(status=423, body="taken"))
    ask(page)
    answer(page)
    complete(page)
    assert page.evaluate("() => document.activeElement.textContent") == "Step inside"
    with page.expect_request("**/z0/*") as sent:
        page.keyboard.press("Enter")
    form = sent.value.post_data or ""
    assert 'name="picture_id"\r\n\r\nimg_1' in form
    assert "z0_image" not in form


def test_a_picture_that_the_server_forgot_is_sent_as_a_file(open_form: OpenForm) -> None:
    page = open_form()
    forms: list[bytes] = []

    def forgotten(route: Route) -> None:
        forms.append(route.request.post_data_buffer or b"")
        status = 404 if len(forms) == 1 else 400
        route.fulfill(status=status, json={"detail": "seen"})

    page.route("**/z0/*", forgotten)
    ask(page)
    answer(page)
    complete(page)
    page.keyboard.press("Enter")
    wait_state(page, "refused")
    assert [b"picture_id" in form for form in forms] == [True, False]
    assert b'filename="drawn.png"' in forms[1]
    assert b"\x89PNG" in forms[1]


@pytest.mark.parametrize("way", ["button", "Escape", "another picture"])
def test_a_cancelled_order_hangs_up(open_form: OpenForm, way: str) -> None:
    page = open_form()
    page.route("**/z0/*", lambda route: route.fulfill(status=400, json={"detail": "seen"}))
    ask(page)
    answer(page)
    push(page, "step", done=1, of=12, eta_seconds=None)
    wait_until(page, "() => document.getElementById('text').textContent === 'Step 1 of 12.'")
    assert page.evaluate("() => document.activeElement.textContent") == "Cancel"
    if way == "button":
        page.keyboard.press("Enter")
    elif way == "Escape":
        page.keyboard.press("Escape")
    else:
        page.locator("#pictures button[data-name]").first.click()
    wait_state(page, "refused" if way == "another picture" else "choose")
    assert page.evaluate("() => orders[0].aborted")
    assert page.input_value("#words") == "a lake in the east"
    page.click("#draw")  # nothing of the first order is in the way of a second
    wait_state(page, "drawing")
    answer(page)
    complete(page)


def test_no_words_too_many_and_a_wrong_seed_are_said_at_the_form(
    open_form: OpenForm, screenshots: Path
) -> None:
    page = open_form()
    for field, text, told in [
        ("#words", "  ", "a few words"),
        ("#words", "x" * 41, "At most 40 characters; these are 41"),
        ("#seed", "4294967296", "0 to 4294967295"),
        ("#seed", "-1", "whole number"),
    ]:
        page.fill("#words", "a lake")
        page.fill("#seed", "1")
        page.fill(field, text)
        page.click("#draw")
        assert told in page.inner_text("#prompt-hint")
        assert page.get_attribute(field, "aria-invalid") == "true"
        assert page.evaluate("() => '#' + document.activeElement.id") == field
    page.screenshot(path=screenshots / "prompt_wrong_1280.png")
    assert page.evaluate("() => [worldloop.state, orders.length]") == ["choose", 0]
    page.type("#words", "!")
    assert page.is_hidden("#prompt-hint")


@pytest.mark.parametrize(
    ("status", "message", "title", "first"),
    [
        (400, "prompt: too odd", "This can’t be drawn", "Change the words"),
        (413, "the largest size is 160x96", "This picture is too large", "Change the words"),
        (429, "8 pictures wait already", "Many pictures wait already", "Try again"),
        (503, "the device had too little memory", "The picture could not be drawn", "Try again"),
    ],
)
def test_a_refusal_shows_the_server_s_words(
    open_form: OpenForm, screenshots: Path, status: int, message: str, title: str, first: str
) -> None:
    page = open_form()
    ask(page)
    answer(page, status, {"error": {"message": message, "type": "invalid_request_error"}})
    wait_state(page, "refused")
    page.screenshot(path=screenshots / f"undrawn_{status}.png")
    assert title in words(page)
    assert message[1:] in words(page)
    assert page.evaluate("() => document.activeElement.textContent") == first
    page.get_by_role("button", name="Change the words").click()
    wait_state(page, "choose")
    assert page.evaluate("() => document.activeElement.id") == "words"


def failed(page: Page) -> None:
    push(page, "failed", error={"message": "out of paint"})


def cut(page: Page) -> None:
    page.evaluate("() => orders.at(-1).controller.close()")


def broken(page: Page) -> None:
    page.evaluate("() => orders.at(-1).controller.error(new TypeError('network'))")


@pytest.mark.parametrize(
    ("how", "state", "told"),
    [
        (failed, "refused", "Out of paint."),
        (cut, "refused", "broke off"),
        (broken, "lost", "can’t be reached"),
    ],
)
def test_a_picture_that_fails_half_way_can_be_tried_again(
    open_form: OpenForm, how: Callable[[Page], None], state: str, told: str
) -> None:
    page = open_form()
    ask(page)
    answer(page)
    partial(page, (9, 9, 9))
    how(page)
    wait_state(page, state)
    assert told in words(page)
    page.keyboard.press("Enter")
    wait_state(page, "drawing")
    assert page.evaluate("() => orders.length") == 2
    assert page.evaluate("() => orders[0].body.seed === orders[1].body.seed")


def test_the_dice_and_another_draw_from_other_seeds(open_form: OpenForm) -> None:
    page = open_form(SEVERAL)
    page.select_option("#picture-size", "96x96")
    ask(page)
    answer(page)
    complete(page, "96x96")
    assert "its own size" in words(page)
    page.get_by_role("button", name="Draw another").click()
    wait_state(page, "drawing")
    seeds = page.evaluate("() => orders.map((order) => order.body.seed)")
    assert seeds[0] == 7 != seeds[1]
    assert page.input_value("#seed") == str(seeds[1])
    answer(page)
    complete(page, "192x128")
    assert "begins at its middle" in words(page)
    assert page.evaluate("() => orders[1].body.size") == "96x96"
    page.get_by_role("button", name="Another seed").click()
    assert page.input_value("#seed") != str(seeds[1])


@pytest.mark.parametrize(("width", "height"), [(360, 640), (390, 844)])
def test_the_form_fits_a_phone(open_form: OpenForm, screenshots: Path, width: int, height: int) -> None:
    page = open_form(SEVERAL, **{**PHONE, "viewport": {"width": width, "height": height}})
    page.screenshot(path=screenshots / f"prompt_{width}.png")
    small = (
        "[...document.querySelectorAll('#prompt :is(input, select, button)')]"
        ".filter((each) => each.getBoundingClientRect().height < 44).length"
    )
    assert page.evaluate(f"() => {small}") == 0
    ask(page)
    answer(page)
    push(page, "step", done=6, of=12, eta_seconds=3)
    partial(page, (90, 140, 60))
    wait_until(page, "() => worldloop.partials === 1")
    page.screenshot(path=screenshots / f"drawing_{width}.png")
    complete(page)
    page.screenshot(path=screenshots / f"drawn_{width}.png")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    box = page.get_by_role("button", name="Step inside").bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= height - box["height"]


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1600, 900), (1280, 620)])
def test_the_form_and_the_pictures_are_in_view(open_form: OpenForm, width: int, height: int) -> None:
    page = open_form(viewport={"width": width, "height": height})
    form, pictures = page.locator("#prompt").bounding_box(), page.locator("#pictures").bounding_box()
    assert form is not None
    assert pictures is not None
    assert form["y"] + form["height"] <= height
    assert pictures["y"] < height - 24
