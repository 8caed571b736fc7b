"""The engine's gates over mixed loads: worlds, videos and pictures on one engine, real attention, real memories.

Proven elsewhere, and not again here:

    1 interleaved = alone   worlds: `test_interleaving`; unit by unit with videos: `loops/test_video_engine`
    2 batched = alone       filled differently and past the window: `loops/test_batching`
    3 streamed = final      one rollout by itself: `loops/test_video`
    4 snapshot = restored   after any unit, and each thing left out: `loops/test_snapshot`; in a new process:
                            `test_api_time`; a video goes on from its latents: `loops/test_video`
    5 cancel                in a mixed load: `test_gates_cancel`; one session by itself: `test_interleaving`,
                            `loops/test_video_engine`

Here the engine itself runs them all at once, in any order, and every comparison goes through `same` (gate 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.engine import engine as engine_module
from worldloop.engine.contract import Plan, Result
from worldloop.engine.engine import Engine
from worldloop.loops.causal_pictures import CausalPictures, Reading
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.model import WorldModel
from worldloop.loops.picture import PictureLoop, PictureRequest
from worldloop.loops.snapshot import Origin, Snapshot, put_back, take
from worldloop.loops.video import VideoLoop, VideoState
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import VideoRequest
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState

from .mixed import (
    LATENTS,
    PLAYER,
    AnyOrder,
    Running,
    Session,
    alone,
    begin,
    family,
    of,
    run,
    same,
    together,
)

Ask = Callable[..., WorldRequest]
FRAMES = 8
"""Latent frames of a video; its window holds 6."""
SEEDS = range(4)
ORIGIN = Origin(model_id="tiny-3r", checkpoint="a" * 64, autoencoder="b" * 64, recency=None, table=4096)


@pytest.fixture(scope="module")
def plant(
    ask: Ask, model: WorldModel, video: VideoModel, picture: CausalPictures
) -> Callable[..., list[Session]]:
    """Three worlds, two videos and two pictures, a loop a family, each of a given class. The second video's first frame
    is drawn.
    """
    first = FirstFrame(picture, size=(48, 64), name="tiny-picture")

    def make(
        worlds: type[WorldLoop] = WorldLoop,
        videos: type[VideoLoop] = VideoLoop,
        pictures: type[PictureLoop] = PictureLoop,
    ) -> list[Session]:
        a, b, c = worlds(model), videos(video, first), pictures(picture)

        def film(prompt: str, **wishes: Any) -> VideoRequest:
            return VideoRequest(prompt=video.encode_text(prompt), **{"latent_frames": FRAMES, **wishes})

        drawn = {"draw": first.request("a lake", 2), "latent_frames": FRAMES - 1}

        still = PictureRequest(
            prompt="a lake", size=(48, 64), seed=1, steps=4, guidance=2.0, shift=3.0, negative="walk"
        )
        return [
            (a, ask(seed=1)),
            (b, film("walk in the meadow", seed=1, guidance=2.0)),
            (c, replace(still, previews=1)),
            (a, ask(seed=2)),
            (b, film("a lake", seed=2, guidance=1.0, solver="euler", **drawn)),
            (c, replace(still, prompt="the meadow", size=(32, 32), seed=2, guidance=1.0)),
            (a, ask(seed=3)),
        ]

    return make


@pytest.fixture(scope="module")
def sessions(plant: Callable[..., list[Session]]) -> list[Session]:
    return plant()


@pytest.fixture(scope="module")
def expected(sessions: list[Session]) -> list[list[bytes]]:
    """The chunks of each session alone."""
    return alone(sessions)


@pytest.fixture
def any_order(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AnyOrder]:
    def make(seed: int) -> AnyOrder:
        order = AnyOrder(seed)
        monkeypatch.setattr(engine_module, "pick", order)
        return order

    return make


# -- gate 6 -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("found", "expected"), [([], []), ([b""], [b""]), ([[b"a"], []], [[b"a"], []])])
def test_two_outputs_of_nothing_are_no_parity(found: Any, expected: Any) -> None:
    with pytest.raises(AssertionError, match="nothing to compare"):
        same(found, expected)


# -- gate 1: interleaved in any order = alone ---------------------------------------------------------------------
@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_order_each_has_its_own_bytes(
    seed: int, sessions: list[Session], expected: list[list[bytes]], any_order: Callable[[int], AnyOrder]
) -> None:
    order, engine = any_order(seed), Engine(threaded=False)
    found = [running.chunks for running in together(engine, sessions)]

    assert same(found, expected)
    assert [len(chunks) for chunks in found] == [1 + LATENTS, 4, 2, 1 + LATENTS, 4, 1, 1 + LATENTS]
    assert len({b"".join(chunks) for chunks in found}) == 7, "seven different sessions"
    assert order.could_join > 20, "a batch was possible, and exact mode made none"
    assert engine.plans == engine.batches > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_with_any_deadlines_each_has_its_own_bytes(
    seed: int, sessions: list[Session], expected: list[list[bytes]]
) -> None:
    found = [running.chunks for running in together(Engine(threaded=False), sessions, due_seed=seed)]

    assert same(found, expected)


@pytest.mark.parametrize("kind", ["world", "video", "picture"])
def test_a_family_that_stays_away_changes_no_byte_of_the_others(
    kind: str, sessions: list[Session], expected: list[list[bytes]], any_order: Callable[[int], AnyOrder]
) -> None:
    any_order(5)
    present = [
        (each, chunks) for each, chunks in zip(sessions, expected, strict=True) if family(each) != kind
    ]
    found = together(Engine(threaded=False), [each for each, _ in present])

    assert same([running.chunks for running in found], [chunks for _, chunks in present])


class OneMemoryForWorlds(WorldLoop):
    """The planted fault: every world writes into the memory of the first."""

    first: WorldState | None = None

    def init(self, request: WorldRequest) -> WorldState:
        state = super().init(request)
        self.first = self.first or state
        state.memory = self.first.memory
        return state


class OneMemoryForVideos(VideoLoop):
    """The planted fault: every video writes into the memory of the first."""

    first: VideoState | None = None

    def init(self, request: VideoRequest) -> VideoState:
        state = super().init(request)
        self.first = self.first or state
        for branch, owned in zip(state.branches, self.first.branches, strict=False):
            branch.memory = owned.memory
        return state


class OneDecoderForVideos(VideoLoop):
    """The planted fault: every video goes on from whichever pictures were decoded last."""

    cache: Any = None

    def _decode(self, plan: Plan) -> Result:
        plan.inputs["state"].decoder = self.cache
        result = super()._decode(plan)
        self.cache = result.outputs["decoder"]
        return result


class OneTextForPictures(PictureLoop):
    """The planted fault: every picture reads the text of the first."""

    first: Reading | None = None

    def _condition(self, plan: Plan) -> Result:
        result = super()._condition(plan)
        made = result.outputs["condition"]
        self.first = self.first or made
        return Result(outputs={**result.outputs, "condition": replace(made, cross=self.first.cross)})


@pytest.mark.parametrize(
    ("ill", "fault"),
    [
        ("world", OneMemoryForWorlds),
        ("video", OneMemoryForVideos),
        ("video", OneDecoderForVideos),
        ("picture", OneTextForPictures),
    ],
)
def test_control_what_is_shared_is_found_in_its_family_and_in_no_other(
    ill: str, fault: type[Any], plant: Callable[..., list[Session]], expected: list[list[bytes]]
) -> None:
    faulty = plant(**{f"{ill}s": fault})
    found = [running.chunks for running in together(Engine(threaded=False), faulty)]
    well = [same(mine, theirs) for mine, theirs in zip(found, expected, strict=True)]

    for kind in ("world", "video", "picture"):
        assert all(of(kind, faulty, well)) == (kind != ill), kind


# -- gate 2: batched = alone --------------------------------------------------------------------------------------
def largest_difference(found: list[list[bytes]], expected: list[list[bytes]]) -> int:
    """In byte values, over all chunks."""
    same(found, expected)
    pairs = [(np.frombuffer(b"".join(each), np.uint8).astype(int) for each in both)
             for both in zip(found, expected, strict=True)]  # fmt: skip
    return max(int(np.abs(a - b).max()) for a, b in pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_of_any_company_differ_by_rounding_and_jobs_beside_them_not_at_all(
    seed: int, sessions: list[Session], expected: list[list[bytes]], any_order: Callable[[int], AnyOrder]
) -> None:
    any_order(seed)
    engine = Engine(threaded=False, largest_batch=3)
    found = [running.chunks for running in together(engine, sessions)]

    assert engine.plans - engine.batches > 20, "there were batches"
    assert largest_difference(of("world", sessions, found), of("world", sessions, expected)) <= 1
    for kind in ("video", "picture"):
        assert same(of(kind, sessions, found), of(kind, sessions, expected))


class SwappedBatch(WorldLoop):
    """The planted fault: a batch's results go to the next in it."""

    def _denoise(self, plans: Sequence[Plan]) -> list[Result]:
        results = super()._denoise(plans)
        return results[1:] + results[:1]


