"""A real Chromium on a real server: the browser, one served world, and ways to look at the page.

Owns starting and stopping both. `WORLDLOOP_CHROMIUM` names another browser, `WORLDLOOP_BROWSER_URL` a server
that already runs, `WORLDLOOP_SCREENSHOTS` another folder for the screenshots.

The page's own policy forbids `eval`, which Playwright's `wait_for_function` needs, so waits here poll with
`evaluate`, which goes through the debugger.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from .proxy import Proxy

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}
"""Options of a page on a phone."""

START_S = 120.0
STOP_S = 20.0
WAIT_S = 90.0

OpenPage = Callable[..., Page]
ServeTiny = Callable[..., Any]
"""Gives a `served.client.Live`."""

Behind = Callable[[Any], Proxy]
SERVED = Path(__file__).parents[1] / "served" / "client.py"


def find_chromium() -> str:
    """Path of the browser; fails the test run with what to install when there is none."""
    named = os.environ.get("WORLDLOOP_CHROMIUM")
    candidates = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    for candidate in candidates:
        path = shutil.which(candidate)
        if path:
            return path
    pytest.fail(
        f"no browser: looked for {', '.join(candidates)}. Install one (apt-get install chromium) "
        "or name one in WORLDLOOP_CHROMIUM.",
        pytrace=False,
    )


def wait_until(page: Page, expression: str, *, timeout_s: float = WAIT_S) -> None:
    """Poll a JavaScript expression until it is true."""
    end = time.monotonic() + timeout_s
    while not page.evaluate(expression):
        if time.monotonic() > end:
            seen = page.evaluate("() => [worldloop.state, worldloop.framesShown, worldloop.lastError]")
            pytest.fail(
                f"{expression} is not true after {timeout_s:g} s; state, pictures, last error: {seen}"
            )
        page.wait_for_timeout(20)


def wait_state(page: Page, state: str, *, timeout_s: float = WAIT_S) -> None:
    """Wait for one of the page's states."""
    wait_until(page, f"() => worldloop.state === '{state}'", timeout_s=timeout_s)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Address of a served embedded world."""
    running = os.environ.get("WORLDLOOP_BROWSER_URL")
    if running:
        yield running.rstrip("/")
        return
    # Slow enough that a browser without a graphics card, on two shared cores, misses few pictures.
    command = [sys.executable, "-m", "worldloop", "play", "--no-browser", "--port=0", "--set=stream_fps=15"]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield _ready_url(process, errors)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        assert process.returncode == 0, f"the server left with {process.returncode} on SIGTERM"


def _ready_url(process: subprocess.Popen[str], errors: IO[bytes]) -> str:
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def pump() -> None:
        assert process.stdout is not None
        for line in process.stdout:  # read to the end, so that the server never waits for a full pipe
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    end = time.monotonic() + START_S
    while True:
        try:
            line = lines.get(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            line = None
        if line is None:
            errors.seek(0)
            pytest.fail(f"the server did not come up:\n{errors.read().decode()[-4000:]}", pytrace=False)
        if line.startswith("ready http"):
            return line.split()[1].rstrip("/")


@pytest.fixture(scope="session")
def serve_tiny(
    tmp_path_factory: pytest.TempPathFactory, load_script: Callable[[Path], ModuleType], one_thread: None
) -> Iterator[ServeTiny]:
    """`serve_tiny(**settings)`: a server of two random checkpoints, `tiny-3r` and `tiny-3nr`, that know a focus.

    The same settings give the same server, once the games of earlier tests have left it; it is stopped at the session's
    end.
    """
    from worldloop.host import WorldHost
    from worldloop.testing import tiny_world

    folder = tmp_path_factory.mktemp("browser") / "tiny"
    tiny_world(folder, focus_region=True)
    tiny_world(folder, focus_region=True, cache_mode="last_step_writes", seed=1, step=2)
    live_server = load_script(SERVED).Live
    running: dict[str, Any] = {}
    with ExitStack() as stack:

        def serve(**settings: Any) -> Any:
            key = repr(sorted(settings.items()))
            if key not in running:
                host = WorldHost.open(str(folder), threads=1)
                stack.callback(host.close)
                live = live_server(host, **{"stream_fps": 15, "default_model_id": "tiny-3r", **settings})
                running[key] = stack.enter_context(closing(live))
            _until_empty(running[key])
            return running[key]

        yield serve


def _until_empty(live: Any) -> None:
    end = time.monotonic() + WAIT_S
    while (levels := live.levels()).live + levels.held:
        assert time.monotonic() < end, "a game of an earlier test is still there"
        time.sleep(0.02)


@pytest.fixture
def behind() -> Iterator[Behind]:
    """`behind(live)`: a proxy in front of a server."""
    with ExitStack() as stack:
        yield lambda live: stack.enter_context(closing(Proxy(live.url)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium a module: Playwright's event loop must be gone before other modules run theirs."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """`open_page(query="", before=None, url=None, **context options)`: a loaded page with its gallery.

    `before(page)` runs ahead of the first load; `url` is another server's. A page error fails the test.
    """
    pages: list[Page] = []
    faults: list[str] = []

    def open_one(
        query: str = "",
        *,
        before: Callable[[Page], object] | None = None,
        url: str | None = None,
        **options: object,
    ) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})  # type: ignore[arg-type]
        page = context.new_page()
        pages.append(page)
        page.on("pageerror", lambda error: faults.append(str(error)))
        if before is not None:
            before(page)
        page.goto((url or request.getfixturevalue("server_url")) + "/" + query)
        wait_until(page, "() => document.querySelectorAll('#pictures img').length > 0")
        page.wait_for_load_state("networkidle" if not query else "load")
        return page

    yield open_one
    for page in pages:
        page.context.close()
    assert faults == []


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Folder for the screenshots."""
    folder = Path(os.environ.get("WORLDLOOP_SCREENSHOTS", Path(__file__).parent / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
