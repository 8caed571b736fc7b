"""Rollouts that are recorded, and predictions that stand in for the network's, in worlds and videos alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from worldloop.engine.contract import Emit, Loop, Plan
from worldloop.engine.engine import Engine
from worldloop.loops.model import WorldModel
from worldloop.loops.rollout import SERVE, At, Profile, Rollout
from worldloop.loops.snapshot import Origin, put_back, take
from worldloop.loops.units import run_unit
from worldloop.loops.video import CLEAN, VideoLoop
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import PromptChange, VideoRequest
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.models.flow import sigma_grid
from worldloop.models.noise import normal
from worldloop.testing import ScriptedPlayer, random_model, random_video_model

PLAYER = ScriptedPlayer.of("w", "wd", "", "a")
LATENTS = 6
"""Body frames of a world; more than its window holds."""
FAMILIES = ["world", "video"]


@dataclass
class Case:
    """A loop, a request for it, and how many denoising passes its rollout takes."""

    loop: Loop[Any]
    request: Any
    passes: int


@pytest.fixture(scope="module")
def video(one_thread: None) -> VideoModel:
    return random_video_model()


@pytest.fixture(scope="module")
def cases(model: WorldModel, video: VideoModel, ask: Callable[..., WorldRequest]) -> dict[str, Case]:
    wish = VideoRequest(prompt=video.encode_text("a lake"), seed=2, latent_frames=8, guidance=2.0)
    return {
        "world": Case(WorldLoop(model), ask(seed=1), 3 * LATENTS),
        "video": Case(VideoLoop(video), wish, 2 * 3 * 4),
    }


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the denoising passes that run; those that write the memory are left out."""
    ran: list[str] = []
    passes, video_pass = WorldModel.run_passes, VideoModel.run_pass

    def world(self: WorldModel, latents: Any, films: Any, memories: Any) -> Any:
        ran.extend("world" for _ in latents)
        return passes(self, latents, films, memories)

    def of_video(self: VideoModel, latents: Tensor, told: float, cross: Any, memory: Any) -> Tensor:
        ran.extend(["video"] if told != CLEAN else [])
        return video_pass(self, latents, told, cross, memory)

    monkeypatch.setattr(WorldModel, "run_passes", world)
    monkeypatch.setattr(VideoModel, "run_pass", of_video)
    return ran


def units(case: Case, profile: Profile | None = None) -> Iterator[tuple[Any, Emit | None]]:
    """A rollout unit by unit: the state after each, and what it emits."""
    request = case.request if profile is None else replace(case.request, profile=profile)
    state = case.loop.init(request)
    if isinstance(request, WorldRequest):
        for latent in range(-1, LATENTS):
            case.loop.offer(state, PLAYER.controls(max(latent, 0)))
    while isinstance(case.loop.next(state), Plan):
        emits = run_unit(case.loop, state)
        yield state, emits[0] if emits else None


def chunks(case: Case, profile: Profile | None = None) -> list[bytes]:
    found = [emit.frames.tobytes() for _, emit in units(case, profile) if emit is not None]
    assert len(found) > 3
    assert all(found)
    return found


def recorded(case: Case, **choices: Any) -> Rollout:
    record = Rollout(**choices)
    chunks(case, Profile(record=record))
    return record


def denoised(case: Case, forwards: list[str]) -> int:
    """Forwards since the last call; a world's clean passes, one a frame, are not counted."""
    count = len(forwards) - (LATENTS if isinstance(case.loop, WorldLoop) else 0)
    forwards.clear()
    return count


# -- record -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rollout_that_is_recorded_has_the_same_bytes(family: str, cases: dict[str, Case]) -> None:
    record = Rollout()

    assert chunks(cases[family], Profile(record=record)) == chunks(cases[family])
    assert record.family == family
    assert not record.full
    assert sum(len(chunk.steps) for chunk in record.chunks) == {"world": 18, "video": 12}[family]


