"""The shipped world over its published protocol, by a client that shares no code with the server.

The client is `examples/protocol_client.py`: HTTP, a WebSocket, and PyAV. The server is `worldloop play` as a process.
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "src" / "worldloop" / "assets" / "pictures" / "meadow" / "lakeside.png"
UNITS = 600
"""Seventeen seconds of play at the default rate."""

WAIT_S = 60
"""For what takes a moment, on a machine that does a lot besides."""

PLAY_S = math.inf
"""As long as so many pictures take."""


@pytest.fixture(scope="module")
def client(load_script: Callable[[Path], ModuleType]) -> ModuleType:
    return load_script(ROOT / "examples" / "protocol_client.py")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "worldloop",
        "play",
        "--no-browser",
        "--port",
        "0",
        "--set",
        "log_level=warning",
        "--set",
        "session_limit_s=0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:")
        yield line.removeprefix("ready ").strip()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=WAIT_S) == 0
        assert server.stdout.read() == "", "play prints one line"


def status_of(call: Any) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        call()
    refused.value.close()
    return int(refused.value.code)


def until_free(url: str) -> None:
    """Leaving is noticed within one pass, not at once."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{url}/status", timeout=WAIT_S) as answer:
            if not json.load(answer)["busy"]:
                return
        time.sleep(0.05)
    raise AssertionError("the place is still taken")


def socket_to(url: str, user: str) -> ClientConnection:
    return connect(f"{url.replace('http', 'ws', 1)}/ws/{user}", max_size=2**22)


def close_code(url: str, user: str) -> int:
    with socket_to(url, user) as socket, pytest.raises(ConnectionClosed) as closed:
        while True:
            socket.recv(timeout=WAIT_S)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_six_hundred_pictures_of_play(client: ModuleType, url: str) -> None:
    answer = client.upload(url, "ann", PICTURE.read_bytes())
    assert answer["success"] is True
    assert answer["z0_shape"] == [1, 48, 6, 10]
    assert client.reserve(url, "ann") == {"success": True}
    with closing(client.play(url, "ann", PLAY_S)) as messages:
        seen = client.watch(itertools.islice(messages, UNITS))
    assert seen["units"] == UNITS
    assert seen["pictures"] == seen["units"], "every access unit decodes to one picture"
    assert seen["first_unit"][:2] == [7, 8], "two headers come first"
    assert seen["first_unit"].count(5) == 1, "the first unit is a key frame"
    assert seen["key_units"] >= 1


def test_a_game_before_a_start_picture_is_412_and_1008(client: ModuleType, url: str) -> None:
    until_free(url)
    assert status_of(lambda: client.reserve(url, "nobody")) == 412
    assert close_code(url, "nobody") == 1008


def test_while_a_game_is_live_others_get_423_and_1013(client: ModuleType, url: str) -> None:
    until_free(url)
    client.upload(url, "ben", PICTURE.read_bytes())
    with socket_to(url, "ben") as playing:
        while not isinstance(playing.recv(timeout=WAIT_S), bytes):
            pass
        assert status_of(lambda: client.upload(url, "cat", PICTURE.read_bytes())) == 423
        assert status_of(lambda: client.reserve(url, "cat")) == 423
        assert close_code(url, "cat") == 1013
        with urllib.request.urlopen(f"{url}/status", timeout=WAIT_S) as answer:
            assert json.load(answer)["busy"] is True
        playing.send("garbage")
        end = time.monotonic() + WAIT_S
        code = None
        while code != "not_json" and time.monotonic() < end:
            message = playing.recv(timeout=WAIT_S)
            code = json.loads(message).get("code") if isinstance(message, str) else code
        assert code == "not_json"
        assert isinstance(playing.recv(timeout=WAIT_S), bytes | str), "the game goes on"


def test_models_has_the_published_fields(url: str) -> None:
    with urllib.request.urlopen(f"{url}/models", timeout=60) as answer:
        models = json.load(answer)
    assert models["server_kind"] == "unified"
    details = models["details"][models["active_model_id"]]
    assert set(details) >= {
        "recipe", "steps", "cache_mode", "timesteps", "summary_tokens", "raw_window_frames", "summary_window_frames",
        "sink_gap_max", "recency", "recency_source", "noise_schedule", "train_step", "file", "labels", "focus",
        "profile",
    }  # fmt: skip
    assert set(models["nfe"]) == {
        "override",
        "mode",
        "modes",
        "ckpt_steps",
        "active_steps",
        "timesteps",
        "max",
    }
