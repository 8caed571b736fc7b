"""The video loop alone: units and what they emit, retries, branches, first frames, continuation, prompts, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.engine.contract import Done, Emit, Plan, Result, Work
from worldloop.loops.video import VideoLoop, VideoResult, VideoState
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import PromptChange, VideoRequest
from worldloop.models.causal_memory import causal_memory_bytes
from worldloop.testing import random_video_model, run_unit

Ask = Callable[..., VideoRequest]
CHUNKS = 6
"""Twice what the window holds."""


@pytest.fixture(scope="module")
def video(one_thread: None) -> VideoModel:
    return random_video_model()


@pytest.fixture(scope="module")
def ask(video: VideoModel) -> Ask:
    def make(prompt: str = "walk in the meadow", **wishes: Any) -> VideoRequest:
        facts = {"seed": 1, "latent_frames": CHUNKS * 2, "guidance": 2.0, **wishes}
        return VideoRequest(prompt=video.encode_text(prompt), **facts)

    return make


@pytest.fixture(scope="module")
def start(video: VideoModel) -> Tensor:
    """The latent of a first picture."""
    generator = torch.Generator().manual_seed(4)
    picture = torch.randint(256, (*video.pictures.picture_hw, 3), generator=generator, dtype=torch.uint8)
    return video.pictures.encode(picture)


def play(loop: VideoLoop, request: VideoRequest) -> tuple[VideoState, list[Emit], list[str]]:
    """A whole rollout: its state, what it emitted, and the labels of its units."""
    state, emits, labels = loop.init(request), [], []
    while isinstance(plan := loop.next(state), Plan):
        labels.append(plan.label)
        emits += run_unit(loop, state)
    assert isinstance(plan, Done)
    return state, emits, labels


def pictures(emits: list[Emit]) -> bytes:
    return b"".join(emit.frames.tobytes() for emit in emits)


def latents(loop: VideoLoop, request: VideoRequest) -> Tensor:
    made = loop.finalize(play(loop, request)[0]).latents
    assert made is not None
    return made


def test_units_of_a_rollout_with_two_branches(video: VideoModel, ask: Ask) -> None:
    _, _, labels = play(VideoLoop(video), ask(latent_frames=4))

    begin = ["frame0.text.cond", "frame0.text.uncond"]
    first = [
        f"frame0.{unit}" for unit in ("t1000", "t909.091", "t714.286", "decode", "write.cond", "write.uncond")
    ]
    assert labels == begin + first + [
        f"frame2.{unit}" for unit in ("t1000", "t909.091", "t714.286", "decode")
    ]


def test_guidance_1_asks_once_a_step(video: VideoModel, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    run_pass = VideoModel.run_pass

    def counted(self: VideoModel, latents: Tensor, timestep: float, *rest: Any) -> Tensor:
        told.append(timestep)
        return run_pass(self, latents, timestep, *rest)

    monkeypatch.setattr(VideoModel, "run_pass", counted)
    counts = {}
    for guidance in (1.0, 2.0):
        told.clear()
        _, _, labels = play(VideoLoop(video), ask(guidance=guidance, latent_frames=6))
        counts[guidance] = len(told), len(labels), told.count(0.0)

    assert counts == {1.0: (11, 1 + 14, 2), 2.0: (22, 2 + 16, 4)}


def test_chunks_of_pictures(video: VideoModel, ask: Ask) -> None:
    state, emits, _ = play(VideoLoop(video), ask(latent_frames=6))

    assert [emit.frames.shape for emit in emits] == [(5, 48, 64, 3), (8, 48, 64, 3), (8, 48, 64, 3)]
    assert all(emit.frames.dtype == np.uint8 and emit.frames.std() > 10 and emit.final for emit in emits)
    assert [emit.index for emit in emits] == [0, 2, 4]
    assert [emit.media_time for emit in emits] == [0.0, 5 / 12, 13 / 12]
    assert all(emit.input_ids == () for emit in emits)
    result = VideoLoop(video).finalize(state)
    assert isinstance(result, VideoResult)
    assert result.frames == 6
    assert result.latents is not None
    assert result.latents.shape == (6, 8, 3, 4)


class EmitsEarly(VideoLoop):
    """The planted fault: a chunk's pictures are made from what its last step was given."""

    def _denoise(self, plan: Plan) -> Result:
        result = super()._denoise(plan)
        self.given = plan.inputs["state"].x
        return result

    def _decode(self, plan: Plan) -> Result:
        state = plan.inputs["state"]
        right, state.x = state.x, self.given
        result = super()._decode(plan)
        state.x = right
        return Result(outputs={**result.outputs, "x": right, "kept": right}, emits=result.emits)


