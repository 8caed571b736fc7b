"""Breaks and returns over real sockets: the same world goes on, and nothing is left of those who don't come back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed

from worldloop.core.types import Controls
from worldloop.engine.contract import Emit
from worldloop.session.host import Game, StartFrame

from .client import WAIT_S, Live, Stream
from .conftest import Serve
from .hostile.raw import BINARY, PING, PONG, TEXT, frame, raw_socket

SHARP = {"h264_bitrate": 100_000_000}


class Recorder:
    """Keeps what the newest game of a host was made from, and every picture that it gave."""

    def __init__(self, live: Live) -> None:
        self.host: Any = live.host
        self._start = live.host.start
        self.host.start = self.start

    def start(self, frame: StartFrame, **choices: Any) -> Recorder:
        self.frame, self.choices = frame, choices
        self.game: Game = self._start(frame, **choices)
        self.controls: list[Controls] = []
        self.pictures: list[NDArray[np.uint8]] = []
        return self

    def submit(self, controls: Controls, *, due: float = 0.0) -> Future[Emit]:
        self.controls.append(controls)
        future = self.game.submit(controls, due=due)
        future.add_done_callback(lambda done: done.exception() or self.pictures.extend(done.result().frames))
        return future

    def update(self, controls: Controls) -> bool | None:
        changed = self.game.update(controls)
        if changed:
            self.controls[-1] = controls
        return changed

    def close(self) -> None:
        self.game.close()

    def undisturbed(self) -> list[NDArray[np.uint8]]:
        """The same game again, played straight through with the same keys."""
        choices = {**self.choices, "on_close": None}
        game = self._start(self.frame, **choices)
        try:
            return [
                picture
                for controls in self.controls
                for picture in game.submit(controls).result(WAIT_S).frames
            ]
        finally:
            game.close()


def break_off(stream: Stream) -> None:
    """Drop the connection without a close frame."""
    raw = stream.connection.socket
    with contextlib.suppress(OSError):  # the server was quicker
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.shutdown(socket.SHUT_RDWR)


@contextmanager
def broken_game(live: Live, user: str, pictures: int = 6) -> Iterator[tuple[Stream, str]]:
    """A game whose connection has broken, and the token that takes it up again."""
    with playing(live, user) as stream:
        token = stream.text("hello")["resume"]["token"]
        while len(stream.units) < pictures:
            stream.picture()
        break_off(stream)
        until(lambda: not live.get("/status").json()["ws_active"])
        yield stream, token


@contextmanager
def playing(live: Live, user: str = "ann") -> Iterator[Stream]:
    """A game of a server that the tests before have left."""
    until(lambda: not live.get("/status").json()["busy"])
    with live.playing(user) as stream:
        yield stream


def until(what: Callable[[], Any]) -> None:
    """Ask again until it is so."""
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, "never came to be"
        time.sleep(0.005)


def closed_with(stream: Stream) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            stream.next()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


def nearest(picture: NDArray[np.uint8], among: list[NDArray[np.uint8]]) -> int:
    errors = [float(np.abs(picture.astype(int) - enlarged(other)).mean()) for other in among]
    return int(np.argmin(errors))


def enlarged(picture: NDArray[np.uint8]) -> NDArray[np.int64]:
    return picture.repeat(2, axis=0).repeat(2, axis=1).astype(int)


def nal_types(unit: bytes) -> list[int]:
    return [part[0] & 31 for part in unit[1:].replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")[1:]]


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    return serve(slots=1, resume_s=20, session_limit_s=0, **SHARP)


def test_the_same_world_goes_on_as_if_nothing_had_happened(live: Live) -> None:
    recorder = Recorder(live)
    with playing(live) as stream:
        hello = stream.text("hello")
        stream.hold("w", stream_fps=60, seq=1)
        shown = [stream.picture() for _ in range(30)]
        while not any(text["type"] == "ack" for text in stream.texts):
            shown.append(stream.picture())
        break_off(stream)
        until(lambda: not live.get("/status").json()["ws_active"])
    assert "w" in recorder.controls[-1].pressed
    until(lambda: len(recorder.pictures) == 1 + 4 * (len(recorder.controls) - 1))
    made, asked = len(recorder.pictures), len(recorder.controls)
    with live.socket("ann", f"?resume={hello['resume']['token']}") as stream:
        again = stream.text("hello")
        later = [stream.picture()]
        kinds = nal_types(stream.units[0])
        assert (kinds[:2], kinds[-1]) == ([7, 8], 5), "parameter sets, then a key picture"
        later += [stream.picture() for _ in range(30)]
        stream.hold("d", stream_fps=120, seq=2)
        stream.text("ack")
    assert again["fps"] == 60, "the rate that the player had chosen"
    assert recorder.controls[asked].pressed == frozenset(), "nothing is held until the player says so"
    assert {"d"} in [set(made_with.pressed) for made_with in recorder.controls]
    # What was made is, to the byte, what the same keys make in one go.
    expected = recorder.undisturbed()
    assert len(recorder.pictures) >= made + 16
    assert all(np.array_equal(a, b) for a, b in zip(recorder.pictures, expected, strict=False))
    assert len({picture.tobytes() for picture in expected}) == len(expected), "the pictures tell frames apart"
    # What was seen goes on where the last connection was left; what was still on its way there is lost.
    assert [nearest(picture, expected) for picture in shown] == list(range(len(shown)))
    first = nearest(later[0], expected)
    assert len(shown) <= first <= made
    assert [nearest(picture, expected) for picture in later] == list(range(first, first + 31))
    # The control: another key makes another world.
    recorder.controls[2] = Controls(pressed=frozenset("s"))
    other = recorder.undisturbed()
    assert not all(np.array_equal(a, b) for a, b in zip(other, expected, strict=False))


def test_a_second_network_takes_over_from_the_first(live: Live) -> None:
    with playing(live) as old:
        token = old.text("hello")["resume"]["token"]
        old.unit()
        with live.socket("ann", f"?resume={token}") as new:
            assert new.text("hello")["resume"]["token"] != token
            assert closed_with(old) == (1008, "taken up elsewhere")
            for _ in range(5):
                new.unit()
            with live.socket("ann", f"?resume={token}") as third:
                code, reason = closed_with(third)
    assert code == 1008
    assert "POST /z0" in reason


def test_leaving_properly_frees_the_place_at_once(live: Live) -> None:
    for code in (1000, 1001):
        with playing(live) as stream:
            token = stream.text("hello")["resume"]["token"]
            stream.unit()
            stream.connection.close(code)
        until(lambda: not live.get("/status").json()["busy"])
        assert live.levels().held == 0
        with live.socket("ann", f"?resume={token}") as stream:
            assert closed_with(stream)[0] == 1008


def test_the_place_is_kept_for_the_one_who_may_come_back(live: Live) -> None:
    with broken_game(live, "ann") as (_, token):
        status = live.get("/status").json()
        assert (status["busy"], status["ws_active"]) == (True, False)
        assert live.upload("bob").status_code == 423
        assert live.get("/create-game/bob").status_code == 423
        with live.socket("bob", f"?resume={token}") as stream:
            assert closed_with(stream)[0] == 1008
        with live.socket("ann", f"?resume={token}") as stream:
            stream.unit()


def test_when_nobody_comes_back_in_time_the_place_is_free(serve: Serve) -> None:
    live = serve(slots=1, resume_s=0.3)
    with broken_game(live, "ann") as (_, token):
        until(lambda: not live.get("/status").json()["busy"])
        assert live.host.engine.sessions == 0
        with live.socket("ann", f"?resume={token}") as stream:
            assert closed_with(stream)[0] == 1008
    with playing(live, "bob") as stream:
        stream.unit()


def test_a_connection_that_is_dead_and_silent_is_found_by_its_pings(serve: Serve) -> None:
    live = serve(slots=1, stream_fps=1)
    config = live._server.config
    config.ws_ping_interval, config.ws_ping_timeout = 0.2, 1.0
    assert live.upload("ann").status_code == 200
    with raw_socket(live.url, "/ws/ann"):
        # It never answers a ping; nobody would notice before the connection's own timeouts, minutes later.
        until(lambda: live.levels().held == 1)
    # A client that answers, however late, is asked again and left alone.
    config.ws_ping_timeout = WAIT_S
    with raw_socket(live.url, "/ws/ann") as answering:
        for _ in range(8):
            while (message := answering.next())[0] != PING:
                assert message[0] in (TEXT, BINARY), message
            answering.send(frame(PONG, message[1]))
        assert live.levels().live == 1


def test_two_hundred_connections_that_break_leave_nothing(serve: Serve) -> None:
    live = serve(slots=1, resume_s=0.5)
    loop_tasks = lambda: len(asyncio.all_tasks(live._server.servers[0].get_loop()))  # noqa: E731
    until(lambda: live.get("/status").json()["busy"] is False)
    assert live.upload("ann").status_code == 200
    tasks, threads = loop_tasks(), threads_by_name()
    begun = 0
    for number in range(200):
        if number % 2:
            until(lambda: live.levels().live == 0)
        # The server may not have heard of the last break yet, and then says that the place is taken.
        with live.socket("ann") as stream, contextlib.suppress(ConnectionClosed):
            if number % 2:
                begun += stream.text("hello")["type"] == "hello"
            break_off(stream)
    assert begun > 20
    until(lambda: live.levels().held + live.levels().live == 0)
    until(lambda: live.host.engine.sessions == 0)
    until(lambda: loop_tasks() <= tasks)
    until(lambda: not threads_by_name() - threads)
    assert live.levels().stash == 1
    with playing(live, "bob") as stream:
        stream.unit()


def threads_by_name() -> Counter[str]:
    """Those of games and devices. Of earlier tests some may still be ending."""
    names = [thread.name for thread in threading.enumerate()]
    return Counter(name for name in names if name.startswith(("encode", "worldloop")))
