"""The end of the rotary table, and rebuilding the memory from clean history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from worldloop.core.types import Controls
from worldloop.engine.contract import Done, Idle, Plan
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.testing import ScriptedPlayer, play, random_model, run_unit

Ask = Callable[..., WorldRequest]
PLAYER = ScriptedPlayer.of("w", "wd", "", "a", "s")
TABLE = 12


def run_until_idle(loop: WorldLoop, state: WorldState) -> list[str]:
    seen = []
    while isinstance(plan := loop.next(state), Plan):
        seen.append(plan.label)
        run_unit(loop, state)
    return seen


def played(loop: WorldLoop, request: WorldRequest, latents: int) -> WorldState:
    state = loop.init(request)
    for latent in range(1 + latents):
        loop.offer(state, PLAYER.controls(latent))
        run_until_idle(loop, state)
    return state


def test_a_world_told_to_stop_ends_at_the_end_of_its_positions(ask: Ask) -> None:
    loop = WorldLoop(random_model(rope_table_len=TABLE))
    state = played(loop, ask(on_table_end="stop"), 2 * TABLE)

    over = loop.next(state)

    assert isinstance(over, Done)
    assert over.reason == f"the world is {TABLE - 1} frames old, which is as far as its positions reach"
    assert loop.finalize(state) == state.memory.frame == TABLE - 1


def test_a_memory_of_noisy_records_cannot_be_rebuilt_and_ends_too(ask: Ask) -> None:
    loop = WorldLoop(random_model(rope_table_len=TABLE, cache_mode="last_step_writes"))

    assert isinstance(loop.next(played(loop, ask(), 2 * TABLE)), Done)


def test_otherwise_the_memory_is_rebuilt_and_the_world_goes_on(ask: Ask) -> None:
    model = random_model(rope_table_len=TABLE)
    loop, window = WorldLoop(model), model.config.model.summary_window_frames
    state = played(loop, ask(), 3 * TABLE)

    assert isinstance(loop.next(state), Idle)
    assert state.frame == 1 + 3 * TABLE
    assert state.prefills >= 3
    assert window < state.memory.frame < TABLE


def test_a_rebuilt_memory_numbers_its_frames_from_the_start_picture(ask: Ask) -> None:
    model = random_model()
    loop, window = WorldLoop(model), model.config.model.summary_window_frames
    state = played(loop, ask(reprefill_every=4), 3)
    assert (state.memory.frame, state.prefills, state.last_prefill) == (4, 0, None)

    loop.offer(state, PLAYER.controls(4))
    first = run_until_idle(loop, state)
    assert first[-5:] == ["frame5.reprefill"] * 5, "the start picture and four body frames"
    assert (state.memory.frame, state.prefills, state.last_prefill) == (5, 1, 5)

    for latent in range(5, 9):
        loop.offer(state, PLAYER.controls(latent))
        run_until_idle(loop, state)
    assert (state.memory.frame, state.prefills, state.last_prefill) == (1 + window, 2, 9)
    assert {frame for frame, _ in state.memory.rows()} <= set(range(2 + window))


def test_rebuilding_is_deterministic_and_changes_only_what_follows(ask: Ask) -> None:
    loop = WorldLoop(random_model())
    often, again = (play(loop, ask(reprefill_every=4), PLAYER, 10) for _ in range(2))
    never = play(loop, ask(), PLAYER, 10)

    assert [e.frames.tobytes() for e in often] == [e.frames.tobytes() for e in again]
    assert [e.frames.tobytes() for e in often[:5]] == [e.frames.tobytes() for e in never[:5]]
    # Past the window the memory holds frames that were written with others in view, so rebuilding is not neutral.
    assert often[-1].frames.tobytes() != never[-1].frames.tobytes()


def test_rebuilding_a_memory_that_has_lost_nothing_changes_nothing_but_rounding(ask: Ask) -> None:
    loop = WorldLoop(random_model())
    window = loop.model.config.model.summary_window_frames
    often, never = loop.init(ask(reprefill_every=1)), loop.init(ask())
    apart = []
    for latent in range(window + 5):
        for state in (often, never):
            loop.offer(state, PLAYER.controls(latent))
            run_until_idle(loop, state)
        apart.append(float((often.x - never.x).abs().max()))

    assert often.prefills > window
    assert max(apart[: 1 + window]) < 1e-5
    assert max(apart[1 + window :]) > 1e-3, (
        "past the window, records were written with frames in view that are gone"
    )


def test_a_session_that_is_cancelled_within_a_rebuild_leaves_the_next_one_alone(ask: Ask) -> None:
    loop = WorldLoop(random_model())
    alone = play(loop, ask(), PLAYER, 3)
    state = played(loop, ask(reprefill_every=4), 3)
    loop.offer(state, Controls())
    for _ in range(7):
        run_unit(loop, state)
    assert state.refill is not None

    loop.finalize(state)

    assert [e.frames.tobytes() for e in play(loop, ask(), PLAYER, 3)] == [e.frames.tobytes() for e in alone]


def test_a_table_that_a_rebuilt_memory_would_fill_is_refused(ask: Ask) -> None:
    loop = WorldLoop(random_model(rope_table_len=6))

    with pytest.raises(ValueError, match="rope_table_len=6 must be at least 8"):
        loop.init(ask())
