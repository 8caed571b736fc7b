"""The server on a real port: a real client, and a slow one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from worldloop.codec.h264 import AccessUnit
from worldloop.core.errors import SettingsError
from worldloop.core.settings import Settings
from worldloop.server import transport
from worldloop.server.app import create_app
from worldloop.server.run import listen, make_server, url_of
from worldloop.server.transport import PlayTransport

pytestmark = pytest.mark.anyio
WAIT_S = 60


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
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
            answer = await http.post("/z0/ann", files={"z0_image": ("a.png", make_png())})
            assert answer.status_code == 200
        yield url
    finally:
        server.should_exit = True
        await serving
        host.close()


def ws(url: str, user: str = "ann") -> str:
    return f"{url.replace('http', 'ws')}/ws/{user}"


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


class Small:
    def encode(self, frame):
        return AccessUnit(data=b"x", key=True)

    def close(self) -> None: ...


class Bulky:
    """Units large enough to fill the buffers of the loopback at once."""

    def encode(self, frame):
        return AccessUnit(data=bytes(2**21), key=True)

    def close(self) -> None: ...


async def test_a_client_that_reads_nothing_stalls_only_its_own_game_and_loses_its_slot(
    scripted_host, make_png
) -> None:
    settings = Settings(port=0, stream_fps=60, slow_client_s=1.5, slots=2)
    host = scripted_host()
    encoders = iter([Bulky()])
    app = create_app(host, settings, make_encoder=lambda: next(encoders, None) or Small())
    listener = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = make_server(app, settings, ready.set)
    # It answers no pings either, and is slow all the same, not lost.
    server.config.ws_ping_interval = server.config.ws_ping_timeout = 0.3
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await ready.wait()
    url = url_of(listener)
    raw = socket.create_connection(listener.getsockname()[:2])
    connections = server.server_state.connections
    try:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
            for user in ("ann", "bob"):
                await http.post(f"/z0/{user}", files={"z0_image": ("a.png", make_png())})
            raw.sendall(
                b"GET /ws/ann HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            while "worldloop_pictures_sent_total 0.0" in (await http.get("/metrics")).text:
                continue
            # Bob's connection answers its pings, as late as this machine makes it.
            server.config.ws_ping_interval = server.config.ws_ping_timeout = WAIT_S
            async with connect(ws(url, "bob")) as bob:
                units, most = 0, 0
                while 'games_total{ending="slow"} 1.0' not in (await http.get("/metrics")).text:
                    units += isinstance(await bob.recv(), bytes)
                    most = max(most, app.state.arena.levels().pictures)
                assert len(host.games[0].controls) < 10, "nothing more is made for who takes nothing"
                assert most < 20
                async with asyncio.timeout(WAIT_S):
                    while units <= 10:
                        units += isinstance(await bob.recv(), bytes)
                status = (await http.get("/status")).json()
                assert (status["ws_active"], status["occupancy"]["owner"]) == (True, False)
                assert app.state.arena.levels().held == 0, "a slow client can't come back"
            assert host.games[0].closed
            # Nor does what it did not read stay for ever.
            async with asyncio.timeout(WAIT_S):
                while any(isinstance(one, PlayTransport) for one in connections):
                    await http.get("/healthz")
    finally:
        raw.close()
        server.should_exit = True
        await serving
        host.close()


async def test_a_slow_client_that_reads_at_last_reads_why(
    scripted_host, make_png, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It reads on a machine that may be as slow as itself.
    monkeypatch.setattr(transport, "LINGER_S", WAIT_S)
    settings = Settings(port=0, slow_client_s=0.5)
    host = scripted_host()
    app = create_app(host, settings, make_encoder=Bulky)
    listener = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = make_server(app, settings, ready.set)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await ready.wait()
    url = url_of(listener)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
            await http.post("/z0/ann", files={"z0_image": ("a.png", make_png())})
            async with connect(ws(url), max_size=2**23, max_queue=1) as ann:
                while 'games_total{ending="slow"} 1.0' not in (await http.get("/metrics")).text:
                    continue
                with pytest.raises(ConnectionClosed) as closed:
                    while True:
                        await ann.recv()
    finally:
        server.should_exit = True
        await serving
        host.close()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert "0.5 s" in closed.value.rcvd.reason


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
