"""The engine's six gates over mixed loads: worlds and videos on one engine, real attention, real memories.

Proven elsewhere, and not again here:

    1 interleaved = alone   worlds: `test_interleaving`; unit by unit with videos: `loops/test_video_engine`
    2 batched = alone       filled differently and past the window: `loops/test_batching`
    3 streamed = final      one rollout by itself: `loops/test_video`
    4 snapshot = restored   after any unit, and each thing left out: `loops/test_snapshot`; in a new process:
                            `test_api_time`; a video goes on from its latents: `loops/test_video`
    5 cancel                one session by itself: `test_interleaving`, `loops/test_video_engine`

Here the engine itself runs them all at once, in any order, and every comparison goes through `same` (gate 6).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.core.errors import CapacityError, SessionEndedError
from worldloop.engine import engine as engine_module
from worldloop.engine.admission import Admission
from worldloop.engine.contract import Plan, Result
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.model import WorldModel
from worldloop.loops.snapshot import Origin, Snapshot, put_back, take
from worldloop.loops.video import VideoLoop, VideoState
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import VideoRequest
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.testing import random_video_model

from .mixed import LATENTS, PLAYER, AnyOrder, Running, Session, alone, begin, is_world, run, same, together

Ask = Callable[..., WorldRequest]
FRAMES = 8
"""Latent frames of a video; its window holds 6."""
SEEDS = range(4)
ORIGIN = Origin(model_id="tiny-3r", checkpoint="a" * 64, autoencoder="b" * 64, recency=None, table=4096)


@pytest.fixture(scope="module")
def video(one_thread: None) -> VideoModel:
    return random_video_model()


@pytest.fixture(scope="module")
def plant(ask: Ask) -> Callable[..., list[Session]]:
    """Three worlds and two videos, a loop a family, each a given class."""

    def make(worlds: WorldLoop, videos: VideoLoop) -> list[Session]:
        def wish(prompt: str, **wishes: Any) -> VideoRequest:
            return VideoRequest(prompt=videos.model.encode_text(prompt), latent_frames=FRAMES, **wishes)

        return [
            (worlds, ask(seed=1)),
            (videos, wish("walk in the meadow", seed=1, guidance=2.0)),
            (worlds, ask(seed=2)),
            (videos, wish("a lake", seed=2, guidance=1.0, solver="euler")),
            (worlds, ask(seed=3)),
        ]

    return make


@pytest.fixture(scope="module")
def sessions(plant: Callable[..., list[Session]], model: WorldModel, video: VideoModel) -> list[Session]:
    return plant(WorldLoop(model), VideoLoop(video))


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
    assert [len(chunks) for chunks in found] == [1 + LATENTS, 4, 1 + LATENTS, 4, 1 + LATENTS]
    assert len({b"".join(chunks) for chunks in found}) == 5, "five different sessions"
    assert order.could_join > 20, "a batch was possible, and exact mode made none"
    assert engine.plans == engine.batches > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_with_any_deadlines_each_has_its_own_bytes(
    seed: int, sessions: list[Session], expected: list[list[bytes]]
) -> None:
    found = [running.chunks for running in together(Engine(threaded=False), sessions, due_seed=seed)]

    assert same(found, expected)


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


@pytest.mark.parametrize(
    ("worlds", "videos"),
    [(OneMemoryForWorlds, VideoLoop), (WorldLoop, OneMemoryForVideos), (WorldLoop, OneDecoderForVideos)],
)
def test_control_what_is_shared_is_found_in_its_family_and_in_no_other(
    worlds: type[WorldLoop],
    videos: type[VideoLoop],
    plant: Callable[..., list[Session]],
    expected: list[list[bytes]],
    model: WorldModel,
    video: VideoModel,
) -> None:
    faulty = plant(worlds(model), videos(video))
    found = [running.chunks for running in together(Engine(threaded=False), faulty)]
    well = [same(mine, theirs) for mine, theirs in zip(found, expected, strict=True)]

    families = {
        kind: [good for good, each in zip(well, faulty, strict=True) if is_world(each) == kind]
        for kind in (True, False)
    }
    ill = worlds is not WorldLoop
    assert not all(families[ill])
    assert all(families[not ill])


# -- gate 2: batched = alone --------------------------------------------------------------------------------------
def largest_difference(found: list[list[bytes]], expected: list[list[bytes]]) -> int:
    """In byte values, over all chunks."""
    same(found, expected)
    pairs = [(np.frombuffer(b"".join(each), np.uint8).astype(int) for each in both)
             for both in zip(found, expected, strict=True)]  # fmt: skip
    return max(int(np.abs(a - b).max()) for a, b in pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_of_any_company_differ_by_rounding_and_videos_beside_them_not_at_all(
    seed: int, sessions: list[Session], expected: list[list[bytes]], any_order: Callable[[int], AnyOrder]
) -> None:
    any_order(seed)
    engine = Engine(threaded=False, largest_batch=3)
    found = [running.chunks for running in together(engine, sessions)]

    assert engine.plans - engine.batches > 20, "there were batches"
    assert largest_difference(found[::2], expected[::2]) <= 1
    assert same(found[1::2], expected[1::2])


class SwappedBatch(WorldLoop):
    """The planted fault: a batch's results go to the next in it."""

    def _denoise(self, plans: Sequence[Plan]) -> list[Result]:
        results = super()._denoise(plans)
        return results[1:] + results[:1]


