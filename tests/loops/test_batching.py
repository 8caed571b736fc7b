"""Several sessions' passes as one call: each gets what it would get alone, to a tolerance, whatever the others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from worldloop.core.types import Controls
from worldloop.engine.contract import Plan
from worldloop.engine.engine import Engine
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.models.memory import Memory
from worldloop.testing import ScriptedPlayer, play, random_model

Ask = Callable[..., WorldRequest]
PLAYERS = [ScriptedPlayer.of("w", "wd", ""), ScriptedPlayer.of("a"), ScriptedPlayer.of("s", "d")]
LATE = (0, 2, 9)
"""Latent frames that each session has behind it when all run together: nothing, half a window, more than a window."""
TOGETHER = 9
BOUND = 1e-4
"""Of x0 in float32, after nine frames that each feed on the one before; values are near 1."""


class Neighbour(Memory):
    """The planted fault: reads what another session has written."""

    other: Memory | None = None

    def read(self, layer: int) -> Any:
        return (self.other or self).buffers and Memory.read(self.other or self, layer)


def sessions(loop: WorldLoop, ask: Ask) -> list[WorldState]:
    """Three states of different ages, alone so far."""
    states = []
    for seed, (player, late) in enumerate(zip(PLAYERS, LATE, strict=True)):
        state = loop.init(ask(seed=seed, nfe=None if seed else 4))
        loop.offer(state, Controls())
        for latent in range(late + TOGETHER):
            loop.offer(state, player.controls(latent))
        while state.frame <= late:
            advance(loop, [state])
        states.append(state)
    return states


def advance(loop: WorldLoop, states: list[WorldState]) -> str:
    """One unit for all, as one call where they agree on it."""
    plans = [loop.next(state) for state in states]
    assert all(isinstance(plan, Plan) for plan in plans)
    kinds = {(plan.op, plan.shape) for plan in plans}  # type: ignore[union-attr]
    if len(kinds) == 1 and len(plans) > 1 and plans[0].op in loop.batch_ops:  # type: ignore[union-attr]
        results = loop.batch_ops[plans[0].op](plans)  # type: ignore[arg-type, union-attr]
        how = "together"
    else:
        results = [loop.ops[plan.op](plan) for plan in plans]  # type: ignore[arg-type, union-attr]
        how = "alone"
    for state, result in zip(states, results, strict=True):
        loop.advance(state, result)
    return how


def in_step(loop: WorldLoop, states: list[WorldState]) -> int:
    """Run until every session has made `TOGETHER` more frames; the number of calls that were shared."""
    shared = 0
    while any(state.pending or state.current for state in states):
        ready = [state for state in states if state.pending or state.current]
        groups: dict[Any, list[WorldState]] = {}
        for state in ready:
            plan = loop.next(state)
            assert isinstance(plan, Plan)
            groups.setdefault((plan.op, plan.shape), []).append(state)
        for group in groups.values():
            shared += advance(loop, group) == "together"
    return shared


def difference(ours: list[WorldState], theirs: list[WorldState]) -> float:
    """Largest of x0 over the frames that both keep."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        assert a.frame == b.frame > TOGETHER
        assert len(a.past) == len(b.past) > 0
        worst = max(worst, *(float((p.x0 - q.x0).abs().max()) for p, q in zip(a.past, b.past, strict=True)))
    return worst


@pytest.mark.parametrize("mode", ["recache", "last_step_writes"])
def test_together_is_alone_to_a_tolerance_whatever_the_others_are(mode: str, ask: Ask) -> None:
    loop = WorldLoop(random_model(cache_mode=mode))
    together, alone = sessions(loop, ask), sessions(loop, ask)

    assert in_step(loop, together) > TOGETHER
    for state in alone:
        in_step(loop, [state])

    assert difference(together, alone) < BOUND


def test_control_a_memory_that_reads_its_neighbour_is_found(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    together, alone = sessions(loop, ask), sessions(loop, ask)
    for state, other in zip(together, together[1:] + together[:1], strict=True):
        state.memory.__class__ = Neighbour
        state.memory.other = other.memory  # type: ignore[attr-defined]
    in_step(loop, together)
    for state in alone:
        in_step(loop, [state])

    assert difference(together, alone) > 100 * BOUND


def test_the_engine_in_fast_mode_gives_pictures_that_differ_by_rounding(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    requests = [ask(seed=seed) for seed in range(3)]
    engine = Engine(threaded=False, largest_batch=8)
    handles = [engine.open(loop, request) for request in requests]
    futures = [[handle.submit(Controls())] for handle in handles]
    for latent in range(8):
        for mine, handle, player in zip(futures, handles, PLAYERS, strict=True):
            mine.append(handle.submit(player.controls(latent)))
    while engine.tick():
        pass

    assert engine.plans > 2 * engine.batches
    for request, player, mine in zip(requests, PLAYERS, futures, strict=True):
        alone = np.concatenate([emit.frames for emit in play(loop, request, player, 8)]).astype(int)
        fast = np.concatenate([future.result(0).frames for future in mine]).astype(int)
        assert np.abs(alone - fast).max() <= 1
        assert alone.std() > 1


def test_start_pictures_are_never_in_a_batch_with_later_frames(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    first, later = loop.init(ask()), loop.init(ask())
    for state in (first, later):
        loop.offer(state, Controls())
        loop.offer(state, Controls())
    while later.frame == 0:
        advance(loop, [later])
    starting, denoising = loop.next(first), loop.next(later)

    assert isinstance(starting, Plan)
    assert isinstance(denoising, Plan)
    assert starting.shape != denoising.shape
    assert torch.equal(first.x, later.x)
