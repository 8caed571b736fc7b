"""Sessions side by side give the bytes that each gives alone; what one leaves behind touches no other."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from worldloop.core.errors import SessionEndedError
from worldloop.core.types import Controls
from worldloop.engine.contract import Emit, Idle
from worldloop.engine.engine import Engine
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.testing import ScriptedPlayer, play, random_model, run_unit

Ask = Callable[..., WorldRequest]
PLAYERS = [ScriptedPlayer.of("w", "wd", ""), ScriptedPlayer.of("a"), ScriptedPlayer.of("s", "d")]
LATENTS = 7  # one more than the tiny window, so that rows are summarised and the start picture moves


class SharedMemoryLoop(WorldLoop):
    """The planted fault: every session writes into the memory of the first."""

    first: WorldState | None = None

    def init(self, request: WorldRequest) -> WorldState:
        state = super().init(request)
        self.first = self.first or state
        state.memory = self.first.memory
        return state


def pictures(emits: Sequence[Emit]) -> bytes:
    return b"".join(emit.frames.tobytes() for emit in emits)


def in_order(loop: WorldLoop, requests: list[WorldRequest], order: Callable[[list[int]], int]) -> list[bytes]:
    """Play several sessions, one unit at a time; `order` chooses who is next among those with work left."""
    states = [loop.init(request) for request in requests]
    emits: list[list[Emit]] = [[] for _ in requests]
    for state, player in zip(states, PLAYERS, strict=True):
        loop.offer(state, Controls())
        for latent in range(LATENTS):
            loop.offer(state, player.controls(latent))
    while ready := [n for n, state in enumerate(states) if not isinstance(loop.next(state), Idle)]:
        chosen = order(ready)
        emits[chosen] += run_unit(loop, states[chosen])
    return [pictures(each) for each in emits]


def alternating() -> Callable[[list[int]], int]:
    turns = iter(range(10**6))
    return lambda ready: ready[next(turns) % len(ready)]


ORDERS: dict[str, Callable[[], Callable[[list[int]], int]]] = {
    "in turn": alternating,
    "one after the other": lambda: lambda ready: ready[0],
    "last first": lambda: lambda ready: ready[-1],
    "random 1": lambda: random.Random(1).choice,
    "random 2": lambda: random.Random(2).choice,
}


@pytest.fixture(scope="module")
def requests_(ask: Ask) -> list[WorldRequest]:
    return [ask(seed=1), ask(seed=2, sphere="all"), ask(seed=3, nfe=5)]


def solo(loop: WorldLoop, requests: list[WorldRequest]) -> list[bytes]:
    both = zip(requests, PLAYERS, strict=True)
    return [pictures(play(loop, request, player, LATENTS)) for request, player in both]


@pytest.mark.parametrize("mode", ["recache", "last_step_writes"])
@pytest.mark.parametrize("order", ORDERS)
def test_interleaved_is_alone(order: str, mode: str, requests_: list[WorldRequest]) -> None:
    loop = WorldLoop(random_model(cache_mode=mode))

    together = in_order(loop, requests_, ORDERS[order]())

    assert together == solo(loop, requests_)
    assert len({*together}) == 3, "three different worlds, none of them empty"


@pytest.mark.parametrize("order", ["in turn", "random 1"])
def test_a_shared_memory_is_found(order: str, model: WorldModel, requests_: list[WorldRequest]) -> None:
    together = in_order(SharedMemoryLoop(model), requests_, ORDERS[order]())

    assert together != solo(WorldLoop(model), requests_)


def test_the_engine_takes_turns_and_gives_each_its_own_bytes(
    model: WorldModel, requests_: list[WorldRequest]
) -> None:
    loop, engine = WorldLoop(model), Engine(threaded=False)
    handles = [engine.open(loop, request) for request in requests_]
    futures = [[handle.submit(Controls())] for handle in handles]
    for latent in range(LATENTS):
        for mine, handle, player in zip(futures, handles, PLAYERS, strict=True):
            mine.append(handle.submit(player.controls(latent)))
    served = []
    while engine.tick():
        served.append(max(handles, key=lambda handle: handle.last_tick).session)

    assert served[:6] == [1, 2, 3, 1, 2, 3]
    assert [pictures([f.result(0) for f in mine]) for mine in futures] == solo(loop, requests_)


def test_the_engine_thread_gives_the_same_bytes(model: WorldModel, requests_: list[WorldRequest]) -> None:
    loop, engine = WorldLoop(model), Engine()
    try:
        handles = [engine.open(loop, request) for request in requests_]
        futures: list[list[Future[Emit]]] = [[handle.submit(Controls())] for handle in handles]
        for latent in range(LATENTS):
            for mine, handle, player in zip(futures, handles, PLAYERS, strict=True):
                mine.append(handle.submit(player.controls(latent)))
        got = [pictures([f.result(30) for f in mine]) for mine in futures]
    finally:
        engine.close()

    assert got == solo(loop, requests_)


def units_until_idle(loop: WorldLoop, request: WorldRequest) -> int:
    """Units of the start picture and two body frames."""
    state, count = loop.init(request), 0
    for _ in range(3):
        loop.offer(state, Controls())
    while not isinstance(loop.next(state), Idle):
        run_unit(loop, state)
        count += 1
    return count


@pytest.mark.parametrize("mode", ["recache", "last_step_writes"])
def test_a_cancel_at_any_boundary_leaves_nothing_behind(mode: str, ask: Ask) -> None:
    loop = WorldLoop(random_model(cache_mode=mode))
    alone = pictures(play(loop, ask(), PLAYERS[0], 1))
    boundaries = units_until_idle(loop, ask())
    assert boundaries == (12 if mode == "recache" else 10)
    for boundary in range(boundaries + 1):
        engine, freed = Engine(threaded=False), []
        handle: Any = engine.open(loop, ask(seed=9), on_close=lambda freed=freed: freed.append(1))
        memory = weakref.ref(handle.state.memory)
        futures = [handle.submit(Controls()) for _ in range(3)]
        ticks = sum(engine.tick() for _ in range(boundary))
        handle.close()
        handle.close()
        handle.close()

        assert ticks == boundary
        assert not engine.tick()
        assert (engine.sessions, handle.waiting, freed) == (0, 0, [1])
        assert all(future.done() for future in futures)
        assert isinstance(futures[-1].exception(0), SessionEndedError) or boundary >= boundaries - 1
        gc.collect()
        assert memory() is None, "a handle that is kept keeps no memory"
        assert isinstance(
            handle.submit(Controls()).exception(0 if not engine.tick() else None), SessionEndedError
        )
        assert pictures(play(loop, ask(), PLAYERS[0], 1)) == alone
