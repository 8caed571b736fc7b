"""A stop by signal, of a real process: it ends in time and with status 0, whatever its clients and its device do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

WAIT_S = 60
SLACK_S = 30
"""For a machine that is busy with other things; without a limit each of these stops would take minutes."""

PROGRAM = textwrap.dedent(
    """
    import importlib.util, json, sys
    spec = importlib.util.spec_from_file_location("doubles", sys.argv[1])
    doubles = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(doubles)
    from worldloop.codec.h264 import AccessUnit
    from worldloop.core.settings import Settings
    from worldloop.server.app import create_app
    from worldloop.server import run

    class Bulky:
        def encode(self, frame):
            return AccessUnit(data=bytes(2**21), key=True)

        def close(self):
            pass

    options = json.loads(sys.argv[2])
    host = doubles.ScriptedHost()
    if options.pop("bulky", False):
        run.create_app = lambda *args, **more: create_app(*args, make_encoder=Bulky, **more)
    if options.pop("loading", False):
        host.load.clear()
    if options.pop("encoding", False):
        host.gate.clear()
    settings = Settings(**{"port": 0, "stream_fps": 60, **options})
    run.serve(host, settings, on_ready=lambda url: print(url, flush=True))
    host.close()
    """
)


class Process:
    """A server process; `url` is where it listens."""

    def __init__(self, **options: Any) -> None:
        doubles = Path(__file__).parent / "conftest.py"
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(doubles), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONWARNINGS": "default"},
        )
        assert self.popen.stdout is not None
        self.url = self.popen.stdout.readline().strip()

    def signal(self, sign: signal.Signals = signal.SIGTERM) -> None:
        self.signalled = time.monotonic()
        self.popen.send_signal(sign)

    def ended(self) -> tuple[int, float, str]:
        """Status, seconds since the last signal, and what it wrote to standard error."""
        out, err = self.popen.communicate(timeout=2 * WAIT_S)
        assert out == ""
        return self.popen.returncode, time.monotonic() - self.signalled, err

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=WAIT_S)

    def upload(self, user: str, png: bytes, **fields: str) -> int:
        files = {"z0_image": ("a.png", png)}
        return httpx.post(f"{self.url}/z0/{user}", files=files, data=fields, timeout=WAIT_S).status_code

    def raw(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=WAIT_S)


@contextmanager
def process(**options: Any) -> Iterator[Process]:
    server = Process(**options)
    try:
        yield server
    finally:
        if server.popen.poll() is None:
            server.popen.kill()
        server.popen.wait()
        for stream in (server.popen.stdout, server.popen.stderr):
            if stream is not None:
                stream.close()


def until(what: Any) -> None:
    """Ask again until it is so."""
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, "never came to be"


HANDSHAKE = (
    "GET /ws/{} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def test_players_are_told_and_the_process_ends(make_png) -> None:
    with process(slots=2) as server:
        for user in ("ann", "bob"):
            assert server.upload(user, make_png()) == 200
        address = server.url.replace("http", "ws", 1)
        with connect(f"{address}/ws/ann") as ann:
            while not isinstance(ann.recv(timeout=WAIT_S), bytes):
                pass
            # Bob's connection breaks: his game is held, and dropped by the stop.
            with server.raw() as bob:
                bob.sendall(HANDSHAKE.format("bob").encode())
                until(lambda: server.get("/status").json()["occupancy"]["owner"])
            server.signal()
            texts = []
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    message = ann.recv(timeout=WAIT_S)
                    texts += [json.loads(message)] if isinstance(message, str) else []
        status, seconds, errors = server.ended()
    assert texts[-1]["type"] == "session_over"
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, texts[-1]["message"])
    assert (status, errors) == (0, "")
    assert seconds < 10 + SLACK_S


def test_clients_that_do_not_answer_do_not_keep_the_process(make_png) -> None:
    with process(slots=3, bulky=True, drain_s=2, slow_client_s=600) as server, ExitStack() as stack:
        assert server.upload("ann", make_png()) == 200
        # Ann opens a game and never reads; bob begins an upload and never ends it.
        ann, bob = stack.enter_context(server.raw()), stack.enter_context(server.raw())
        ann.sendall(HANDSHAKE.format("ann").encode())
        bob.sendall(
            b"POST /z0/bob HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        )
        until(lambda: "worldloop_pictures_sent_total 0.0" not in server.get("/metrics").text)
        server.signal(signal.SIGINT)
        status, seconds, errors = server.ended()
    assert (status, errors) == (0, "")
    assert seconds < 2 + SLACK_S


@pytest.mark.parametrize("busy", ["loading", "encoding"])
def test_a_device_that_is_busy_does_not_keep_the_process(make_png, busy) -> None:
    with process(drain_s=2, **{busy: True}) as server:
        model = "beta" if busy == "loading" else ""
        sign = "worldloop_ready 0.0" if model else "worldloop_device_inputs_queued 1.0"
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(server.upload("ann", make_png(), model_id=model))
            except httpx.HTTPError as error:
                answers.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: sign in server.get("/metrics").text)
        server.signal()
        status, seconds, _ = server.ended()
        asking.join(WAIT_S)
    assert status == 0
    assert seconds < 2 + SLACK_S
    assert answers, "the client is not left hanging"


def test_newcomers_are_refused_while_it_stops_and_a_second_signal_ends_it(make_png) -> None:
    with process(bulky=True, drain_s=600, slow_client_s=600, slots=2) as server, ExitStack() as stack:
        assert server.upload("ann", make_png()) == 200
        assert server.upload("bob", make_png()) == 200
        ann = stack.enter_context(server.raw())
        ann.sendall(HANDSHAKE.format("ann").encode())
        until(lambda: "worldloop_pictures_sent_total 0.0" not in server.get("/metrics").text)
        server.signal()
        until(lambda: server.get("/readyz").status_code == 503)
        ready = server.get("/readyz").json()
        uploaded = server.upload("cat", make_png())
        reserved = server.get("/create-game/bob").status_code
        with (
            connect(f"{server.url.replace('http', 'ws', 1)}/ws/bob") as bob,
            pytest.raises(ConnectionClosed) as no,
        ):
            bob.recv(timeout=WAIT_S)
        assert server.popen.poll() is None, "a client that does not read has its time"
        server.signal()
        status, seconds, _ = server.ended()
    assert ready == {"ready": False, "reason": "the server is stopping"}
    assert (uploaded, reserved) == (423, 423)
    assert no.value.rcvd is not None
    assert no.value.rcvd.code == 1013
    assert status == 128 + signal.SIGTERM
    assert seconds < SLACK_S
