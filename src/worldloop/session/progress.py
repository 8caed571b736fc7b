"""What of a game outlives its sockets: the world itself, what it has shown, and what still waits to be sent.

Owns these values and what a break does to them. Does not own who runs them (`session.game`) or for how long they are
kept without a socket (`session.table`). Used on the server's event loop.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from worldloop.core.telemetry import SessionLog
from worldloop.engine.contract import Emit
from worldloop.session.host import Game
from worldloop.session.socket import Ending
from worldloop.wire.controls import ControlState


@dataclass(frozen=True, slots=True)
class Heard:
    """One controls message; `pressed_at` is when the keys last changed."""

    state: ControlState
    pressed_at: float | None


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture to send, uint8 `[H, W, 3]`; `shows` is set on the first that was made with those controls."""

    pixels: NDArray[np.uint8]
    shows: Heard | None


@dataclass(slots=True)
class Making:
    """The latent frame in the making, the controls that it is made with, and whether the game went back to it."""

    future: Future[Emit]
    heard: Heard
    rewound: bool = False


class Progress:
    """One game, from its first socket to its end.

    Attributes:
        game: the world on the device.
        log: lines for its player, or None to send none.
        heard: newest controls.
        queue: pictures that are made and not sent, in order.
        making: the frame in the making, or None.
        drained: how the game ends once the queue is empty, or None.
        played_s: seconds of play on earlier sockets, each from its first picture.
        pictures: number of pictures sent on all sockets.
    """

    def __init__(self, game: Game, start: ControlState, *, log: SessionLog | None = None) -> None:
        self.game = game
        self.log = log
        self.heard = Heard(start, None)
        self.queue: deque[Picture] = deque()
        self.making: Making | None = None
        self.drained: Ending | None = None
        self.played_s = 0.0
        self.pictures = 0

    def let_go(self) -> None:
        """The socket is gone: no key is held, and what waits answers nobody. Rates stay as the player chose them."""
        state = self.heard.state
        released = replace(state, controls=replace(state.controls, pressed=frozenset()), seq=None)
        self.heard = Heard(released, None)
        self.queue = deque(Picture(picture.pixels, None) for picture in self.queue)
        if self.making is not None:
            self.making.heard = self.heard
