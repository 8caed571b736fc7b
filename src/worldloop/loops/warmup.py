"""A game before the first player's: it pays for compiling, for the first calls of every kernel, and says what it found.

Frame 1 compiles; the frames after it fill the memory on the same graph; the rest are the steady state. Owns that game
and its times. Does not own what is compiled (`models.compiled`) or when it is played (`host`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from worldloop.core.telemetry import log_event
from worldloop.core.types import Controls
from worldloop.engine.contract import Plan, Work
from worldloop.loops.model import WorldModel
from worldloop.loops.units import run_unit
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.models.device import synchronize

SETTLED = 3
"""Body frames after which nothing is compiled or recorded any more."""
SLOW_S = 2.0
"""A settled frame that takes longer was compiled again, most likely."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """Seconds of each body frame of the game, in order.

    Attributes:
        seconds: of every body frame.
        fill: how many of them filled the memory window.
    """

    seconds: tuple[float, ...]
    fill: int

    @property
    def first(self) -> float:
        """The frame that compiles."""
        return self.seconds[0]

    @property
    def filling(self) -> tuple[float, float] | None:
        """Least and most of the settled frames that filled the window; None when there were none."""
        settled = self.seconds[SETTLED : self.fill]
        return (min(settled), max(settled)) if settled else None

    @property
    def steady(self) -> float:
        """Least of the frames after the fill."""
        return min(self.seconds[self.fill :])

    @property
    def ceiling(self) -> float:
        """Latent frames a second that the model alone can make."""
        return 1.0 / self.steady

    @property
    def recompiled(self) -> tuple[int, ...]:
        """Numbers, from 1, of settled frames that took longer than `SLOW_S`."""
        return tuple(
            number
            for number, seconds in enumerate(self.seconds, start=1)
            if number > SETTLED and seconds > SLOW_S
        )


def warm_up(
    model: WorldModel,
    *,
    frames: int,
    seen: Callable[[Work, float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> WarmUp:
    """Play a game that nobody sees and log one line about it.

    Args:
        frames: body frames of the game; when the model is compiled, those after the window is full.
        seen: called with the work and the seconds of each unit of the settled frames, so that the first player's game
            has a known cost.
        clock: seconds.

    Raises:
        ValueError: fewer than 1 frame.
    """
    if frames < 1:
        raise ValueError(f"frames={frames} must be at least 1")
    config = model.config.model
    fill = config.summary_window_frames if model.compile.any else 0
    # No further than the rotary table reaches: a memory that is rebuilt there is no steady state.
    total = min(fill + frames, config.rope_table_len - 2)
    loop = WorldLoop(model)
    state = loop.init(WorldRequest(latent=torch.zeros(1, *model.latent_shape, device=model.device), seed=0))
    _frame(loop, state, None)
    seconds = []
    for number in range(1, total + 1):
        began = clock()
        _frame(loop, state, seen if number > min(SETTLED, total - 1) else None)
        synchronize(model.device)
        seconds.append(clock() - began)
    result = WarmUp(seconds=tuple(seconds), fill=fill)
    _tell(model, result)
    return result


def _frame(loop: WorldLoop, state: WorldState, seen: Callable[[Work, float], None] | None) -> None:
    loop.offer(state, Controls())
    while state.pending or state.current is not None:
        plan, began = loop.next(state), time.perf_counter()
        run_unit(loop, state)
        if seen is not None and isinstance(plan, Plan):
            seen(plan.work, time.perf_counter() - began)


def _tell(model: WorldModel, result: WarmUp) -> None:
    fields: dict[str, object] = {
        "compile": model.compile.network, "compile_decoder": model.compile.decoder,
        "frames": len(result.seconds), "first_s": round(result.first, 3),
    }  # fmt: skip
    if result.filling is not None:
        fields["fill_ms"] = "{:.1f}..{:.1f}".format(*(1000 * seconds for seconds in result.filling))
    fields |= {"steady_ms": round(1000 * result.steady, 1), "latents_per_s": round(result.ceiling, 1)}
    if result.recompiled:
        fields["probably_compiled_again_in_frames"] = ",".join(map(str, result.recompiled))
    level = logging.WARNING if result.recompiled else logging.INFO
    log_event(_log, "warmup.done", level=level, **fields)
