"""An honest player whose game goes on while others misbehave, and the game that they would have had alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from ..client import WAIT_S, Live, Stream
from .case import said, ticket

USER = "bystander"
SLOW_FPS, CALM_FPS, QUICK_FPS = 1, 24, 120
ATTEMPTS = 20
PATIENCE_S = 120.0
FEWEST = 3
"""Pictures that a bystander sees at least."""


@contextmanager
def game(live: Live, key: str, fps: float) -> Iterator[Stream]:
    """A game in which `key` shapes every dreamed frame, from the first on."""
    query = f"?ticket={ticket(USER)}"
    # The place of a game that has just ended is free a moment later.
    until_200(lambda: live.upload(USER, ticket=ticket(USER)))
    for _ in range(ATTEMPTS):
        until_200(lambda: live.get(f"/create-game/{USER}", ticket=ticket(USER)))
        with live.socket(USER, query) as stream:
            stream.text("hello")
            # Slowly at first, so that the key is there before the first dreamed frame is begun.
            stream.hold(key, stream_fps=SLOW_FPS, seq=1)
            stream.unit()
            stream.hold(key, stream_fps=fps, seq=2)
            if stream.text("ack")["frame"] == 1:
                yield stream
                return
    raise AssertionError("this machine is too busy to press a key in time")


def until_200(ask: Callable[[], httpx.Response]) -> None:
    until = time.monotonic() + WAIT_S
    while (answer := ask()).status_code != 200:
        assert time.monotonic() < until, said(answer)
        threading.Event().wait(0.02)


class Bystander:
    """Plays in a thread of its own until it is told to leave; `units` are its pictures."""

    def __init__(self, live: Live) -> None:
        self.units: list[bytes] = []
        self.error: BaseException | None = None
        self._live, self._leave, self._playing = live, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")

    def _run(self) -> None:
        try:
            with game(self._live, "w", CALM_FPS) as stream:
                self._playing.set()
                # However short a siege was, a few dreamed frames of it are there to be compared.
                while not self._leave.is_set() or len(stream.units) < FEWEST:
                    stream.unit()
                self.units = stream.units
        except BaseException as error:  # noqa: BLE001 (raised by the test that looks)
            self.error = error
            self._playing.set()

    def start(self) -> None:
        self._thread.start()
        assert self._playing.wait(PATIENCE_S)

    def stop(self) -> None:
        self._leave.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the bystander's game stands still"
        if self.error is not None:
            raise self.error


@contextmanager
def bystander(live: Live) -> Iterator[Bystander]:
    """Plays while the block runs."""
    player = Bystander(live)
    player.start()
    try:
        yield player
    finally:
        player.stop()


class Alone:
    """The same game without anyone else; played once, and again when more of it is asked for."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._units: list[bytes] = []

    def units(self, count: int, *, key: str = "w") -> list[bytes]:
        """Its first `count` pictures; with another key they are played anew and not kept."""
        if key == "w" and len(self._units) >= count:
            return self._units[:count]
        with game(self._live, key, QUICK_FPS) as stream:
            while len(stream.units) < count:
                stream.unit()
        if key == "w":
            self._units = stream.units
        return stream.units[:count]