def test_control_a_batch_that_mixes_its_sessions_up_is_found_and_exact_mode_is_not_touched(
    plant: Callable[..., list[Session]], expected: list[list[bytes]], model: WorldModel, video: VideoModel
) -> None:
    faulty = plant(SwappedBatch(model), VideoLoop(video))
    fast, exact = (
        [running.chunks for running in together(Engine(threaded=False, largest_batch=largest), faulty)]
        for largest in (3, 1)
    )

    assert largest_difference(fast[::2], expected[::2]) > 16
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

    def __init__(self, model: VideoModel) -> None:
        super().__init__(model)
        self.given: dict[int, Tensor | None] = {}

    def _denoise(self, plan: Plan) -> Result:
        self.given[id(plan.inputs["state"])] = plan.inputs["state"].x
        return super()._denoise(plan)

    def _decode(self, plan: Plan) -> Result:
        state = plan.inputs["state"]
        right, state.x = state.x, self.given[id(state)]
        result = super()._decode(plan)
        state.x = right
        assert right is not None
        return Result(outputs={**result.outputs, "x": right, "kept": right}, emits=result.emits)


@torch.inference_mode()
def finals(session: Session, running: Running) -> list[bytes]:
    """The chunks that a session's finished latents give."""
    model, cache, chunks = session[0].model, None, []  # type: ignore[attr-defined]
    if is_world(session):
        kept = [past.x0 for past in running.handle.state.past]
        assert all(a is b for a, b in zip(kept, running.latents[-len(kept) :], strict=True))
        for latent in running.latents:
            rgb, cache = model.decode(latent, cache)
            chunks.append(rgb.numpy().tobytes())
    else:
        for latents in running.handle.done.result(0).latents.split(model.config.chunk_frames):
            rgb, cache = model.pictures.decode(latents, cache)
            chunks.append(rgb.numpy().tobytes())
    return chunks


def streamed_is_final(sessions: list[Session]) -> list[list[bool]]:
    """Of each session, whether each chunk was the final one."""
    found = []
    for session, running in zip(sessions, together(Engine(threaded=False), sessions), strict=True):
        expected = finals(session, running)
        same(running.chunks, expected)
        found.append([a == b for a, b in zip(running.chunks, expected, strict=True)])
    return found


def test_every_chunk_that_was_streamed_is_the_final_one(sessions: list[Session]) -> None:
    assert streamed_is_final(sessions) == [[True] * (1 + LATENTS), [True] * 4] * 2 + [[True] * (1 + LATENTS)]


def test_control_every_chunk_that_leaves_before_its_last_step_is_found(
    plant: Callable[..., list[Session]], model: WorldModel, video: VideoModel
) -> None:
    found = streamed_is_final(plant(EarlyWorlds(model), EarlyVideos(video)))

    start, *body = zip(*found[::2], strict=True)
    assert all(start), "a start picture has no steps"
    assert not any(good for chunk in body for good in chunk)
    assert not any(good for chunks in found[1::2] for good in chunks)


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
        gone_on(Engine(threaded=False), sessions[:2], each, ask) for each in (snapshot, forgetful)
    )

    assert 1 < snapshot.made < LATENTS
    assert same(right, expected[0][snapshot.made :])
    assert not same(wrong, expected[0][snapshot.made :]), "control: without the autoencoder's cache"