def test_control_a_batch_that_mixes_its_sessions_up_is_found_and_exact_mode_is_not_touched(
    plant: Callable[..., list[Session]], expected: list[list[bytes]]
) -> None:
    faulty = plant(worlds=SwappedBatch)
    fast, exact = (
        [running.chunks for running in together(Engine(threaded=False, largest_batch=largest), faulty)]
        for largest in (3, 1)
    )

    assert largest_difference(of("world", faulty, fast), of("world", faulty, expected)) > 16
    assert same(exact, expected)


# -- gate 3: streamed = final, chunk by chunk ---------------------------------------------------------------------
class EarlyWorlds(WorldLoop):
    """The planted fault: pictures are made from what the last step was given."""

    def _denoise(self, plans: Sequence[Plan]) -> list[Result]:
        for plan in plans:
            plan.inputs["state"].given = plan.inputs["state"].x
        return super()._denoise(plans)

    def _decode(self, plan: Plan) -> Result:
        state = plan.inputs["state"]
        right, state.x = state.x, getattr(state, "given", state.x)
        result = super()._decode(plan)
        state.x = right
        return result


class EarlyVideos(VideoLoop):
    """The same fault in the other family."""

    def __init__(self, model: VideoModel, first_frame: FirstFrame) -> None:
        super().__init__(model, first_frame)
        self.given: dict[int, Tensor | None] = {}

    def _denoise(self, plan: Plan) -> Result:
        self.given[id(plan.inputs["state"])] = plan.inputs["state"].x
        return super()._denoise(plan)

    def _decode(self, plan: Plan) -> Result:
        state = plan.inputs["state"]
        right, state.x = state.x, self.given.get(id(state))
        result = super()._decode(plan)
        if right is None:
            return result  # a first frame has no steps
        state.x = right
        return Result(outputs={**result.outputs, "x": right, "kept": right}, emits=result.emits)


