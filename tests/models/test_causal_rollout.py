"""Whole rollouts through the loop against the dense reference: guidance, solvers, first frames, new prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from worldloop.engine.contract import Done, Plan, Result
from worldloop.loops.video import VideoLoop, VideoState
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import PromptChange, VideoRequest
from worldloop.models.causal_memory import CausalMemory
from worldloop.models.flow import sigma_grid
from worldloop.models.noise import normal
from worldloop.testing import run_unit

from .causal_driving import MODELS, WORDS, random_latents, random_text, spec, video_model, weights, worst
from .causal_reference import Array, Rollout

BOUND = 1e-10
"""Float64 on both sides, over chunks that each feed on the one before; latents are near 1."""
RED = 5e-3
CHUNKS = 5
"""The window of `words` is full after three chunks, that of `vectors` after one."""

VIDEOS = {name: video_model(config) for name, config in MODELS.items()}


def play(loop: VideoLoop, request: VideoRequest, prompts: dict[int, Tensor]) -> Tensor:
    """Latents of a rollout whose prompt changes when the chunk of that number is next."""
    state = loop.init(request)
    chunk = 0
    while not isinstance(plan := loop.next(state), Done):
        if state.unit == 0 and state.frame and plan.op == "denoise":
            chunk = len(state.made) - (request.first is not None)
            if chunk in prompts:
                loop.offer(state, PromptChange(prompts.pop(chunk)))
        run_unit(loop, state)
    latents = loop.finalize(state).latents
    assert latents is not None
    return latents


def ours(
    model: VideoModel, *, loop: VideoLoop | None = None, changes: Sequence[int] = (), **wishes: Any
) -> Tensor:
    first = wishes.pop("first", False)
    config = model.config
    request = VideoRequest(
        prompt=random_text(config.model, 1),
        negative=random_text(config.model, 2),
        seed=9,
        latent_frames=first + CHUNKS * config.chunk_frames,
        first=random_latents(config, 1)[0] if first else None,
        **wishes,
    )
    return play(loop or VideoLoop(model), request, {n: random_text(config.model, 10 + n) for n in changes})


def theirs(
    model: VideoModel,
    *,
    changes: Sequence[int] = (),
    first: bool = False,
    steps: int | None = None,
    solver: str | None = None,
    guidance: float | None = None,
    shift: float | None = None,
    rewrites: bool = True,
    **rules: int,
) -> Array:
    config = model.config

    def noise(frame: int, step: int) -> Array:
        return normal(config.latent_shape, seed=9, frame=frame, step=step).double().numpy()

    rollout = Rollout(
        w=weights(model.network),
        spec=spec(config, **rules),
        prompts={n: random_text(config.model, 10 + n if n else 1).numpy() for n in (0, *changes)},
        negative=random_text(config.model, 2).numpy(),
        guidance=config.guidance if guidance is None else guidance,
        noise=noise,
        sigmas=sigma_grid(steps or config.steps, shift or config.shift),
        solver=solver or config.solver,
        first=random_latents(config, 1)[0].numpy() if first else None,
        rewrites=rewrites,
    )
    return rollout.run(CHUNKS)


CASES: dict[str, dict[str, Any]] = {
    "as trained": {},
    "no guidance": {"guidance": 1.0},
    "strong guidance": {"guidance": 4.0},
    "euler": {"solver": "euler"},
    "renoise": {"solver": "renoise", "steps": 4, "shift": 5.0},
    "one step": {"steps": 1},
    "a first frame": {"first": True},
    "prompts change": {"changes": (1, 2, 4)},
    "everything": {"first": True, "changes": (3,), "guidance": 3.0, "solver": "euler", "steps": 3},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MODELS)
def test_a_rollout_is_the_dense_reference(name: str, case: str) -> None:
    made = ours(VIDEOS[name], **CASES[case])

    assert worst(made, theirs(VIDEOS[name], **CASES[case])) < BOUND
    assert made.std() > 0.5


@pytest.fixture(scope="module")
def right() -> Array:
    """The reference of `words` as trained, with guidance and two changes of the prompt."""
    return theirs(VIDEOS["words"], changes=(2, 4))


def distance(loop: VideoLoop, right: Array) -> float:
    return worst(ours(VIDEOS["words"], loop=loop, changes=(2, 4)), right)


def test_the_loop_under_test_is_right(right: Array) -> None:
    assert distance(VideoLoop(VIDEOS["words"]), right) < BOUND


class SharedMemory(VideoLoop):
    """Both branches write into one memory."""

    def init(self, request: VideoRequest) -> VideoState:
        state = super().init(request)
        state.branches[1].memory = state.branches[0].memory
        return state


class SharedText(VideoLoop):
    """The branch without the prompt reads the prompt."""

    def advance(self, state: VideoState, result: Result) -> VideoState:
        state = super().advance(state, result)
        state.branches[1].cross = state.branches[1].cross and state.branches[0].cross
        return state


class StaleText(VideoLoop):
    """A change of the prompt writes the window again, but under the old text."""

    def _encode_text(self, plan: Plan) -> Result:
        result = super()._encode_text(plan)
        old = getattr(self, "cross", result.outputs["cross"])
        self.cross = old
        return Result(
            outputs={**result.outputs, "cross": old if plan.inputs["ids"] else result.outputs["cross"]}
        )


class NoRewrite(VideoLoop):
    """A change of the prompt leaves what the old one wrote."""

    def _take_text(self, state: VideoState, made: Any) -> None:
        super()._take_text(state, {**made, "ids": ()})
        state.pending.clear()


class OneNoise(VideoLoop):
    """Every step adds the noise of the first."""

    def _noise(self, state: VideoState, frames: Sequence[int], step: int) -> Tensor:
        return super()._noise(state, frames, 0)


class NoisyMemory(VideoLoop):
    """What the last denoising pass wrote stays: no clean pass."""

    def _write_memory(self, plan: Plan) -> Result:
        if plan.inputs["kind"] == "rewrite":
            return super()._write_memory(plan)
        return Result(outputs={"op": "write", "branch": plan.inputs["branch"]})


@pytest.mark.parametrize("fault", [SharedMemory, SharedText, StaleText, NoRewrite, OneNoise, NoisyMemory])
def test_control_a_faulty_loop_is_found(fault: type[VideoLoop], right: Array) -> None:
    assert distance(fault(VIDEOS["words"]), right) > RED


class Absolute(CausalMemory):
    """Frames stand at their own numbers."""

    def positions(self, frames: Sequence[int]) -> list[int]:
        return list(frames)


def test_control_absolute_positions_are_found_past_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    model = VIDEOS["words"]
    right = theirs(model)

    def absolute(self: VideoModel) -> CausalMemory:
        return Absolute(self.config.memory, self.rope, dtype=self.dtype)

    monkeypatch.setattr(VideoModel, "new_memory", absolute)
    made = ours(model)

    inside = WORDS.window_frames // WORDS.chunk_frames * WORDS.chunk_frames
    assert worst(made[:inside], right[:inside]) < BOUND
    assert worst(made[inside:], right[inside:]) > RED


@pytest.mark.parametrize(
    "rules",
    [{"window": WORDS.window_frames + WORDS.sink_frames}, {"window": 6}, {"sink": 0}, {"sink": 2}],
    ids=["the sink beside the window", "a shorter window", "no sink", "a longer sink"],
)
def test_control_another_window_is_found(rules: dict[str, int]) -> None:
    assert worst(ours(VIDEOS["words"]), theirs(VIDEOS["words"], **rules)) > RED


def test_control_each_choice_counts() -> None:
    made = ours(VIDEOS["words"])

    for wish in ({"guidance": 2.5}, {"solver": "euler"}, {"steps": 2}, {"shift": 4.0}, {"changes": (4,)}):
        assert worst(made, theirs(VIDEOS["words"], **wish)) > RED, wish