def test_without_a_record_nothing_is_kept(cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("made for nobody")

    monkeypatch.setattr(VideoLoop, "_seen", refuse)
    monkeypatch.setattr(WorldLoop, "_told", refuse)
    for case in cases.values():
        chunks(case)
        with pytest.raises(AssertionError, match="made for nobody"):
            chunks(case, Profile(record=Rollout()))


def test_a_world_is_recorded_as_it_was_played(cases: dict[str, Case], model: WorldModel) -> None:
    case, record, ends = cases["world"], Rollout(), []
    for state, emit in units(case, Profile(record=record)):
        ends += [] if emit is None else [state.x.clone()]
    start, *body = record.chunks

    assert (start.frame, start.steps) == (0, ())
    assert torch.equal(record.latents, torch.cat(ends))
    for number, chunk in enumerate(body, start=1):
        assert chunk.frame == number
        assert [step.timestep for step in chunk.steps] == [*model.config.timesteps]
        held = PLAYER.controls(number - 1)
        assert chunk.told["action"].tolist() == list(held.action(jump_sprint=False, yaw=False))
        assert chunk.told["fps"].tolist() == [12.0]
        for step in chunk.steps:
            noise = normal((1, *model.latent_shape), seed=1, frame=number, step=step.step)
            before = chunk.steps[step.step - 1].x0 if step.step else torch.zeros_like(noise)
            weight = step.alpha if step.step else 0.0
            assert torch.allclose(
                step.x_t, weight * before + (step.sigma if step.step else 1.0) * noise, atol=1e-6
            )
            assert torch.allclose(step.x0, step.alpha * step.x_t - step.sigma * step.v, atol=1e-6)
            assert not step.given
        assert torch.equal(chunk.steps[-1].x0, chunk.latents)


def test_a_video_is_recorded_with_both_branches(cases: dict[str, Case], video: VideoModel) -> None:
    case, record = cases["video"], Rollout()
    for state, _ in units(case, Profile(record=record)):
        last = state
    grid = sigma_grid(3, 5.0)

    assert torch.equal(record.latents, case.loop.finalize(last).latents)
    assert [chunk.frame for chunk in record.chunks] == [0, 2, 4, 6]
    for chunk in record.chunks:
        assert torch.equal(chunk.told["cond"], case.request.prompt)
        assert torch.equal(chunk.told["uncond"], video.empty_text)
        assert [step.sigma for step in chunk.steps] == list(grid[:-1])
        assert torch.equal(
            chunk.steps[0].x_t,
            torch.stack([normal((8, 3, 4), seed=2, frame=chunk.frame + n, step=0) for n in (0, 1)]),
        )
        for step in chunk.steps:
            cond, uncond = step.branches["cond"], step.branches["uncond"]
            assert torch.allclose(step.v, uncond + 2.0 * (cond - uncond), atol=1e-5)
            assert torch.allclose(step.x0, step.x_t - step.sigma * step.v, atol=1e-5)
        assert torch.equal(chunk.steps[-1].x0, chunk.latents)


def test_what_a_video_is_given_comes_first_and_a_new_prompt_is_seen(video: VideoModel) -> None:
    loop, record = VideoLoop(video), Rollout()
    context = torch.randn(5, 8, 3, 4, generator=torch.Generator().manual_seed(1))
    wish = VideoRequest(
        prompt=video.encode_text("a"),
        seed=1,
        latent_frames=4,
        context=context,
        profile=Profile(record=record),
    )
    state = loop.init(wish)
    while isinstance(loop.next(state), Plan):
        if not state.next_input and state.frame == 7:
            loop.offer(state, PromptChange(video.encode_text("lake")))
        run_unit(loop, state)
    given, *made = record.chunks

    assert (given.frame, given.steps, given.told) == (0, (), {})
    assert torch.equal(given.latents, context)
    assert [(chunk.frame, len(chunk.steps)) for chunk in made] == [(5, 3), (7, 3)]
    assert [chunk.told["cond"].tolist() for chunk in made] == [[1], [6]]
    assert all(not step.branches for chunk in made for step in chunk.steps), "not guided"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_unit_that_runs_twice_is_recorded_once(family: str, cases: dict[str, Case]) -> None:
    case, record = cases[family], Rollout()
    for state, _ in units(case, Profile(record=record)):
        plan = case.loop.next(state)
        if isinstance(plan, Plan):
            case.loop.ops[plan.op](plan)
    once = recorded(case)

    assert [chunk.frame for chunk in record.chunks] == [chunk.frame for chunk in once.chunks]
    found, expected = record.predictions(), once.predictions()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[at], expected[at]) for at in expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_has_a_limit_and_the_rollout_none(family: str, cases: dict[str, Case]) -> None:
    case = cases[family]
    whole = recorded(case)
    limit = whole.nbytes // 2
    part = Rollout(max_bytes=limit)

    assert chunks(case, Profile(record=part)) == chunks(case)
    assert part.full
    assert part.nbytes <= limit < part.nbytes + whole.chunks[-1].nbytes + 1024
    assert [chunk.frame for chunk in part.chunks] == [chunk.frame for chunk in whole.chunks][
        : len(part.chunks)
    ]
    assert part.chunks