class EarlyPictures(PictureLoop):
    """The same fault in the third family."""

    def _denoise(self, plan: Plan) -> Result:
        plan.inputs["state"].value = plan.inputs["state"].x
        return super()._denoise(plan)

    def _decode(self, plan: Plan) -> Result:
        state = plan.inputs["state"]
        right, state.x = state.x, state.value
        result = super()._decode(plan)
        state.x = right
        return result


@torch.inference_mode()
def finals(session: Session, running: Running) -> list[bytes]:
    """The chunks that a session's finished latents give; previews are none of them."""
    model, cache, chunks = session[0].model, None, []  # type: ignore[attr-defined]
    if family(session) == "world":
        kept = [past.x0 for past in running.handle.state.past]
        assert all(a is b for a, b in zip(kept, running.latents[-len(kept) :], strict=True))
        for latent in running.latents:
            rgb, cache = model.decode(latent, cache)
            chunks.append(rgb.numpy().tobytes())
    elif family(session) == "picture":
        chunks.append(model.decode(running.latents[-1], 0, session[1].size).numpy().tobytes())
    else:
        made = running.handle.done.result(0).latents
        sizes = [1] * session[1].has_first + [model.config.chunk_frames] * 4
        for latents in made.split(sizes[: len(running.emits)]):
            rgb, cache = model.pictures.decode(latents, cache)
            chunks.append(rgb.numpy().tobytes())
    return chunks


