"""The server on a real port: a real client, a slow one, and a stop by signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from worldloop.core.errors import SettingsError
from worldloop.core.settings import Settings
from worldloop.server.app import create_app
from worldloop.server.run import listen, make_server, url_of

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(host, make_png, **more) -> AsyncIterator[str]:
    """A server on a free port of this loop, with a start picture of ann in its stash."""
    settings = Settings(port=0, stream_fps=120, **more)
    listener = listen(settings.host, settings.port)
    ready = asyncio.Event()
    server = make_server(create_app(host, settings), settings, ready.set)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await ready.wait()
    url = url_of(listener)
    try:
        async with httpx.AsyncClient(base_url=url) as http:
            answer = await http.post("/z0/ann", files={"z0_image": ("a.png", make_png())})
            assert answer.status_code == 200
        yield url
    finally:
        server.should_exit = True
        await serving
        host.close()


def ws(url: str) -> str:
    return url.replace("http", "ws") + "/ws/ann"


async def test_a_real_client_plays_and_survives_its_own_garbage(scripted_host, make_png) -> None:
    host = scripted_host()
    async with running(host, make_png) as url, connect(ws(url)) as client:
        assert json.loads(await client.recv())["type"] == "hello"
        await client.send("x" * 30_000)
        await client.send(b"\xff")
        codes, units = [], 0
        while len(codes) < 2 or units < 20:
            message = await client.recv()
            units += isinstance(message, bytes)
            if isinstance(message, str) and (text := json.loads(message))["type"] == "error":
                codes.append(text["code"])
        assert codes == ["too_large", "not_json"]
    assert host.games[0].closed


async def test_a_stop_closes_the_socket_with_the_reason(scripted_host, make_png) -> None:
    async with running(scripted_host(), make_png) as url:
        client = await connect(ws(url))
        while not isinstance(await client.recv(), bytes):
            continue
    texts = []
    with pytest.raises(ConnectionClosed):
        while True:
            message = await client.recv()
            if isinstance(message, str):
                texts.append(json.loads(message)["type"])
    assert texts[-1] == "session_over"
    assert client.close_code == 1001


async def test_a_client_that_reads_nothing_loses_its_slot(scripted_host, make_png) -> None:
    class Bulky:
        """Units large enough to fill the buffers of the loopback at once."""

        def encode(self, frame):
            from worldloop.codec.h264 import AccessUnit

            return AccessUnit(data=bytes(2**21), key=True)

        def close(self) -> None: ...

    settings = Settings(port=0, stream_fps=120, slow_client_s=0.2)
    host = scripted_host()
    listener = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = make_server(create_app(host, settings, make_encoder=Bulky), settings, ready.set)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await ready.wait()
    raw = socket.create_connection(listener.getsockname()[:2])
    try:
        async with httpx.AsyncClient(base_url=url_of(listener)) as http:
            await http.post("/z0/ann", files={"z0_image": ("a.png", make_png())})
            raw.sendall(
                b"GET /ws/ann HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            for _ in range(2000):
                metrics = (await http.get("/metrics")).text
                if 'worldloop_games_total{ending="slow"} 1.0' in metrics:
                    break
            else:
                raise AssertionError(metrics)
            assert (await http.get("/status")).json()["ws_active"] is False
        assert host.games[0].closed
    finally:
        raw.close()
        server.should_exit = True
        await serving
        host.close()


def test_a_port_in_use_is_a_settings_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(SettingsError, match="cannot listen"):
            listen("127.0.0.1", other.getsockname()[1])


def test_an_unknown_host_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="host"):
        listen("256.0.0.1.invalid.", 0)


def test_the_url_is_one_that_a_browser_here_can_open() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_status_0(sign: signal.Signals) -> None:
    program = textwrap.dedent(
        """
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("doubles", sys.argv[1])
        doubles = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(doubles)
        from worldloop.core.settings import Settings
        from worldloop.server.run import serve
        host = doubles.ScriptedHost()
        serve(host, Settings(port=0), on_ready=lambda url: print(url, flush=True))
        host.close()
        """
    )
    doubles = Path(__file__).parent / "conftest.py"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(doubles)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/healthz").json() == {"ok": True}
        process.send_signal(sign)
        rest, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == ""
