"""One running game as its owner holds it: frames to ask for, and ways through its time.

Owns what a game remembers of itself, and that going back and asking for frames do not mix. Does not own the moments
that are kept (`history`), threads (`engine`) or pacing (`session`). Implements `session.host.Game`; made by `host`.
"""

from __future__ import annotations

import math
from concurrent.futures import Future

import torch

from worldloop.core.errors import BusyError, SessionEndedError
from worldloop.core.types import Controls, LiveControls
from worldloop.engine.contract import Emit, Frames
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.history import History, Rewind
from worldloop.loops.snapshot import Origin, Snapshot, put_back, take
from worldloop.loops.tape import Tape
from worldloop.loops.world import WorldLoop, WorldState
from worldloop.models.sampling import project_to_sphere


class LiveGame:
    """One running world on the engine.

    Args:
        engine: whose thread runs it.
        handle: of a session that nothing was asked of yet.
        loop, origin: what it runs on.
        rewind: how far back it can go.
        start: where it goes on from; None is the start picture. It was checked.
        past: what it shares with the game that it is a fork of.
    """

    def __init__(
        self,
        engine: Engine,
        handle: Handle[WorldState],
        loop: WorldLoop,
        origin: Origin,
        rewind: Rewind,
        *,
        start: Snapshot | None = None,
        past: History | None = None,
    ) -> None:
        self._engine, self._handle, self._loop, self._origin = engine, handle, loop, origin
        self._rewind = rewind
        self._live: LiveControls | None = None
        self._history = engine.call(lambda: self._begin(start, past))
        handle.on_emit = self._remember
        self._told, handle.on_close = handle.on_close, self._over

    @property
    def state(self) -> WorldState | None:
        """The session's state, None once it has ended; read it on the device thread (`Engine.call`)."""
        return self._handle.state

    @property
    def waiting(self) -> int:
        """Inputs that have no pictures yet."""
        return self._handle.waiting

    def submit(self, controls: Controls, *, due: float = math.inf) -> Future[Emit]:
        """Ask for the next latent frame; the first call of a game from a picture gives the start picture."""
        self._live = LiveControls(controls)
        return self._handle.submit(self._live, due=due)

    def update(self, controls: Controls) -> bool:
        """Newer controls for the submitted frame; False when its first pass has begun."""
        return self._live is not None and self._live.replace(controls)

    def snapshot(self) -> Snapshot:
        """This moment; blocks for the copy. SessionEndedError when the game is over."""
        return self._engine.call(lambda: take(self._living(), self._origin))

    def past(self) -> tuple[Snapshot, History]:
        """This moment, and what led to it, for a fork. SessionEndedError when the game is over."""
        return self._engine.call(lambda: (take(self._living(), self._origin), self._history.forked()))

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from another moment, of this game or another of this world. What was played until now is forgotten.

        Raises:
            BusyError: a frame is in the making.
            SnapshotError: it is another world's.
            SessionEndedError: the game is over.
        """

        def restore() -> None:
            state = self._resting()
            snapshot.check(self._loop, self._origin)
            put_back(self._loop, state, snapshot)
            self._history = History(self._loop, state, self._origin, self._rewind)

        self._engine.call(restore)

    def rewind(self, frames: int, *, due: float = math.inf) -> Future[Emit]:
        """Go back by latent frames, at most to the first; the same bytes as when they were made.

        Returns:
            The last frame that is left, as it was first made.

        Raises:
            BusyError: a frame is in the making.
            NotReadyError, InvalidInputError: see `History.go_back`.
            SessionEndedError: the game is over.
        """
        again = self._engine.call(lambda: list(self._history.go_back(self._resting(), frames)))
        return [self.submit(controls, due=due) for controls in again][-1]

    def start_picture(self) -> Frames:
        """The picture that the game began with, uint8 `[1, H, W, 3]`; blocks. SessionEndedError when it is over."""

        def decode() -> Frames:
            request, model = self._living().request, self._loop.model
            latent = request.latent if request.sphere == "off" else project_to_sphere(request.latent)
            with torch.inference_mode():
                return model.decode(latent, None)[0].cpu().numpy()

        return self._engine.call(decode)

    def newest_pictures(self) -> Frames:
        """Those of the newest frame, the same bytes as they were; blocks. SessionEndedError when the game is over.

        uint8 `[4, H, W, 3]`; `[1, H, W, 3]` of the start picture. With a window of 1, which remembers no frame before
        the newest, that one stands in for it.
        """

        def decode() -> Frames:
            state, model = self._living(), self._loop.model
            moment, sphere = take(state, self._origin), state.request.sphere != "off"
            body = [moment.tensors[name] for name in ("past", "x") if name in moment.tensors]
            latents = torch.cat([moment.tensors["latent"], *body])[-2:].split(1)
            previous, newest = (
                (project_to_sphere(each) if sphere else each).to(model.device)
                for each in (latents[0], latents[-1])
            )
            if moment.made < 2:
                return model.decode(newest, None)[0].cpu().numpy()
            _, cache = model.decode(previous, None if moment.made == 2 else state.decoder)
            return model.decode(newest, cache)[0].cpu().numpy()

        return self._engine.call(torch.inference_mode()(decode))

    def frames_of(self, seconds: float) -> int:
        """Latent frames of so many seconds at the model's rate, at least one."""
        return self._history.frames_of(seconds)

    def tape(self) -> Tape:
        """What was played up to now. SessionEndedError when the engine is closed."""
        return self._engine.call(lambda: self._history.tape)

    def close(self) -> None:
        """End the game before its next pass."""
        self._handle.close()

    # -- on the device thread -------------------------------------------------------------------------------------
    def _begin(self, start: Snapshot | None, past: History | None) -> History:
        state = self._living()
        if start is not None:
            put_back(self._loop, state, start)
        return past or History(self._loop, state, self._origin, self._rewind)

    def _remember(self, emit: Emit) -> None:
        self._history.made(self._living(), emit.frames)

    def _over(self) -> None:
        # At once, not when the collector comes by: the moments of a long game are its largest part.
        self._history.forget_moments()
        if self._told is not None:
            self._told()

    def _living(self) -> WorldState:
        if self._handle.state is None:
            raise SessionEndedError(self._handle.ended or "the game is over")
        return self._handle.state

    def _resting(self) -> WorldState:
        if self.waiting:
            raise BusyError("a frame is in the making: take its pictures first")
        return self._living()
