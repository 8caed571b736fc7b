"""The past of one game: its tape, and snapshots of the last seconds, so that it can be played again from there.

Snapshots are kept every few latent frames within a budget of bytes. Going back puts the newest one before the wanted
frame into the session; the frames between are made again with what was held, which gives the same bytes.

Owns which moments are kept. Does not own the formats (`snapshot`, `tape`) or making frames (`engine`). Used on the
device thread by `live`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from worldloop.core.errors import InvalidInputError, NotReadyError
from worldloop.core.types import Controls
from worldloop.engine.contract import Frames
from worldloop.loops.snapshot import Origin, Snapshot, put_back, take
from worldloop.loops.tape import NO_FRAMES, Tape, add
from worldloop.loops.world import WorldLoop, WorldState
from worldloop.models.autoencoder import GROUP

CLOSEST, FARTHEST = 4, 32
"""Latent frames from one snapshot to the next: fewer would cost more copying than making them again; more would let
the player wait, and overfill the queue of inputs."""

UNSEEN = 8
"""Latent frames that a player may not have seen yet, and goes back beyond."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewind:
    """How far back a game can go: seconds at the model's rate, and bytes of its snapshots. 0 of either is off."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """A kept moment: after `count` frames of the tape, whose sum is `digest`."""

    snapshot: Snapshot
    count: int
    digest: bytes


class History:
    """Tape and snapshots of one game.

    Args:
        loop, state, origin: the game at its beginning.
        rewind: how far back.
    """

    def __init__(self, loop: WorldLoop, state: WorldState, origin: Origin, rewind: Rewind) -> None:
        self._loop, self._origin = loop, origin
        self._fps = loop.model.config.encode_fps
        self._controls: list[Controls] = []
        self._digest = NO_FRAMES
        self._start = _Mark(take(state, origin), 0, NO_FRAMES)
        self._ring: deque[_Mark] = deque()
        self._reach = self.frames_of(rewind.seconds) + UNSEEN if rewind.seconds else 0
        size = loop.price(state.request).resident_bytes
        self._most = rewind.bytes // size
        if not self._reach or not rewind.bytes:
            self.refusal: str | None = "rewind is off: rewind_s and rewind_bytes must be above 0"
        elif self._most < 2:
            self.refusal = (
                f"two snapshots of this world need {2 * size} bytes; rewind_bytes is {rewind.bytes}"
            )
        else:
            self.refusal = None
            self._every = min(max(-(-(self._reach + 1) // (self._most - 1)), CLOSEST), FARTHEST)

    @property
    def tape(self) -> Tape:
        """What was played up to now."""
        return Tape(start=self._start.snapshot, controls=tuple(self._controls), sha256=self._digest.hex())

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshots."""
        return sum(mark.snapshot.nbytes for mark in (self._start, *self._ring))

    def frames_of(self, seconds: float) -> int:
        """Latent frames of so many seconds, at least one."""
        return max(1, round(seconds * self._fps / GROUP))

    def made(self, state: WorldState, frames: Frames) -> None:
        """One more frame's pictures are out."""
        # Equal controls share one object, so that a long tape stays small.
        same = self._controls and self._controls[-1] == state.shown
        self._controls.append(self._controls[-1] if same else state.shown)
        self._digest = add(self._digest, frames)
        count = len(self._controls)
        if self.refusal is None and count - self._newest.count >= self._every:
            self._ring.append(_Mark(take(state, self._origin), count, self._digest))
            while len(self._ring) > self._most or (
                len(self._ring) > 1 and self._ring[1].count < count - self._reach
            ):
                self._ring.popleft()

    def go_back(self, state: WorldState, frames: int) -> Iterator[Controls]:
        """Put the session to a moment from which the frame before the last `frames` is made next, or some frames later.

        Args:
            frames: latent frames to forget; more than there are goes back to the first.

        Returns:
            What was held in the frames to make again, the wanted one last.

        Raises:
            NotReadyError: nothing was played yet.
            InvalidInputError: it is off, or too far back; says how far it can go.
        """
        if self.refusal is not None:
            raise InvalidInputError(self.refusal)
        if not self._controls:
            raise NotReadyError("there is nothing to rewind: no frame was made yet")
        wanted = max(1, len(self._controls) - frames)
        marks = [mark for mark in (self._start, *self._ring) if wanted - self._every <= mark.count < wanted]
        if not marks:
            most = (len(self._controls) - self._ring[0].count - 1) * GROUP / self._fps
            raise InvalidInputError(f"that is too far back: this game can go back {most:.1f} s")
        mark = marks[-1]
        again = self._controls[mark.count : wanted]
        put_back(self._loop, state, mark.snapshot)
        self._digest = mark.digest
        del self._controls[mark.count :]
        while self._ring and self._ring[-1].count > mark.count:
            self._ring.pop()
        return iter(again)

    def forget_moments(self) -> None:
        """The game is over: only its tape is left."""
        self._ring.clear()

    def forked(self) -> History:
        """The same past for another session that goes on from here."""
        other = copy.copy(self)
        other._controls, other._ring = list(self._controls), deque(self._ring)
        return other

    @property
    def _newest(self) -> _Mark:
        return self._ring[-1] if self._ring else self._start
