"""A compiled world shows what it shows as written, and is compiled once; memories that recorded graphs need."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from worldloop.engine.contract import Emit
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.models.compiled import Compile
from worldloop.models.memory import Memory, Recency
from worldloop.models.precision import Precision
from worldloop.models.summaryformer import SummaryformerConfig
from worldloop.testing import ScriptedPlayer, play, random_model

PLAYER = ScriptedPlayer.of("w", "wd", "", "a", "s")
FRAMES = 14
"""More than two windows of `tiny`."""
RECENCY = Recency(flat_until=2, decay_end=5, beta=6.0, gamma=2.0)
BOTH = Compile(network="default", decoder="default")
AUTOCAST = Precision(mode="autocast", decoder=torch.bfloat16)
ROUNDING = 1
"""Byte values that two orders of float32 sums may be apart in a picture."""
Ask = Callable[..., WorldRequest]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling gives the function back, so that its static form runs as it is written."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def difference(one: list[Emit], other: list[Emit]) -> int:
    return max(
        int(np.abs(a.frames.astype(int) - b.frames.astype(int)).max())
        for a, b in zip(one, other, strict=True)
    )


def with_recency(model: WorldModel, recency: Recency | None) -> WorldModel:
    model.config = replace(model.config, recency=recency)
    return model


@pytest.mark.parametrize("mode", ["recache", "last_step_writes"])
@pytest.mark.parametrize("recency", [None, RECENCY], ids=["flat", "recency"])
def test_the_static_form_shows_the_same(
    mode: str, recency: Recency | None, ask: Ask, uncompiled: None
) -> None:
    every = {"reprefill_every": 6} if mode == "recache" else {}
    written, static = (
        play(
            WorldLoop(with_recency(random_model(cache_mode=mode, compile=how), recency)),
            ask(**every),
            PLAYER,
            FRAMES,
        )
        for how in (Compile(), BOTH)
    )

    assert difference(written, static) <= ROUNDING


def test_control_a_wrong_slot_is_seen(ask: Ask, uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    written = play(WorldLoop(random_model()), ask(), PLAYER, FRAMES)
    monkeypatch.setattr(Memory, "_raw_start", lambda self, frame: self.config.record)

    assert (
        difference(written, play(WorldLoop(random_model(compile=BOTH)), ask(), PLAYER, FRAMES)) > 5 * ROUNDING
    )


def test_autocast_runs_in_the_static_form_too(ask: Ask, uncompiled: None) -> None:
    written, static = (
        play(WorldLoop(random_model(precision=AUTOCAST, compile=how)), ask(), PLAYER, 4)
        for how in (Compile(), BOTH)
    )

    assert difference(written, static) <= 8 * ROUNDING


@pytest.fixture
def graphs() -> Iterator[Callable[[], tuple[int, int]]]:
    """(graphs compiled, breaks of graphs) since the test began."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield lambda: (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
    torch._dynamo.reset()
    counters.clear()


SMALL = SummaryformerConfig.named("tiny", num_layers=1)


def games(model: WorldModel, ask: Ask) -> list[list[Emit]]:
    """Fill, steady state, other counts of passes, a rebuilt memory, recency, a second session, other weights."""
    loop = WorldLoop(with_recency(model, None))
    found = [
        play(loop, ask(), PLAYER, FRAMES),
        play(loop, ask(nfe=5, reprefill_every=4), PLAYER, 9),
        play(loop, ask(nfe=2, nfe_mode="grid", sphere="all"), PLAYER, 2),
    ]
    for recency in (RECENCY, replace(RECENCY, beta=3.0)):
        with_recency(model, recency)
        found.append(play(loop, ask(), PLAYER, 9))
    with torch.no_grad():
        for value, other in zip(
            model.network.parameters(), random_model(SMALL, seed=5).network.parameters(), strict=True
        ):
            value.copy_(other)
    model.after_load()
    found.append(play(loop, ask(seed=3), PLAYER, 9))
    return found


# torch's own compiler still uses what torch deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_a_world_is_compiled_once(ask: Ask, graphs: Callable[[], tuple[int, int]]) -> None:
    compiled = games(random_model(SMALL, compile=BOTH), ask)

    assert graphs() == (2, 0), "one graph of the pass and one of the decoder"
    written = games(random_model(SMALL), ask)
    assert max(map(difference, compiled, written)) <= ROUNDING
    assert difference(compiled[0][:10], compiled[3]) > 2 * ROUNDING
    assert difference(compiled[3], compiled[4]) > 0, "another depth of the bias is another world"


def test_control_the_pass_as_written_is_compiled_over_and_over(
    ask: Ask, graphs: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(SMALL)
    written: Any = torch.compile(model.network.pass_record, backend="eager", dynamic=False)
    monkeypatch.setattr(model.network, "pass_record", written)
    play(WorldLoop(model), ask(), PLAYER, 3)

    assert graphs()[0] >= 3


def test_buffers_of_a_session_that_is_over_are_used_again(uncompiled: None) -> None:
    model = random_model()
    model.compile = Compile(network="max-autotune+cudagraphs")
    first, second = model.new_memory(), model.new_memory()
    places = {first.keys.data_ptr(), second.keys.data_ptr()}
    assert len(places) == 2
    first.keys.fill_(torch.nan)
    first.frame = 9
    del first, second
    gc.collect()
    again = [model.new_memory() for _ in range(2)]

    assert {memory.keys.data_ptr() for memory in again} == places
    assert [memory.frame for memory in again] == [0, 0]
    assert not any(bool(memory.keys.any()) for memory in again)
    assert model.new_memory().keys.data_ptr() not in places


def test_other_memories_are_given_back_to_the_system(model: WorldModel) -> None:
    memory = model.new_memory()
    del memory
    gc.collect()

    assert model._spare == []