def streamed_is_final(sessions: list[Session]) -> list[list[bool]]:
    """Of each session, whether each chunk that said so was the final one."""
    found = []
    for session, running in zip(sessions, together(Engine(threaded=False), sessions), strict=True):
        expected = finals(session, running)
        shown = [emit.frames.tobytes() for emit in running.emits if emit.final and len(emit.frames)]
        same(shown, expected)
        found.append([a == b for a, b in zip(shown, expected, strict=True)])
    return found


def test_every_chunk_that_was_streamed_is_the_final_one(sessions: list[Session]) -> None:
    found = streamed_is_final(sessions)

    assert of("world", sessions, found) == [[True] * (1 + LATENTS)] * 3
    assert of("video", sessions, found) == [[True] * 4] * 2
    assert of("picture", sessions, found) == [[True]] * 2


def test_control_every_chunk_that_leaves_before_its_last_step_is_found(
    plant: Callable[..., list[Session]],
) -> None:
    faulty = plant(EarlyWorlds, EarlyVideos, EarlyPictures)
    found = streamed_is_final(faulty)

    start, *body = zip(*of("world", faulty, found), strict=True)
    assert all(start), "a start picture has no steps"
    assert not any(good for chunk in body for good in chunk)
    plain, drawn = of("video", faulty, found)
    assert drawn[0], "nor has a first frame"
    assert not any([*plain, *drawn[1:]])
    assert not any(good for chunks in of("picture", faulty, found) for good in chunks)


# -- gate 4: snapshot -> restore, in the middle of a load ---------------------------------------------------------
def gone_on(engine: Engine, company: Sequence[Session], snapshot: Snapshot, ask: Ask) -> list[bytes]:
    """The chunks of a snapshot's game that are still to come, on another engine in other company."""
    others = [begin(engine, session) for session in company]
    run(engine, others, ticks=5)
    loop = company[0][0]
    assert isinstance(loop, WorldLoop)
    game = Running(engine.open(loop, ask(seed=77)))
    game.handle.on_emit = game.hear
    put_back(loop, game.handle.state, Snapshot.unpack(snapshot.pack()))
    for latent in range(snapshot.made - 1, LATENTS):
        game.handle.submit(PLAYER.controls(latent))
    run(engine, [*others, game])
    return game.chunks


@pytest.mark.parametrize("ticks", [40, 57, 71, 83])
def test_a_game_that_is_taken_out_of_a_load_goes_on_in_another(
    ticks: int,
    sessions: list[Session],
    expected: list[list[bytes]],
    ask: Ask,
    any_order: Callable[[int], AnyOrder],
) -> None:
    any_order(ticks)
    engine = Engine(threaded=False)
    load = [begin(engine, session) for session in sessions]
    run(engine, load, ticks=ticks)
    state = load[0].handle.state
    snapshot = take(state, ORIGIN)
    state.decoder = torch.zeros_like(state.decoder)
    forgetful = take(state, ORIGIN)
    right, wrong = (
        gone_on(Engine(threaded=False), sessions[:3], each, ask) for each in (snapshot, forgetful)
    )

    assert 1 < snapshot.made < LATENTS
    assert same(right, expected[0][snapshot.made :])
    assert not same(wrong, expected[0][snapshot.made :]), "control: without the autoencoder's cache"