# -- gate 5: cancel at every boundary -----------------------------------------------------------------------------
@dataclass
class Cancelled:
    """Bytes spoken for, live memories and threads that a cancel left; chunks of who went on and of who came next."""

    bytes: int
    memories: int
    threads: int
    others: list[list[bytes]]
    next_one: list[bytes]


def memories(handle: Handle[Any]) -> list[weakref.ref[Any]]:
    state = handle.state
    held = [state.memory] if isinstance(state, WorldState) else [each.memory for each in state.branches]
    return [weakref.ref(memory) for memory in held]


def cancel_at(boundary: int, who: int, load: list[Session], admission: Admission) -> Cancelled:
    """Run a load, end one of its sessions after so many units, let the others end, then play it from the start."""
    threads = threading.active_count()
    engine = Engine(threaded=False, admission=admission)
    running = [begin(engine, session, latents=1) for session in load]
    held = memories(running[who].handle)
    assert held
    with pytest.raises(CapacityError):
        engine.open(*load[who])  # the device is full
    assert run(engine, running, ticks=boundary) == boundary
    running[who].handle.close()
    engine.tick()
    alive = sum(memory() is not None for memory in held)
    assert isinstance(running[who].handle.done.exception(0), SessionEndedError)
    again = begin(engine, load[who], latents=1)
    run(engine, [*running, again])
    for each in (*running, again):
        each.handle.close()
    engine.tick()
    others = [each.chunks for n, each in enumerate(running) if n != who]
    left = admission.resident_bytes
    return Cancelled(left, alive, threading.active_count() - threads, others, again.chunks)


@pytest.fixture
def small(model: WorldModel, video: VideoModel, ask: Ask) -> list[Session]:
    """A world of 7 units and a guided video of 10."""
    text = video.encode_text("a lake")
    return [
        (WorldLoop(model), ask(seed=1)),
        (VideoLoop(video), VideoRequest(prompt=text, seed=1, latent_frames=4, guidance=2.0, steps=2)),
    ]


def full(load: Sequence[Session], kind: type[Admission] = Admission) -> Admission:
    """A device on which these sessions fit, and no other."""
    prices = [loop.price(wish) for loop, wish in load]
    room = sum(price.resident_bytes for price in prices) + max(price.peak_bytes for price in prices)
    return kind(memory_bytes=room)


@pytest.mark.parametrize(("who", "boundaries"), [(0, 18), (1, 17)])
def test_a_cancel_at_any_boundary_of_a_load_leaves_nothing_and_disturbs_nobody(
    who: int, boundaries: int, small: list[Session]
) -> None:
    load = [(Engine(threaded=False), session) for session in small]
    begun = [begin(engine, session, latents=1) for engine, session in load]
    assert [run(engine, [each]) for (engine, _), each in zip(load, begun, strict=True)] == [7, 10]
    for boundary in range(boundaries):
        left = cancel_at(boundary, who, small, full(small))

        assert (left.bytes, left.memories, left.threads) == (0, 0, 0), f"after {boundary} units"
        assert same(left.others, [begun[1 - who].chunks])
        assert same(left.next_one, begun[who].chunks)


class Forgetful(Admission):
    """The planted fault: a share never comes back."""

    def release(self, key: Hashable) -> None:
        """Keep it."""


def test_control_a_share_that_is_kept_is_found(small: list[Session]) -> None:
    with pytest.raises(CapacityError, match="it would fit beside fewer sessions"):
        cancel_at(7, 1, small, full(small, Forgetful))


def test_control_a_memory_that_is_kept_is_found(small: list[Session]) -> None:
    kept: list[Any] = []

    class Hoarding(WorldLoop):
        def finalize(self, state: WorldState) -> int:
            kept.append(state)
            return super().finalize(state)

    world = small[0][0]
    assert isinstance(world, WorldLoop)
    load = [(Hoarding(world.model), small[0][1]), *small[1:]]

    assert cancel_at(7, 0, load, full(load)).memories == 1