@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_may_be_trained_on_and_shares_nothing(family: str, cases: dict[str, Case]) -> None:
    record = recorded(cases[family])
    step = record.chunks[-1].steps[-1]
    weight = torch.ones((), requires_grad=True)

    ((weight * step.x_t - step.v) ** 2).sum().backward()

    assert weight.grad is not None
    assert not any(t.is_inference() for t in (step.x_t, step.v, step.x0, record.chunks[-1].latents))
    before = record.latents.clone()
    step.x0.zero_()
    assert torch.equal(record.latents, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_is_of_one_rollout(family: str, cases: dict[str, Case]) -> None:
    record = recorded(cases[family])

    for case in cases.values():
        with pytest.raises(ValueError, match=f"of a {family} rollout already"):
            case.loop.init(replace(case.request, profile=Profile(record=record)))


# -- override -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", FAMILIES)
def test_the_recorded_predictions_give_the_same_bytes_without_a_forward(
    family: str, cases: dict[str, Case], forwards: list[str]
) -> None:
    case = cases[family]
    record = recorded(case)
    assert denoised(case, forwards) == case.passes, "control: they were counted"
    again = Rollout()

    found = chunks(case, Profile(record=again, override=record.predictions()))

    assert denoised(case, forwards) == 0
    assert found == chunks(case)
    assert all(step.given and not step.branches for chunk in again.chunks for step in chunk.steps)
    assert torch.equal(again.latents, record.latents)


@pytest.mark.parametrize("family", FAMILIES)
def test_control_another_prediction_gives_other_bytes_from_there_on(
    family: str, cases: dict[str, Case], forwards: list[str]
) -> None:
    case = cases[family]
    given = recorded(case).predictions()
    at = [at for at in given if at[1] == 1][1]
    served = chunks(case)
    forwards.clear()

    one = {at: given[at]}
    assert chunks(case, Profile(override=one)) == served
    assert case.passes - denoised(case, forwards) == {"world": 1, "video": 2}[family]

    wrong = {at: 1.5 * given[at]}
    found = chunks(case, Profile(override=wrong))
    assert [a == b for a, b in zip(found, served, strict=True)] == [
        True,
        *[n < at_chunk(case, at) for n in range(1, len(served))],
    ]


def at_chunk(case: Case, at: At) -> int:
    """Number of the chunk that an override is of."""
    return at[0] // (1 if isinstance(case.loop, WorldLoop) else 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_feature_cache_takes_a_step_from_the_one_before(
    family: str, cases: dict[str, Case], forwards: list[str]
) -> None:
    case = cases[family]
    given = recorded(case).predictions()
    lazy = {(frame, 2): given[frame, 1] for frame, step in given if step == 1}
    forwards.clear()

    found = chunks(case, Profile(override=lazy))

    assert denoised(case, forwards) * 3 == case.passes * 2
    assert found != chunks(case)


def test_a_batch_asks_for_what_is_not_given(
    cases: dict[str, Case], ask: Callable[..., WorldRequest], forwards: list[str]
) -> None:
    case = cases["world"]
    given = {at: v for at, v in recorded(case).predictions().items() if at[0] % 2}
    others = [replace(case, request=ask(seed=seed)) for seed in (1, 5)]
    expected = [chunks(each) for each in others]
    forwards.clear()
    engine = Engine(threaded=False, largest_batch=2)
    handles = [
        engine.open(case.loop, replace(each.request, profile=profile))
        for each, profile in zip(others, (Profile(override=given), Profile()), strict=True)
    ]
    futures = [
        [handle.submit(PLAYER.controls(max(latent, 0))) for latent in range(-1, LATENTS)]
        for handle in handles
    ]
    while engine.tick():
        pass

    assert engine.plans - engine.batches > 10, "there were batches"
    assert len(forwards) == 2 * (LATENTS + 3 * LATENTS) - len(given)
    for got, wanted in zip(futures, expected, strict=True):
        found = [
            torch.frombuffer(bytearray(each.result(0).frames.tobytes()), dtype=torch.uint8) for each in got
        ]
        needed = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in wanted]
        assert max(int((a.int() - b.int()).abs().max()) for a, b in zip(found, needed, strict=True)) <= 1


def test_what_cannot_be_given_is_refused(cases: dict[str, Case], ask: Callable[..., WorldRequest]) -> None:
    shapes = {"world": (1, *cases["world"].loop.model.latent_shape), "video": (2, 8, 3, 4)}  # type: ignore[attr-defined]
    for family, case in cases.items():
        good = torch.zeros(shapes[family])
        for override, words in (
            ({(2, 0): good[..., :-1]}, r"override of frame 2, step 0 is torch.float32 .* is needed"),
            ({(2, 0): good.int()}, r"override of frame 2, step 0 is torch.int32 .* is needed"),
            ({(2, 3): good}, r"override of frame 2, step 3: only steps below 3 can be given"),
            ({(2, -1): good}, r"override of frame 2, step -1: only steps below 3 can be given"),
        ):
            with pytest.raises(ValueError, match=words):
                case.loop.init(replace(case.request, profile=Profile(override=override)))


def test_a_step_that_writes_the_memory_is_never_skipped(ask: Callable[..., WorldRequest]) -> None:
    case = Case(WorldLoop(random_model("tiny", cache_mode="last_step_writes")), ask(seed=1), 3 * LATENTS)
    given = recorded(case).predictions()

    with pytest.raises(ValueError, match="step 2: only steps below 2 can be given"):
        chunks(case, Profile(override=given))
    some = {at: v for at, v in given.items() if at[1] < 2}
    assert chunks(case, Profile(override=some)) == chunks(case)


def test_a_snapshot_holds_no_profile(cases: dict[str, Case]) -> None:
    case, record = cases["world"], Rollout()
    for state, _ in units(case, Profile(record=record)):
        if state.frame == 3:
            break
    origin = Origin(model_id="tiny-3r", checkpoint="a" * 64, autoencoder="b" * 64, recency=None, table=4096)
    put_back(case.loop, other := case.loop.init(case.request), take(state, origin))

    assert [chunk.frame for chunk in record.chunks] == [0, 1, 2]
    assert other.request.profile is SERVE
