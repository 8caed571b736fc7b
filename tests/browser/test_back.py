"""The page's way back: a button and a key, shown where the server offers it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from .conftest import OpenPage, ServeTiny, wait_state, wait_until

pytestmark = pytest.mark.browser

WIRETAP = """
(() => {
  const Plain = WebSocket;
  window.rewound = [];
  window.WebSocket = class extends Plain {
    constructor(...all) {
      super(...all);
      this.addEventListener("message", ({ data }) => {
        const message = typeof data === "string" ? JSON.parse(data) : {};
        if (message.type === "rewound") window.rewound.push(message.frame);
      });
    }
  };
})()
"""


def begin(page: Page) -> None:
    page.click("#pictures button[data-name] >> nth=0")
    wait_state(page, "playing", timeout_s=60)
    wait_until(page, "() => worldloop.framesShown > 30")


def test_the_button_and_the_key_go_back_and_the_pictures_go_on(
    open_page: OpenPage, serve_tiny: ServeTiny
) -> None:
    page = open_page(url=serve_tiny().url, before=lambda page: page.add_init_script(WIRETAP))
    assert page.is_hidden("#back")
    begin(page)
    for count, act in enumerate(
        (lambda: page.click("#back"), lambda: page.keyboard.press("Backspace")), start=1
    ):
        act()
        wait_until(page, f"() => rewound.length === {count}")
        shown = page.evaluate("worldloop.framesShown")
        wait_until(page, f"() => worldloop.framesShown > {shown + 8}")

    assert page.evaluate("worldloop.state") == "playing"
    assert page.is_hidden("#notice")
    page.keyboard.press("Escape")
    wait_state(page, "choose")
    assert page.is_hidden("#back")