def streamed_and_final(loop: VideoLoop, request: VideoRequest) -> tuple[bytes, bytes]:
    """Pictures as they came, and those that the finished latents give, chunk by chunk."""
    state, emits, _ = play(loop, request)
    made, cache, final = loop.finalize(state).latents, None, []
    assert made is not None
    for chunk in made.split(2):
        rgb, cache = loop.model.pictures.decode(chunk, cache)
        final.append(rgb.numpy().tobytes())
    return pictures(emits), b"".join(final)


@torch.inference_mode()
def test_streamed_is_final(video: VideoModel, ask: Ask) -> None:
    streamed, final = streamed_and_final(VideoLoop(video), ask())
    early, late = streamed_and_final(EmitsEarly(video), ask())

    assert streamed == final
    assert len(streamed) == (1 + 4 * 11) * 48 * 64 * 3
    assert early != late  # control
    assert late == final


def test_the_seed_counts_and_nothing_else_is_random(video: VideoModel, ask: Ask) -> None:
    loop = VideoLoop(video)
    torch.manual_seed(5)
    one = latents(loop, ask())
    torch.manual_seed(6)

    assert torch.equal(one, latents(loop, ask()))
    assert not torch.allclose(one, latents(loop, ask(seed=2)), atol=1e-2)
    assert not torch.allclose(one, latents(loop, ask("a lake")), atol=1e-2)


def test_noise_does_not_depend_on_the_chunks(ask: Ask) -> None:
    two, three = (
        VideoLoop(random_video_model(chunk_frames=size, window_frames=6, steps=1)) for size in (2, 3)
    )
    states = [loop.init(ask()) for loop in (two, three)]

    made = [loop._noise(state, range(3), 1) for loop, state in zip((two, three), states, strict=True)]

    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], two._noise(states[0], range(1, 4), 1))


def run_each_unit(loop: VideoLoop, request: VideoRequest, times: int) -> tuple[bytes, bytes]:
    """Latents and pictures of a rollout every unit of which runs `times` times; the prompt changes at the 20th."""
    state, emits, made = loop.init(request), [], 0
    while isinstance(loop.next(state), Plan):
        if made == 20:
            loop.offer(state, PromptChange(loop.model.encode_text("a lake")))
        for _ in range(times):
            plan = loop.next(state)
            assert isinstance(plan, Plan)
            result = loop.ops[plan.op](plan)
        loop.advance(state, result)
        emits += result.emits
        made += 1
    assert made > 25
    latents = loop.finalize(state).latents
    assert latents is not None
    return latents.numpy().tobytes(), pictures(emits)


class DecodesOnce(VideoLoop):
    """The planted fault: a unit moves the state itself."""

    def _decode(self, plan: Plan) -> Result:
        result = super()._decode(plan)
        plan.inputs["state"].decoder = result.outputs["decoder"]
        return result


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_every_unit_may_be_run_twice(guidance: float, video: VideoModel, ask: Ask, start: Tensor) -> None:
    request = ask(guidance=guidance, latent_frames=11, first=start)

    once = run_each_unit(VideoLoop(video), request, 1)

    assert once == run_each_unit(VideoLoop(video), request, 2)
    assert once == run_each_unit(DecodesOnce(video), request, 1)
    assert once != run_each_unit(DecodesOnce(video), request, 2)  # control


# -- first frames and continuation ------------------------------------------------------------------------------------
def test_a_first_frame_is_shown_and_shapes_the_rest(video: VideoModel, ask: Ask, start: Tensor) -> None:
    loop = VideoLoop(video)
    state, emits, labels = play(loop, ask(latent_frames=5, first=start))
    made = loop.finalize(state).latents

    assert labels[2:5] == ["frame0.decode", "frame0.write.cond", "frame0.write.uncond"]
    assert [emit.frames.shape[0] for emit in emits] == [1, 8, 8]
    assert [emit.media_time for emit in emits] == [0.0, 1 / 12, 9 / 12]
    assert made is not None
    assert torch.equal(made[0], start)
    other = latents(loop, ask(latent_frames=5, first=start + 1))
    assert not torch.allclose(made[1:], other[1:], atol=1e-2)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("chunks", [1, CHUNKS])
