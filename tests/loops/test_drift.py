"""The drift watchdog: what it measures, when it acts, and that it changes nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from worldloop.engine.contract import Emit, Idle, Plan
from worldloop.loops.drift import HEALTHY, HORIZON, Averages, with_score
from worldloop.loops.model import WorldModel
from worldloop.loops.world import Tally, WorldLoop, WorldRequest, WorldState, state_bytes
from worldloop.testing import ScriptedPlayer, play, random_model, run_unit

Ask = Callable[..., WorldRequest]
PLAYER = ScriptedPlayer.of("w", "wd", "", "a", "s")
NEVER, ALWAYS = 1e9, 1e-9


def pictures(emits: list[Emit]) -> list[bytes]:
    return [emit.frames.tobytes() for emit in emits]


def watched(
    loop: WorldLoop, request: WorldRequest, latents: int
) -> tuple[WorldState, list[float], list[int]]:
    """(the state, score of every body frame, frames before which the memory was rebuilt because of drift)."""
    state = loop.init(request)
    scores, rebuilt = [], []
    for latent in range(-1, latents):
        loop.offer(state, PLAYER.controls(max(latent, 0)))
        while not isinstance(loop.next(state), Idle):
            before = state.drift_prefills
            run_unit(loop, state)
            if state.drift_prefills > before:
                rebuilt.append(state.frame)
        if latent >= 0 and state.drift_score is not None:
            scores.append(state.drift_score)
    return state, scores, rebuilt


# -- the score --------------------------------------------------------------------------------------------------------
def latents(frames: int, *, scale: float = 1.0, bias: float = 0.0, noise: float = 0.0) -> torch.Tensor:
    """`[frames, 1, N, C]` of the trained statistics, or damaged."""
    generator = torch.Generator().manual_seed(5)
    clean = torch.randn(frames, 1, 400, 16, generator=generator)
    return clean * scale + bias + noise * torch.randn(clean.shape, generator=generator)


def score_of(frames: torch.Tensor) -> float:
    averages = Averages.empty(frames.shape[-1], torch.device("cpu"))
    for latent in frames:
        averages = averages.with_frame(latent)
    return float(averages.score())


def test_averages_look_back_over_a_horizon() -> None:
    frames = latents(3 * HORIZON)
    averages = Averages.empty(16, torch.device("cpu"))
    mean, square = np.zeros(16), np.zeros(16)
    for k, latent in enumerate(frames):
        averages = averages.with_frame(latent)
        cells, share = latent[0].double().numpy(), 1 / min(k + 1, HORIZON)
        mean, square = mean + share * (cells.mean(0) - mean), square + share * ((cells**2).mean(0) - square)
        if k == HORIZON // 2:
            seen = frames[: k + 1].flatten(0, 2).double()
            assert averages.moments[0].numpy() == pytest.approx(seen.mean(0).numpy(), abs=1e-6)

    assert averages.moments.numpy() == pytest.approx(np.stack((mean, square)), abs=1e-6)
    assert averages.moments.dtype == torch.float32
    apart = math.sqrt(np.mean(mean**2 + (np.sqrt(square - mean**2) - 1) ** 2))
    assert float(averages.score()) == pytest.approx(apart / HEALTHY, rel=1e-4)


@pytest.mark.parametrize(
    ("damage", "distance"),
    [
        ({}, 0.0),
        ({"scale": 1.3}, 0.3),
        ({"scale": 0.5}, 0.5),
        ({"scale": 0.0}, 1.0),
        ({"bias": -0.8}, 0.8),
        ({"noise": 1.0}, math.sqrt(2) - 1),
        ({"scale": 3.0, "bias": 1.0}, math.sqrt(5)),
    ],
    ids=str,
)
def test_the_score_is_the_distance_to_the_trained_statistics(
    damage: dict[str, float], distance: float
) -> None:
    assert score_of(latents(20, **damage)) * HEALTHY == pytest.approx(distance, abs=0.02)


def test_a_frame_that_is_made_again_counts_once() -> None:
    frames = latents(2)
    averages = Averages.empty(16, torch.device("cpu")).with_frame(frames[0])
    before = averages.moments.clone()

    once, again = averages.with_frame(frames[1]), averages.with_frame(frames[1])

    assert torch.equal(once.moments, again.moments)
    assert torch.equal(averages.moments, before)


def test_a_score_travels_with_pixels_unchanged() -> None:
    pixels = torch.arange(4 * 6 * 8 * 3, dtype=torch.int32).remainder(256).to(torch.uint8).view(4, 6, 8, 3)
    score = torch.tensor([1.0 / 3.0])

    back, told = with_score(pixels, score)

    assert torch.equal(back, pixels)
    assert told == float(score)
    assert back.numpy().flags.c_contiguous


# -- in the loop ------------------------------------------------------------------------------------------------------
def test_watching_changes_no_picture(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    off = play(loop, ask(), PLAYER, 12)
    on = play(loop, ask(drift_limit=NEVER), PLAYER, 12)
    acts = play(loop, ask(drift_limit=ALWAYS), PLAYER, 12)

    assert pictures(on) == pictures(off)
    assert pictures(acts) != pictures(off), "control: a rebuilt memory is seen"
    assert [emit.frames.shape for emit in on] == [emit.frames.shape for emit in off]


def test_one_copy_a_frame_with_and_without(
    model: WorldModel, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [0]
    real = torch.Tensor.cpu

    def cpu(self: torch.Tensor) -> torch.Tensor:
        copies[0] += 1
        return real(self)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    for limit in (0.0, NEVER):
        copies[0] = 0
        play(WorldLoop(model), ask(drift_limit=limit), PLAYER, 5)
        assert copies[0] == 6


def test_off_holds_nothing(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    off, scores, rebuilt = watched(loop, ask(), 3)
    on, *_ = watched(loop, ask(drift_limit=NEVER), 3)

    assert (off.drift, off.drift_score, scores, rebuilt) == (None, None, [], [])
    assert state_bytes(on) - state_bytes(off) == 2 * 8 * 4


def test_it_acts_above_the_limit_at_most_once_in_a_window(model: WorldModel, ask: Ask) -> None:
    loop, window = WorldLoop(model), model.config.model.summary_window_frames
    state, scores, rebuilt = watched(loop, ask(drift_limit=ALWAYS), 4 * window)
    _, quiet, _ = watched(loop, ask(drift_limit=NEVER), 4 * window)

    assert len(scores) == 4 * window
    assert rebuilt == [1 + k * window for k in (1, 2, 3, 4)]
    assert (state.prefills, state.drift_prefills, state.last_prefill) == (4, 4, rebuilt[-1])
    assert scores[:window] == quiet[:window]
    assert scores[window] != quiet[window], "the averages begin anew"

    limit = sorted(quiet[window - 1 :])[-1]
    assert watched(loop, ask(drift_limit=limit * 1.0001), 4 * window)[2] == []
    first = window - 1 + quiet[window - 1 :].index(limit)
    assert watched(loop, ask(drift_limit=limit * 0.9999), first + 2)[2] == [first + 2]


def test_it_is_deterministic(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    first, second = (watched(loop, ask(drift_limit=ALWAYS), 12) for _ in range(2))

    assert first[1:] == second[1:]
    assert torch.equal(first[0].x, second[0].x)


def test_units_may_be_run_twice_while_it_watches(model: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(model)
    request = ask(drift_limit=ALWAYS)
    twice: list[Emit] = []
    state = loop.init(request)
    for latent in range(-1, 9):
        loop.offer(state, PLAYER.controls(latent))
        while isinstance(plan := loop.next(state), Plan):
            loop.ops[plan.op](plan)
            result = loop.ops[plan.op](plan)
            loop.advance(state, result)
            twice += result.emits

    assert state.drift_prefills == 1
    assert pictures(twice) == pictures(play(loop, request, PLAYER, 9))


def test_a_rebuild_for_another_reason_is_not_counted_as_drift(model: WorldModel, ask: Ask) -> None:
    tally = Tally()
    loop = WorldLoop(model, tally)
    state, _, rebuilt = watched(loop, ask(drift_limit=NEVER, reprefill_every=3), 9)

    assert (state.prefills, state.drift_prefills, rebuilt) == (3, 0, [])
    assert (tally.prefills, tally.drift_prefills) == (3, 0)
    watched(loop, ask(drift_limit=ALWAYS), 9)
    assert (tally.prefills, tally.drift_prefills) == (4, 1), "of all sessions"


@pytest.mark.parametrize("damage", ["scale", "bias", "noise"])
def test_a_dream_that_leaves_is_called_back(damage: str, model: WorldModel, ask: Ask) -> None:
    generator = torch.Generator().manual_seed(1)
    change = {
        "scale": lambda x: 6.0 * x,
        "bias": lambda x: x + 3.0,
        "noise": lambda x: x + 4.0 * torch.randn(x.shape, generator=generator),
    }[damage]
    _, sound, _ = watched(WorldLoop(model), ask(drift_limit=NEVER), 20)
    limit = 1.2 * max(sound)

    class Damaged(WorldLoop):
        def advance(self, state, result):  # type: ignore[no-untyped-def] -- as the base
            state = super().advance(state, result)
            if result.outputs["op"] == "denoise" and state.step == len(state.timesteps) and state.frame > 6:
                state.x = change(state.x)
            return state

    _, scores, rebuilt = watched(Damaged(model), ask(drift_limit=limit), 20)
    assert scores[:6] == sound[:6]
    assert rebuilt, f"scores up to {max(scores):.2f}, limit {limit:.2f}"
    assert rebuilt[0] > 6
    assert watched(WorldLoop(model), ask(drift_limit=limit), 20)[2] == []


@pytest.mark.parametrize("limit", [-1.0, math.nan, math.inf, True])
def test_a_limit_that_cannot_be_is_refused(limit: float, model: WorldModel, ask: Ask) -> None:
    with pytest.raises(ValueError, match="drift_limit="):
        WorldLoop(model).init(ask(drift_limit=limit))


def test_a_memory_of_noisy_records_cannot_be_watched(ask: Ask) -> None:
    loop = WorldLoop(random_model(cache_mode="last_step_writes"))

    with pytest.raises(ValueError, match="drift_limit needs cache_mode 'recache'"):
        loop.init(ask(drift_limit=2.0))
    loop.init(ask())  # control
