"""The picture loop: order of work, what may be run twice, previews, the negative prompt's encoding, and placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.engine.contract import Done, Emit, Plan
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.picture import (
    KEPT_TEXTS,
    PictureLoop,
    PictureRequest,
    PictureResult,
    PictureState,
    preview_steps,
)
from worldloop.loops.picture_model import PHASES
from worldloop.loops.rollout import Profile, Rollout
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_request import VideoRequest
from worldloop.testing import random_picture_model, random_video_model, run_unit

SIZES = ((48, 64), (64, 48), (32, 32), (64, 96))


class Pieces:
    """A model whose decode is three pieces of work, and that tells where it was asked to lie."""

    def __init__(self, model: CausalPictures) -> None:
        self._model = model
        self.placed: list[frozenset[str]] = []
        self.asked: list[tuple[str, bool]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def pieces(self, size: Any) -> int:
        return 3

    def decode(self, value: Tensor, piece: int, size: Any) -> Tensor:
        self.asked.append(("decode", False))
        return self._model.decode(value, 0, size) if piece == 2 else value + 0

    def place(self, phases: frozenset[Any]) -> None:
        self.placed.append(phases)

    def predict(self, *args: Any, negative: bool, **more: Any) -> Tensor:
        self.asked.append(("predict", negative))
        return self._model.predict(*args, negative=negative, **more)

    def encode_text(self, prompt: str) -> Tensor:
        self.asked.append(("encode", False))
        return self._model.encode_text(prompt)


@pytest.fixture(scope="module")
def model(one_thread: None) -> CausalPictures:
    return random_picture_model()


@pytest.fixture
def loop(model: CausalPictures) -> PictureLoop:
    return PictureLoop(Pieces(model))


def wish(**changes: Any) -> PictureRequest:
    own = {"prompt": "a lake", "size": (48, 64), "seed": 3, "steps": 3, "guidance": 2.0, "shift": 5.0}
    return PictureRequest(**{**own, **changes})


def plans(loop: PictureLoop, state: PictureState, emits: list[Emit]) -> Iterator[Plan]:
    """Run a picture to its end; what was run."""
    while not isinstance(plan := loop.next(state), Done):
        emits += run_unit(loop, state)
        yield plan


def made(loop: PictureLoop, request: PictureRequest) -> PictureResult:
    state = loop.init(request)
    assert list(plans(loop, state, []))
    result = loop.finalize(state)
    assert result is not None
    return result


def same(one: PictureResult, other: PictureResult) -> bool:
    return np.array_equal(one.pixels, other.pixels)


def test_one_pass_is_one_unit_and_a_decode_is_its_pieces(loop: PictureLoop) -> None:
    state, emits = loop.init(wish()), []
    ops = [plan.op for plan in plans(loop, state, emits)]

    assert ops == [
        "encode_text", "encode_text", "noise", "condition", "condition", *["denoise"] * 6, *["decode"] * 3,
    ]  # fmt: skip
    assert [(emit.index, emit.final, len(emit.frames)) for emit in emits] == [
        (1, False, 0), (2, False, 0), (3, False, 0), (3, True, 1),
    ]  # fmt: skip


def test_guidance_one_asks_nothing_of_the_negative_branch(loop: PictureLoop) -> None:
    one = made(loop, wish(guidance=1.0, negative="walk"))
    asked = Counter(loop.model.asked)  # type: ignore[attr-defined]
    loop.model.asked.clear()  # type: ignore[attr-defined]
    two = made(loop, wish(guidance=1.5, negative="walk"))
    again = Counter(loop.model.asked)  # type: ignore[attr-defined]

    assert (asked["predict", False], asked["predict", True], asked["encode", False]) == (3, 0, 1)
    assert (again["predict", False], again["predict", True], again["encode", False]) == (3, 3, 2)
    assert not same(one, two)
    assert same(one, made(loop, wish(guidance=1.0)))


def test_guidance_one_is_the_limit_of_guidance(loop: PictureLoop) -> None:
    far, near, one = (made(loop, wish(guidance=g)).latent for g in (1.5, 1.0 + 1e-6, 1.0))

    assert far is not None and near is not None and one is not None
    assert (near.latent - one.latent).abs().max() < 1e-4
    assert (far.latent - one.latent).abs().max() > 1e-2, "control: guidance counts"


def test_progress_counts_every_unit(loop: PictureLoop) -> None:
    for request in (wish(), wish(guidance=1.0), wish(previews=2, steps=5)):
        state = loop.init(request)
        done, total = loop.progress(state)
        assert done == 0
        for number, _ in enumerate(plans(loop, state, []), start=1):
            assert loop.progress(state) == (number, total)
        assert loop.progress(state) == (total, total)


def test_every_unit_may_be_run_twice(loop: PictureLoop) -> None:
    request = wish(previews=1)
    state = loop.init(request)
    while not isinstance(plan := loop.next(state), Done):
        loop.ops[plan.op](plan)
        again = loop.next(state)
        assert isinstance(again, Plan)
        loop.advance(state, loop.ops[plan.op](again))
    twice = loop.finalize(state)

    assert twice is not None
    assert same(twice, made(loop, request))


def test_control_a_unit_that_changes_the_state_is_found(model: CausalPictures) -> None:
    class Stepping(PictureLoop):
        def _denoise(self, plan: Plan) -> Any:
            result = super()._denoise(plan)
            plan.inputs["state"].x.add_(0.1)
            return result

    faulty = Stepping(Pieces(model))
    state = faulty.init(wish())
    while not isinstance(plan := faulty.next(state), Done):
        faulty.ops[plan.op](plan)
        faulty.advance(state, faulty.ops[plan.op](plan))
    twice = faulty.finalize(state)

    assert twice is not None
    assert not same(twice, made(faulty, wish()))


@pytest.mark.parametrize("previews", [1, 2, 9])
def test_previews_shape_nothing(loop: PictureLoop, previews: int) -> None:
    state, emits = loop.init(wish(steps=5, previews=previews)), []
    list(plans(loop, state, emits))
    result = loop.finalize(state)
    shown = [emit.index for emit in emits if not emit.final and len(emit.frames)]

    assert result is not None
    assert same(result, made(loop, wish(steps=5)))
    assert shown == [step + 1 for step in sorted(preview_steps(previews, 5))]
    assert [emit.index for emit in emits] == [1, 2, 3, 4, 5, 5], "one piece of news a step"
    assert not np.array_equal(emits[0].frames, result.pixels[None])


@pytest.mark.parametrize(
    ("previews", "steps", "after"),
    [(0, 9, []), (1, 4, [1]), (2, 9, [2, 5]), (3, 50, [11, 24, 37]), (8, 3, [0, 1]), (4, 1, [])],
)
def test_previews_are_spread_over_the_steps(previews: int, steps: int, after: list[int]) -> None:
    assert sorted(preview_steps(previews, steps)) == after


def test_the_encoding_of_a_negative_prompt_is_kept(loop: PictureLoop) -> None:
    def encodings(request: PictureRequest) -> int:
        loop.model.asked.clear()  # type: ignore[attr-defined]
        made(loop, request)
        return Counter(loop.model.asked)["encode", False]  # type: ignore[attr-defined]

    first, second = made(loop, wish()), made(loop, wish())
    assert same(first, second)
    assert encodings(wish()) == 1
    assert encodings(wish(prompt="walk")) == 1
    assert encodings(wish(negative="walk")) == 2
    for number in range(KEPT_TEXTS):
        encodings(wish(negative="walk " * (number + 2)))
    assert encodings(wish()) == 2, "the oldest was forgotten"
    assert not same(first, made(loop, wish(negative="walk")))


@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_its_own_noise_and_picture(loop: PictureLoop, size: tuple[int, int]) -> None:
    result, other = made(loop, wish(size=size)), made(loop, wish(size=size, seed=4))

    assert result.pixels.shape == (*size, 3)
    assert result.pixels.dtype == np.uint8
    assert result.noise_hash != other.noise_hash
    assert not same(result, other)
    assert result.pixels.std() > 5


def test_a_picture_is_the_first_latent_frame_of_a_rollout(one_thread: None) -> None:
    facts = {"chunk_frames": 1, "window_frames": 1, "sink_frames": 0, "solver": "renoise", "steps": 4}
    video, pictures = random_video_model(**facts), random_picture_model(**facts)
    loop = VideoLoop(video)
    state = loop.init(VideoRequest(prompt=video.encode_text("a lake"), seed=5, latent_frames=1, guidance=2.0))
    emits: list[Emit] = []
    while not isinstance(loop.next(state), Done):
        emits += run_unit(loop, state)

    still = made(PictureLoop(pictures), wish(seed=5, steps=4))

    assert still.latent is not None
    assert torch.equal(still.latent.latent, loop.finalize(state).latents[0])  # type: ignore[index]
    assert np.array_equal(still.pixels, emits[0].frames[0])


def test_phases_take_turns_when_they_must_and_the_picture_is_the_same(model: CausalPictures) -> None:
    together, turns = PictureLoop(Pieces(model)), PictureLoop(Pieces(model))
    one, other = made(together, wish(previews=1)), made(turns, wish(previews=1, one_by_one=True))
    placed = turns.model.placed  # type: ignore[attr-defined]
    changes = [now for before, now in zip([None, *placed], placed, strict=False) if now != before]

    assert same(one, other)
    assert set(together.model.placed) == {frozenset(PHASES)}  # type: ignore[attr-defined]
    assert changes == [frozenset({phase}) for phase in PHASES], "each phase once, and no preview in between"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 2**32}, "seed=4294967296"),
        ({"seed": True}, "seed=True"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 201}, r"1\.\.200"),
        ({"guidance": float("nan")}, "guidance=nan"),
        ({"guidance": -1.0}, "guidance=-1"),
        ({"shift": 0.0}, "shift=0.0"),
        ({"prompt": "lake " * 7}, "7 words that this model knows; it reads 6"),
        ({"negative": "lake " * 7}, "7 words"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    loop: PictureLoop, changes: dict[str, Any], says: str
) -> None:
    for ask in (loop.price, loop.init):
        with pytest.raises(ValueError, match=says):
            ask(wish(**changes))
    assert loop.model.asked == []  # type: ignore[attr-defined]


def test_it_takes_no_inputs(loop: PictureLoop) -> None:
    with pytest.raises(ValueError, match="no inputs"):
        loop.offer(loop.init(wish()), "walk")


def test_work_left_shrinks_with_the_steps(loop: PictureLoop) -> None:
    whole, half, end = (Counter(work.op for work in loop.work(wish(), done)) for done in (0, 2, 3))

    assert whole == {"encode_text": 2, "noise": 1, "condition": 2, "denoise": 6, "decode": 3}
    assert half == {"denoise": 2, "decode": 3}
    assert end == {"decode": 3}
    assert loop.price(wish()).chunk == loop.work(wish())


# -- profiles -------------------------------------------------------------------------------------------------------
def recorded(loop: PictureLoop, **changes: Any) -> tuple[PictureResult, Rollout]:
    record = Rollout()
    return made(loop, wish(profile=Profile(record=record), **changes)), record


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_a_recorded_picture_has_the_same_bytes_and_its_predictions_make_it_again_without_a_pass(
    loop: PictureLoop, guidance: float
) -> None:
    plain = made(loop, wish(guidance=guidance))
    first, record = recorded(loop, guidance=guidance)
    loop.model.asked.clear()  # type: ignore[attr-defined]

    again = made(loop, wish(guidance=guidance, profile=Profile(override=record.predictions())))

    assert same(plain, first) and same(first, again)
    assert not [asked for asked in loop.model.asked if asked[0] == "predict"]  # type: ignore[attr-defined]
    (chunk,) = record.chunks
    assert (record.family, record.seed, chunk.frame, len(chunk.steps)) == ("picture", 3, 0, 3)
    assert torch.equal(chunk.steps[0].x_t[0], loop.model.noise(3, (48, 64)))
    assert torch.equal(chunk.told["cond"], loop.model.encode_text("a lake"))
    assert set(chunk.told) == ({"cond"} if guidance == 1 else {"cond", "uncond"})
    assert set(chunk.steps[0].branches) == (set() if guidance == 1 else {"cond", "uncond"})


def test_control_another_prediction_makes_another_picture(loop: PictureLoop) -> None:
    first, record = recorded(loop)
    other = {at: v + 0.5 if at[1] == 2 else v for at, v in record.predictions().items()}

    assert not same(made(loop, wish(profile=Profile(override=other))), first)


def test_some_predictions_may_be_given_and_the_others_made(loop: PictureLoop) -> None:
    first, record = recorded(loop)
    some = {at: v for at, v in record.predictions().items() if at[1] != 1}
    loop.model.asked.clear()  # type: ignore[attr-defined]

    assert same(made(loop, wish(profile=Profile(override=some))), first)
    assert [asked for asked in loop.model.asked if asked[0] == "predict"] == [  # type: ignore[attr-defined]
        ("predict", False),
        ("predict", True),
    ]


def test_what_cannot_be_recorded_or_given_is_refused(loop: PictureLoop) -> None:
    _, record = recorded(loop)
    v = record.predictions()[0, 0]
    for profile, says in (
        (Profile(record=record), "is of a picture rollout already"),
        (Profile(override={(0, 3): v}), "only steps below 3"),
        (Profile(override={(0, 0): v[0]}), r"is torch.float32 \(8, 3, 4\)"),
    ):
        with pytest.raises(ValueError, match=says):
            loop.init(wish(profile=profile))
    # What an order costs may be asked as often as one likes.
    fresh = Profile(record=Rollout())
    loop.price(wish(profile=fresh))
    assert made(loop, wish(profile=fresh)).steps == 3
