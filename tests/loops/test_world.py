"""The world loop alone: what it emits and when, retries, late controls, choices of a session, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from worldloop.core.types import Controls, LiveControls
from worldloop.engine.contract import Done, Emit, Idle, Plan, Work
from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState, state_bytes
from worldloop.testing import ScriptedPlayer, play, random_model, run_unit

Ask = Callable[..., WorldRequest]
PLAYER = ScriptedPlayer.of("w", "wd", "", "a", "s")
W, D = Controls(pressed=frozenset("w")), Controls(pressed=frozenset("d"))


def pictures(emits: list[Emit]) -> bytes:
    return b"".join(emit.frames.tobytes() for emit in emits)


def begun(loop: WorldLoop, request: WorldRequest, frames: int = 0) -> WorldState:
    """A session with its start picture and some frames behind it."""
    state = loop.init(request)
    for latent in range(1 + frames):
        loop.offer(state, PLAYER.controls(latent))
        while not isinstance(loop.next(state), Idle):
            run_unit(loop, state)
    return state


def frame_after(loop: WorldLoop, state: WorldState, controls: Controls | LiveControls) -> bytes:
    loop.offer(state, controls)
    emits: list[Emit] = []
    while not isinstance(loop.next(state), Idle):
        emits += run_unit(loop, state)
    return pictures(emits)


def labels(loop: WorldLoop, state: WorldState, controls: Controls) -> list[str]:
    loop.offer(state, controls)
    seen = []
    while isinstance(plan := loop.next(state), Plan):
        seen.append(plan.label)
        run_unit(loop, state)
    return seen


def test_a_session_emits_its_start_picture_then_four_pictures_a_latent(model: WorldModel, ask: Ask) -> None:
    emits = play(WorldLoop(model), ask(), PLAYER, 3)

    assert [emit.frames.shape for emit in emits] == [(1, 48, 64, 3)] + [(4, 48, 64, 3)] * 3
    assert all(emit.frames.dtype == np.uint8 and emit.frames.std() > 10 and emit.final for emit in emits)
    assert [emit.index for emit in emits] == [0, 1, 2, 3]
    assert [emit.input_ids for emit in emits] == [(0,), (1,), (2,), (3,)]
    assert [emit.media_time for emit in emits] == [0.0, 1 / 12, 5 / 12, 9 / 12]


@pytest.mark.parametrize(
    ("mode", "last"),
    [("recache", ["frame1.decode", "frame1.write"]), ("last_step_writes", ["frame1.decode"])],
)
def test_pictures_leave_before_the_memory_is_written(mode: str, last: list[str], ask: Ask) -> None:
    loop = WorldLoop(random_model(cache_mode=mode))
    state = loop.init(ask())
    start = labels(loop, state, W)

    assert start == ["frame0.z0", "frame0.decode"]
    assert labels(loop, state, W) == [f"frame1.t{t}" for t in loop.model.config.timesteps] + last


def test_a_plan_carries_what_the_engine_needs(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    state = begun(loop, ask())
    loop.offer(state, W)

    plan = loop.next(state)

    assert isinstance(plan, Plan)
    assert plan == loop.next(state)
    assert plan.op in loop.ops
    assert plan.cost == model.config.model.pass_operations(state.memory.end) > 0
    assert state_bytes(state) > state.memory.bytes


@pytest.mark.parametrize(
    "choices", [{"steps": 2}, {"cache_mode": "last_step_writes"}, {"dtype": torch.bfloat16}]
)
def test_the_price_is_what_a_session_takes(choices: dict[str, Any], ask: Ask) -> None:
    loop = WorldLoop(random_model(**choices))
    request = ask(nfe=4)
    price = loop.price(request)
    state = begun(loop, request)
    for _ in range(loop.model.config.model.summary_window_frames + 2):
        loop.offer(state, W)
    done: list[Work] = []
    while isinstance(plan := loop.next(state), Plan):
        done.append(plan.work)
        run_unit(loop, state)

    assert price.resident_bytes == state_bytes(state)
    assert list(price.chunk) == done[-len(price.chunk) :]
    assert price.peak_bytes > 0


@pytest.mark.parametrize(
    ("mode", "reprefill_every"), [("recache", 0), ("recache", 2), ("last_step_writes", 0)]
)
def test_every_unit_may_be_run_twice_before_it_counts(mode: str, reprefill_every: int, ask: Ask) -> None:
    loop = WorldLoop(random_model(cache_mode=mode))
    request = ask(reprefill_every=reprefill_every)
    twice: list[Emit] = []
    state = loop.init(request)
    for latent in range(-1, 9):
        loop.offer(state, Controls() if latent < 0 else PLAYER.controls(latent))
        while isinstance(plan := loop.next(state), Plan):
            first, second = (loop.ops[plan.op](plan) for _ in range(2))
            assert pictures(list(first.emits)) == pictures(list(second.emits))
            loop.advance(state, second)
            twice += second.emits

    assert pictures(twice) == pictures(play(loop, request, PLAYER, 9))


def test_controls_may_change_until_the_first_pass_and_not_after(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    with_w, with_d = (frame_after(loop, begun(loop, ask(), 2), controls) for controls in (W, D))
    early, late = LiveControls(W), LiveControls(W)

    assert early.replace(D)
    changed = frame_after(loop, begun(loop, ask(), 2), early)
    state = begun(loop, ask(), 2)
    loop.offer(state, late)
    emits = list(run_unit(loop, state))
    assert not late.replace(D)
    while not isinstance(loop.next(state), Idle):
        emits += run_unit(loop, state)

    assert with_w != with_d
    assert changed == with_d
    assert pictures(emits) == with_w


def test_keys_seed_and_rate_shape_the_pictures_and_nothing_else_does(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    same = [pictures(play(loop, ask(), PLAYER, 3)) for _ in range(2)]
    torch.manual_seed(99)
    others = {
        "seed": pictures(play(loop, ask(seed=2), PLAYER, 3)),
        "keys": pictures(play(loop, ask(), ScriptedPlayer.of("d"), 3)),
        "picture": pictures(play(loop, replace(ask(), latent=ask().latent * 0.5), PLAYER, 3)),
        "nfe repeat": pictures(play(loop, ask(nfe=5), PLAYER, 3)),
        "nfe grid": pictures(play(loop, ask(nfe=5, nfe_mode="grid"), PLAYER, 3)),
        "sphere decode": pictures(play(loop, ask(sphere="decode"), PLAYER, 3)),
        "sphere all": pictures(play(loop, ask(sphere="all"), PLAYER, 3)),
    }

    assert same[0] == same[1] == pictures(play(loop, ask(), PLAYER, 3))
    assert len({same[0], *others.values()}) == 1 + len(others)


@pytest.mark.parametrize(
    "choice", [{"nfe": 5}, {"nfe": 2, "nfe_mode": "grid"}, {"sphere": "all"}, {"sphere": "decode"}]
)
def test_a_choice_is_deterministic(choice: dict[str, object], model: WorldModel, ask: Ask) -> None:
    first, second = (play(WorldLoop(model), ask(**choice), PLAYER, 2) for _ in range(2))

    assert pictures(first) == pictures(second) != b""


def test_no_rate_means_no_action(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    told = [
        frame_after(loop, begun(loop, ask()), Controls(pressed=keys, fps=12.0))
        for keys in (frozenset("w"), frozenset())
    ]
    untold = [
        frame_after(loop, begun(loop, ask()), Controls(pressed=keys, fps=None))
        for keys in (frozenset("w"), frozenset())
    ]

    assert told[0] != told[1]
    assert untold[0] == untold[1] != told[1]


def test_a_focus_region_changes_the_world(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    focus = torch.zeros(model.latent_shape[0], dtype=torch.bool)
    none = pictures(play(loop, ask(focus=focus), PLAYER, 2))
    focus = focus.clone()
    focus[:4] = True

    assert none == pictures(play(loop, ask(), PLAYER, 2))
    assert none != pictures(play(loop, ask(focus=focus), PLAYER, 2))


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"seed": 2**32}, "seed=4294967296"),
        ({"seed": True}, "seed=True"),
        ({"sphere": "sometimes"}, "sphere='sometimes' must be one of"),
        ({"nfe": 33}, "nfe=33 must be an integer in 1..32"),
        ({"nfe": 2}, "nfe=2 in mode 'repeat' must be at least the checkpoint's own 3"),
        ({"nfe_mode": "more"}, "nfe_mode='more'"),
        ({"reprefill_every": -1}, "reprefill_every=-1"),
        ({"reprefill_every": 4097}, "reprefill_every=4097"),
    ],
)
def test_a_choice_out_of_range_is_refused_by_name(
    choice: dict[str, object], says: str, model: WorldModel, ask: Ask
) -> None:
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        WorldLoop(model).init(ask(**choice))


def test_a_latent_of_another_shape_is_refused(model: WorldModel, ask: Ask) -> None:
    with pytest.raises(ValueError, match=r"latent is \(1, 11, 8\); \(1, 12, 8\) is needed"):
        WorldLoop(model).init(replace(ask(), latent=ask().latent[:, 1:]))


def test_what_a_checkpoint_cannot_do_is_refused(ask: Ask) -> None:
    plain = WorldLoop(random_model(focus_region=False, cache_mode="last_step_writes"))

    with pytest.raises(ValueError, match="without a focus region"):
        plain.init(ask(focus=torch.ones(12, dtype=torch.bool)))
    with pytest.raises(ValueError, match="needs cache_mode 'recache'"):
        plain.init(ask(reprefill_every=4))


def test_a_session_without_inputs_is_idle(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)

    assert isinstance(loop.next(loop.init(ask())), Idle)
    assert isinstance(loop.next(begun(loop, ask(), 1)), Idle)
    assert not isinstance(loop.next(begun(loop, ask(), 1)), Done)
