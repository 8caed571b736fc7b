"""First frames that are drawn: which model, what it reads, the units, and the same rollout as from a given latent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from worldloop.core.errors import CheckpointError
from worldloop.engine.contract import Emit, Plan
from worldloop.engine.engine import Engine
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.picture import PictureLoop
from worldloop.loops.rollout import Profile, Rollout
from worldloop.loops.video import VideoLoop, VideoState
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import VideoRequest
from worldloop.models.causal import CausalConfig
from worldloop.models.causal_weights import read_video_config
from worldloop.simulators.captions import motions
from worldloop.testing import random_picture_model, random_video_model, run_unit, tiny_picture, tiny_video
from worldloop.trainer.text_recipes import VOCABULARY

CPU, SIZE = torch.device("cpu"), (48, 64)


@pytest.fixture(scope="module")
def painter(one_thread: None) -> CausalPictures:
    return random_picture_model(seed=1)


@pytest.fixture(scope="module")
def video(one_thread: None) -> VideoModel:
    return random_video_model()


@pytest.fixture
def loop(video: VideoModel, painter: CausalPictures) -> VideoLoop:
    return VideoLoop(video, FirstFrame(painter, size=SIZE, name="tiny-picture", unread=["walk"]))


def ask(loop: VideoLoop, *, seed: int = 3, prompt: str = "walk in the lake", **wishes: Any) -> VideoRequest:
    assert loop.first_frame is not None
    draw = loop.first_frame.request(prompt, seed)
    text = loop.model.encode_text(prompt)
    facts = {"latent_frames": 5, "guidance": 2.0, "draw": draw, **wishes}
    return VideoRequest(prompt=text, seed=seed, **facts)


def play(
    loop: VideoLoop, request: VideoRequest, *, times: int = 1
) -> tuple[VideoState, list[Emit], list[Plan]]:
    """A whole rollout, every unit of which runs `times` times."""
    state, emits, plans = loop.init(request), [], []
    while isinstance(plan := loop.next(state), Plan):
        plans.append(plan)
        for _ in range(times - 1):
            loop.ops[plan.op](plan)
        emits += run_unit(loop, state)
    return state, emits, plans


def pictures(emits: list[Emit]) -> bytes:
    assert emits
    return b"".join(emit.frames.tobytes() for emit in emits)


def given(painter: CausalPictures, request: VideoRequest) -> torch.Tensor:
    """The latent of the picture that a picture loop makes by itself."""
    loop = PictureLoop(painter)
    assert request.draw is not None
    state = loop.init(request.draw)
    assert loop.latent(state) is None
    while isinstance(loop.next(state), Plan):
        run_unit(loop, state)
    made = loop.finalize(state)
    assert made is not None and made.latent is not None
    return made.latent.latent


def test_a_drawn_frame_is_a_given_one(loop: VideoLoop, painter: CausalPictures) -> None:
    drawn, other = ask(loop), ask(loop, draw=loop.first_frame.request("a lake", 4))  # type: ignore[union-attr]
    record, again = Rollout(), Rollout()
    emits = [play(loop, VideoRequest(**{**fields(each), "profile": Profile(record=into)}))[1]
             for each, into in ((drawn, record), (other, again))]  # fmt: skip
    first = given(painter, drawn)
    instead = play(VideoLoop(loop.model), VideoRequest(**{**fields(drawn), "draw": None, "first": first}))[1]

    assert pictures(emits[0]) == pictures(instead)
    assert [emit.frames.shape[0] for emit in emits[0]] == [1, 8, 8]
    assert torch.equal(record.latents[0], first)
    assert pictures(emits[0]) != pictures(emits[1]), "control: another seed of the picture alone"
    assert not torch.equal(again.latents[0], first)


def fields(request: VideoRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def test_its_units_come_first_and_may_run_twice(loop: VideoLoop) -> None:
    state, emits, plans = play(loop, ask(loop))
    labels = [plan.label for plan in plans]
    steps = [f"step{step}.{branch}" for step in range(3) for branch in ("cond", "uncond")]
    begin = ["text.cond", "text.uncond", "noise", "condition.cond", "condition.uncond"]

    assert [label.removeprefix("first_frame.picture.") for label in labels[:11]] == begin + steps
    assert labels[11:15] == ["frame0.text.cond", "frame0.text.uncond", "frame0.decode", "frame0.write.cond"]
    assert not any(label.startswith("first_frame") for label in labels[11:])
    assert (state.drawing, state.first is None) == (None, False)
    assert pictures(play(loop, ask(loop), times=3)[1]) == pictures(emits)


def test_progress_counts_every_unit(loop: VideoLoop) -> None:
    state, seen = loop.init(ask(loop)), []
    while isinstance(loop.next(state), Plan):
        seen.append(loop.progress(state))
        run_unit(loop, state)

    assert seen == [(done, len(seen)) for done in range(len(seen))]
    assert loop.progress(state) == (len(seen), len(seen))


def test_it_has_a_price_and_a_measured_time(loop: VideoLoop) -> None:
    drawn, bare = ask(loop), ask(loop, draw=None, latent_frames=4)
    assert loop.first_frame is not None and drawn.draw is not None
    more = loop.price(drawn).resident_bytes - loop.price(bare).resident_bytes
    engine = Engine(threaded=False)
    before = engine.cost.seconds(loop.first_frame.work(drawn.draw))
    handle = engine.open(loop, drawn, keep_chunks=True)
    while engine.tick():
        pass

    assert more == PictureLoop(loop.first_frame.model).price(drawn.draw).resident_bytes > 0
    assert before is None
    assert (engine.cost.seconds(loop.first_frame.work(drawn.draw)) or 0) > 0
    handle.close()
    engine.tick()


@pytest.mark.parametrize(
    ("prompt", "reads"),
    [
        ("a lake in the east, a path, walking north, then west", "a lake in the east a path"),
        ("A walk to the south along a lake; standing still", "a lake"),
        ("pines in the north, not moving, then going to the east", "pines in the north"),
        ("walking northeast", "northeast"),
        ("a lake, waiting", "a lake"),
        ("north", "north"),
        ("a splendid lake", "a lake"),
        ("a lake, " * 20, " ".join(["a lake"] * 6)),
        ("", ""),
    ],
)
def test_it_reads_what_it_knows_but_not_where_somebody_goes(prompt: str, reads: str) -> None:
    words = CausalConfig.named("tiny", vocabulary=VOCABULARY, text_len=12)
    model = random_picture_model(size=words)
    ours = FirstFrame(model, size=SIZE, name="p", unread=motions())
    other = FirstFrame(model, size=SIZE, name="p")

    assert ours.read_of(prompt) == ours.request(prompt, 0).prompt == reads
    assert len(other.read_of(prompt).split()) >= len(reads.split())


def named(**changes: Any) -> dict[str, Any]:
    return {"facts": {"picture": {"file": "tiny-picture.safetensors", "unread": ["walk"], **changes}}}


def beside(path: Path) -> FirstFrame | None:
    return FirstFrame.beside(path, read_video_config(path), SIZE, device=CPU, dtype=torch.float32)


def test_a_checkpoint_names_its_picture_model(tmp_path: Path, one_thread: None) -> None:
    path = tiny_video(tmp_path, **named())
    assert beside(path) is None, "it is not there"
    tiny_picture(tmp_path)
    found = beside(path)
    assert found is not None
    assert (found.name, found.read_of("walk lake")) == ("tiny-picture", "lake")
    assert beside(tiny_video(tmp_path, name="silent-video")) is None, "it names none"


@pytest.mark.parametrize(
    "facts",
    ["tiny-picture.safetensors", {"file": "../a.safetensors", "unread": []}, {"file": 3, "unread": []},
     {"file": "a.safetensors"}, {"file": "a.safetensors", "unread": ["walk", 3]},
     {"file": "a.safetensors", "unread": [","]}],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(tmp_path: Path, one_thread: None, facts: Any) -> None:
    with pytest.raises(CheckpointError, match=r"tiny-video\.safetensors: picture="):
        beside(tiny_video(tmp_path, facts={"picture": facts}))


def test_a_picture_model_of_another_size_is_refused(tmp_path: Path, one_thread: None) -> None:
    path = tiny_video(tmp_path, **named())
    tiny_picture(tmp_path, latent_hw=(2, 2), facts={})
    with pytest.raises(CheckpointError, match=r"makes 32x32; tiny-video\.safetensors, .* is 64x48"):
        beside(path)


def test_what_cannot_be_drawn_is_refused(loop: VideoLoop) -> None:
    first = torch.zeros(8, 3, 4)
    assert loop.first_frame is not None
    long = loop.first_frame.request("lake", 1)
    small = FirstFrame(loop.first_frame.model, size=(32, 32), name="p").request("a lake", 1)
    wrong = [
        (loop, ask(loop, first=first), "first and draw exclude each other"),
        (loop, ask(loop, context=torch.zeros(2, 8, 3, 4)), "exclude each other"),
        (loop, ask(loop, draw=small), r"draw is of size \(32, 32\); \(48, 64\) is needed"),
        (loop, ask(loop, latent_frames=4), "and 1 more for the first"),
        (loop, ask(loop, draw=replace(long, prompt="lake " * 7)), "7 words that this model knows"),
        (VideoLoop(loop.model), ask(loop), "draw needs a picture model"),
    ]
    for each, request, says in wrong:
        for method in (each.price, each.init):
            with pytest.raises(ValueError, match=says):
                method(request)