def test_twice_as_long_is_a_rollout_and_its_continuation(
    chunks: int, first: bool, video: VideoModel, ask: Ask, start: Tensor
) -> None:
    loop = VideoLoop(video)
    begin = {"first": start} if first else {}
    half = first + 2 * chunks
    state, emits, _ = play(loop, ask(latent_frames=half + 2 * chunks, **begin))
    whole = loop.finalize(state).latents
    one, one_emits, _ = play(loop, ask(latent_frames=half, **begin))
    context = loop.finalize(one).latents
    two, two_emits, labels = play(loop, ask(latent_frames=2 * chunks, context=context))
    rest = loop.finalize(two).latents

    assert whole is not None
    assert context is not None
    assert rest is not None
    assert torch.equal(whole, torch.cat((context, rest)))
    assert pictures(emits) == pictures(one_emits) + pictures(two_emits)
    assert sum("rewrite" in label for label in labels) == 2 * (first + chunks)
    assert [emit.index for emit in one_emits + two_emits] == [emit.index for emit in emits]
    assert two_emits[0].media_time == 0.0


def test_control_a_continuation_needs_all_of_its_context(video: VideoModel, ask: Ask) -> None:
    loop = VideoLoop(video)
    context = latents(loop, ask())
    whole = latents(loop, ask(latent_frames=4, context=context))

    assert not torch.allclose(whole, latents(loop, ask(latent_frames=4, context=context[2:])), atol=1e-3)


# -- without an end, and prompts that change --------------------------------------------------------------------------
def run_chunks(loop: VideoLoop, state: VideoState, chunks: int) -> list[Emit]:
    emits: list[Emit] = []
    while len(emits) < chunks:
        emits += run_unit(loop, state)
    return emits


def test_a_rollout_without_an_end_goes_on_and_holds_no_more(video: VideoModel, ask: Ask) -> None:
    loop = VideoLoop(video)
    state = loop.init(ask(latent_frames=None))
    emits = run_chunks(loop, state, CHUNKS)
    held = sorted(state.past), [branch.memory.keys.data_ptr() for branch in state.branches]
    more = run_chunks(loop, state, 2 * CHUNKS)

    assert pictures(emits) == pictures(play(loop, ask())[1])
    assert len(state.past) == len(held[0]) == 6
    assert [branch.memory.keys.data_ptr() for branch in state.branches] == held[1]
    assert state.made == []
    assert loop.progress(state)[1] is None
    assert loop.finalize(state) == VideoResult(latents=None, frames=34)  # the last chunk is not written yet
    assert more[-1].index == 34


def test_a_prompt_counts_from_the_next_chunk_on(video: VideoModel, ask: Ask) -> None:
    loop = VideoLoop(video)
    plain = run_chunks(loop, loop.init(ask(latent_frames=None)), 5)
    state = loop.init(ask(latent_frames=None))
    emits = run_chunks(loop, state, 2)
    run_unit(loop, state)  # a chunk is being written: what comes now is for the one after
    first = loop.offer(state, PromptChange(video.encode_text("lake")))
    second = loop.offer(state, PromptChange(video.encode_text("a lake")))
    run_unit(loop, state)
    labels = []
    while "t1000" not in (label := loop.next(state).label):
        labels.append(label)
        run_unit(loop, state)
    emits += run_chunks(loop, state, 3)

    assert labels == ["frame4.text.cond", "frame0.rewrite.cond", "frame2.rewrite.cond"]
    assert [emit.input_ids for emit in emits] == [(), (), (first, second), (), ()]
    assert pictures(emits[:2]) == pictures(plain[:2])
    assert pictures(emits[2:3]) != pictures(plain[2:3])


def test_an_early_change_is_the_other_prompt_from_the_start(video: VideoModel, ask: Ask) -> None:
    loop = VideoLoop(video)
    state = loop.init(ask(latent_frames=None))
    loop.offer(state, PromptChange(video.encode_text("a lake")))

    emits = run_chunks(loop, state, CHUNKS)

    assert emits[0].input_ids == (0,)
    assert pictures(emits) == pictures(run_chunks(loop, loop.init(ask("a lake", latent_frames=None)), CHUNKS))


def test_the_window_is_written_again_in_the_chunks_in_which_it_was_made(ask: Ask, start: Tensor) -> None:
    video = random_video_model(chunk_frames=3, window_frames=9, sink_frames=2)
    loop = VideoLoop(video)
    state = loop.init(ask(latent_frames=None, first=start))
    run_chunks(loop, state, 5)
    while state.unit:
        run_unit(loop, state)
    loop.offer(state, PromptChange(video.encode_text("a lake")))
    run_unit(loop, state)

    # Frames are made as 0, 1-3, 4-6, 7-9, 10-12; the next chunk sees the sink 0, 1 and 9 to 12 beside itself.
    assert state.frame == 13
    assert list(state.branches[0].rewrite) == [(0,), (1,), (9,), (10, 11, 12)]
    assert not state.branches[1].rewrite


