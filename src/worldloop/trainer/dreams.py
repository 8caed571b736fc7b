"""A world model as the evaluation walks in it: one picture in, one action a step, pictures out, no engine thread.

Owns playing the world loop by hand, forks of a dream, and the control without summaries. Does not own where to walk
(`rollouts`) or what to measure (`measures`). Called by `evaluate`.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from worldloop.core.errors import EngineError, SessionEndedError
from worldloop.core.types import Controls
from worldloop.engine.contract import Done, Frames, Plan
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.models.device import synchronize
from worldloop.models.memory import Memory
from worldloop.simulators.meadow import heading

_KEYS = ("", "w", "s", "a", "d")
"""The key of each direction of `meadow.heading`."""


class WithoutSummaries(Memory):
    """A memory whose summary rows of older frames are kept but never read: what summaries are worth, by control.

    The start picture, the raw window and the movement of the start picture's keys stay as they are.
    """

    @property
    def end(self) -> int:
        return min(super().end, self.config.sum_start)


class Dream:
    """One session of a world model; steps like `simulators.meadow.Meadow`.

    Args:
        model: what dreams.
        picture: the start, uint8 `[H, W, 3]` at the model's size.
        seed: of the noise.
        summaries: False plays with `WithoutSummaries`.
        timer: seconds, for `spent`.

    Attributes:
        first: the start picture as decoded, uint8 `[H, W, 3]`.
        deviations: standard deviation of each latent so far, the start picture's first.
        spent: seconds of each unit of work by its op's name, the start picture's left out; `step` is a whole latent.
    """

    def __init__(
        self,
        model: WorldModel,
        picture: NDArray[np.uint8],
        *,
        seed: int = 0,
        summaries: bool = True,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._loop = WorldLoop(model)
        self._timer = timer
        latent = model.encode(torch.from_numpy(np.ascontiguousarray(picture)))
        self._state = self._loop.init(WorldRequest(latent=latent, seed=seed))
        if not summaries:
            self._state.memory = WithoutSummaries(
                model.config.model.memory,
                model.tables,
                recency=model.config.recency,
                dtype=model.dtype,
                device=model.device,
            )
        self.deviations: list[float] = []
        self.spent: dict[str, list[float]] = defaultdict(list)
        self.first: NDArray[np.uint8] = self._play("")[-1]
        self.spent.clear()

    def step(self, action: Sequence[float]) -> Frames:
        """Hold `action` (5 numbers, see `meadow.heading`) for one latent; returns uint8 `[4, H, W, 3]`.

        Raises:
            SessionEndedError: the world's positions are used up and the checkpoint cannot rebuild its memory.
        """
        return self._play(_KEYS[int(heading(np.asarray(action, np.float64)))])

    def fork(self) -> Dream:
        """An independent dream in the same state: the same key gives the same pictures, noise included."""
        shared = {id(part): part for part in (self._model, self._model.tables)}
        twin = copy.copy(self)
        with torch.no_grad():
            twin._state = copy.deepcopy(self._state, shared)
        twin.deviations = list(self.deviations)
        twin.spent = defaultdict(list)
        return twin

    def _play(self, key: str) -> Frames:
        self._loop.offer(self._state, Controls(pressed=frozenset(key)))
        start, frames = self._timer(), None
        while isinstance(plan := self._loop.next(self._state), Plan):
            begin = self._timer()
            result = self._loop.ops[plan.op](plan)
            synchronize(self._model.device)
            self.spent[plan.op].append(self._timer() - begin)
            self._state = self._loop.advance(self._state, result)
            for emit in result.emits:
                frames = emit.frames
                self.deviations.append(float(self._state.x.float().std()))
        if isinstance(plan, Done):
            raise SessionEndedError(plan.reason)
        if frames is None:
            raise EngineError("the loop finished a latent without a picture")
        self.spent["step"].append(self._timer() - start)
        return frames
