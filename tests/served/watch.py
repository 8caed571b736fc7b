"""Looks over the shoulder of a running server's host, and can hold it up or let it fail.

Owns what a client cannot see: the picture that was encoded, the controls that reached the model. Tests that use it
still talk to the server over sockets only.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldloop.core.types import Controls
from worldloop.engine.contract import Emit
from worldloop.session.host import Game, StartFrame

from .client import WAIT_S, Live


class Watch:
    """Sees every call of `live`'s host from now on.

    Attributes:
        pictures: start pictures that were encoded, uint8 `[H, W, 3]`.
        games: games that were started, newest last.
        gate: when clear, an encode waits; `waiting` is set once one does.
        fail_at: latent frame at which a game fails with `error`, or None.
    """

    def __init__(self, live: Live) -> None:
        host: Any = live.host
        self.pictures: list[NDArray[np.uint8]] = []
        self.games: list[WatchedGame] = []
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()
        self.fail_at: int | None = None
        self.error: Exception = RuntimeError("boom")
        self._encode, self._start = host.encode, host.start
        host.encode, host.start = self.encode, self.start

    def encode(self, picture: NDArray[np.uint8]) -> StartFrame:
        self.pictures.append(picture)
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(WAIT_S), "nobody opened the gate"
        return self._encode(picture)

    def start(self, frame: StartFrame, **choices: Any) -> WatchedGame:
        self.games.append(WatchedGame(self._start(frame, **choices), self))
        return self.games[-1]

    @property
    def controls(self) -> Controls:
        """What the newest game was last asked with."""
        return self.games[-1].controls[-1]


class WatchedGame:
    """A game of the host, with the controls of each latent frame."""

    def __init__(self, game: Game, watch: Watch) -> None:
        self._game, self._watch = game, watch
        self.controls: list[Controls] = []

    def submit(self, controls: Controls, *, due: float = 0.0) -> Future[Emit]:
        self.controls.append(controls)
        if len(self.controls) - 1 == self._watch.fail_at:
            failed: Future[Emit] = Future()
            failed.set_exception(self._watch.error)
            return failed
        return self._game.submit(controls, due=due)

    def update(self, controls: Controls) -> bool | None:
        replaced = self._game.update(controls)
        if replaced:
            self.controls[-1] = controls
        return replaced

    def close(self) -> None:
        self._game.close()


def until_left(live: Live) -> None:
    """Ask `/status` until no game is live: leaving is noticed within one pass, not at once."""
    end = time.monotonic() + WAIT_S
    while live.get("/status").json()["ws_active"]:
        assert time.monotonic() < end, "the game is still live"


def ticket(user: str, *, secret: str, server: str, expiry: int | str) -> str:
    """A ticket by the published rule, written here once more."""
    claim = f"{user}.{server}.{expiry}"
    return f"{claim}.{hmac.new(secret.encode(), claim.encode(), hashlib.sha256).hexdigest()}"