# -- what the engine asks ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wishes", [{}, {"guidance": 1.0}, {"latent_frames": 2}, {"steps": 1}])
@pytest.mark.parametrize("first", [False, True])
def test_progress_counts_every_unit(
    wishes: dict[str, Any], first: bool, video: VideoModel, ask: Ask, start: Tensor
) -> None:
    loop = VideoLoop(video)
    frames = wishes.get("latent_frames", 12) + first
    context = {"first": start} if first else {"context": torch.zeros(4, 8, 3, 4)}
    state = loop.init(ask(**{**wishes, "latent_frames": frames}, **context))
    seen = [loop.progress(state)]
    while isinstance(loop.next(state), Plan):
        run_unit(loop, state)
        seen.append(loop.progress(state))

    assert [done for done, _ in seen] == list(range(len(seen)))
    assert {total for _, total in seen} == {len(seen) - 1}


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_price_is_what_a_full_rollout_holds_and_does(
    guidance: float, video: VideoModel, ask: Ask
) -> None:
    loop = VideoLoop(video)
    price = loop.price(ask(guidance=guidance))
    state = loop.init(ask(guidance=guidance))
    works: list[Work] = []
    while isinstance(plan := loop.next(state), Plan):
        if state.frame == 8:
            works.append(plan.work)
        run_unit(loop, state)

    assert sorted(map(str, price.chunk)) == sorted(map(str, works))
    assert price.chunks == CHUNKS
    branches = 1 if guidance == 1 else 2
    held = branches * causal_memory_bytes(video.config.memory, torch.float32)
    held += sum(b.cross.keys.nbytes + b.cross.values.nbytes for b in state.branches if b.cross)
    held += sum(x.nbytes for x in state.past.values()) + state.decoder.nbytes
    assert held <= price.resident_bytes <= held + 5 * 8 * 3 * 4 * 4
    assert price.peak_bytes > 0
    assert loop.price(ask(latent_frames=None)).chunks is None
    assert loop.batch_ops == {}


def test_a_price_allocates_nothing(video: VideoModel, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VideoModel, "new_memory", None)

    assert VideoLoop(video).price(ask()).resident_bytes > 0


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"seed": -1}, "seed=-1 must be"),
        ({"latent_frames": 5}, "latent_frames=5 must be a multiple of 2, such as 6"),
        (
            {"latent_frames": 4, "first": torch.zeros(8, 3, 4)},
            "a multiple of 2 and 1 more for the first, such as 5",
        ),
        ({"latent_frames": 0}, r"must be an integer in 1..100000"),
        ({"latent_frames": True}, r"must be an integer in 1..100000"),
        ({"guidance": float("nan")}, "guidance=nan must be a finite number"),
        ({"steps": 0}, r"steps=0 must be an integer in 1..200"),
        ({"shift": 0}, "shift=0 must be a finite number above 0"),
        ({"solver": "heun"}, "solver='heun' must be euler or renoise"),
        ({"solver": ""}, "solver='' must be euler or renoise"),
        ({"negative": torch.zeros(2, 3)}, "a text is word numbers"),
        ({"first": torch.zeros(8, 4, 3)}, r"first is \(8, 4, 3\); \(8, 3, 4\) is needed"),
        (
            {"context": torch.zeros(2, 8, 4, 3)},
            r"context is \(2, 8, 4, 3\); at least one frame of \(8, 3, 4\)",
        ),
        ({"context": torch.zeros(0, 8, 3, 4)}, "at least one frame"),
        ({"context": torch.zeros(2, 8, 3, 4), "first": torch.zeros(8, 3, 4)}, "exclude each other"),
    ],
)
def test_what_it_cannot_do_is_refused_up_front(
    wishes: dict[str, Any], message: str, video: VideoModel, ask: Ask
) -> None:
    loop = VideoLoop(video)

    for method in (loop.price, loop.init):
        with pytest.raises(ValueError, match=message):
            method(ask(**wishes))


def test_a_context_of_broken_chunks_is_refused(ask: Ask) -> None:
    loop = VideoLoop(random_video_model(chunk_frames=3))

    with pytest.raises(ValueError, match="context has 5 frames: it must be whole chunks of 3"):
        loop.init(ask(context=torch.zeros(5, 8, 3, 4)))


def test_a_prompt_of_another_kind_is_refused(video: VideoModel, ask: Ask) -> None:
    loop = VideoLoop(video)
    state = loop.init(ask())

    with pytest.raises(ValueError, match="a text is word numbers"):
        loop.offer(state, PromptChange(torch.zeros(2, 3)))

    assert state.pending == {}
