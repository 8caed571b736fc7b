"""Videos in the engine, beside worlds and each other: the bytes that each has alone, jobs by chunks, and cancelling."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from worldloop.core.errors import SessionEndedError
from worldloop.core.types import Controls
from worldloop.engine.contract import Done, Emit
from worldloop.engine.engine import Engine
from worldloop.loops.model import WorldModel
from worldloop.loops.video import VideoLoop, VideoState
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import PromptChange, VideoRequest
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.testing import random_video_model, run_unit

from .interleaved import LATENTS, PLAYER, Order, Session, alone, in_order, in_turn, pictures

FRAMES = 10
"""Latent frames of a video; its window holds 6."""


@pytest.fixture(scope="module")
def video(one_thread: None) -> VideoModel:
    return random_video_model()


def request(video: VideoModel, prompt: str, **wishes: Any) -> VideoRequest:
    return VideoRequest(
        prompt=video.encode_text(prompt), **{"latent_frames": FRAMES, "guidance": 2.0, **wishes}
    )


@pytest.fixture(scope="module")
def sessions(model: WorldModel, video: VideoModel, ask: Callable[..., WorldRequest]) -> list[Session]:
    """Two worlds and three videos; the videos of one loop share their model."""
    world, videos = WorldLoop(model), VideoLoop(video)
    return [
        (world, ask(seed=1)),
        (videos, request(video, "walk in the meadow", seed=1)),
        (
            videos,
            request(video, "a lake", seed=1, first=torch.full((8, 3, 4), 0.5), latent_frames=FRAMES + 1),
        ),
        (world, ask(seed=2, sphere="all")),
        (videos, request(video, "walk", seed=2, guidance=1.0, solver="euler")),
    ]


ORDERS: dict[str, Callable[[], Order]] = {
    "in turn": in_turn,
    "last first": lambda: lambda ready: ready[-1],
    "random 1": lambda: random.Random(1).choice,
    "random 2": lambda: random.Random(2).choice,
}


@pytest.mark.parametrize("order", ORDERS)
def test_worlds_and_videos_interleaved_are_alone(order: str, sessions: list[Session]) -> None:
    together = in_order(sessions, ORDERS[order]())

    assert together == alone(sessions)
    assert len({*together}) == 5, "five different sessions"
    assert all(together), "none of them empty"


class SharedMemoryLoop(VideoLoop):
    """The planted fault: every rollout writes into the memory of the first."""

    first: VideoState | None = None

    def init(self, request: VideoRequest) -> VideoState:
        state = super().init(request)
        self.first = self.first or state
        for branch, owned in zip(state.branches, self.first.branches, strict=False):
            branch.memory = owned.memory
        return state


def test_control_a_shared_memory_is_found(sessions: list[Session], video: VideoModel) -> None:
    faulty = SharedMemoryLoop(video)
    shared = [(faulty if isinstance(loop, VideoLoop) else loop, wish) for loop, wish in sessions]

    assert in_order(shared, in_turn()) != alone(sessions)


def test_the_engine_serves_a_game_and_videos_side_by_side(sessions: list[Session]) -> None:
    engine = Engine(threaded=False)
    handles = [engine.open(loop, wish, keep_chunks=isinstance(wish, VideoRequest)) for loop, wish in sessions]
    futures: list[Any] = []
    got: list[list[Emit]] = [[] for _ in sessions]
    for index, (_, wish) in enumerate(sessions):
        if isinstance(wish, WorldRequest):
            futures.append((index, handles[index].submit(Controls())))
            futures += [(index, handles[index].submit(PLAYER.controls(latent))) for latent in range(LATENTS)]
    takes = {n: handles[n].take() for n, (_, wish) in enumerate(sessions) if isinstance(wish, VideoRequest)}
    busy = True
    while busy:
        busy = engine.tick()
        for index, take in list(takes.items()):
            if take.done():
                chunk = take.result()
                del takes[index]
                if chunk is not None:
                    got[index].append(chunk)
                    takes[index] = handles[index].take()
                    busy = True
    for index, future in futures:
        got[index].append(future.result(0))

    assert takes == {}
    assert [pictures(each) for each in got] == alone(sessions)
    assert handles[1].done.result(0).frames == FRAMES
    assert engine.seconds_left(VideoLoop(sessions[1][0].model).price(sessions[1][1]), chunks=5) is not None  # type: ignore[attr-defined]
    assert all(chunk.device_s for chunk in got[1])


def test_a_new_prompt_in_the_engine(video: VideoModel) -> None:
    engine, loop = Engine(threaded=False), VideoLoop(video)
    handle = engine.open(loop, request(video, "walk", seed=1, latent_frames=None), keep_chunks=True)
    first = handle.take()
    while not first.done():
        assert engine.tick()
    change = handle.submit(PromptChange(video.encode_text("a lake")))
    while not change.done():
        assert engine.tick()

    chunk = change.result(0)

    assert chunk.input_ids == (0,)
    assert chunk.index == 2
    handle.close()
    assert not engine.tick()
    assert isinstance(handle.done.exception(0), SessionEndedError)


def test_a_cancel_at_any_unit_leaves_nothing_behind(video: VideoModel, ask: Any) -> None:
    loop = VideoLoop(video)
    wish = request(video, "walk", seed=3, latent_frames=6)
    other = (VideoLoop(video), request(video, "a lake", seed=4, latent_frames=4))
    expected = alone([other])
    units = 0
    state = loop.init(wish)
    while not isinstance(loop.next(state), Done):
        run_unit(loop, state)
        units += 1
    assert units == 2 + 3 * 4 + 2 * 2
    for boundary in range(units):
        engine, freed = Engine(threaded=False), []
        handle: Any = engine.open(loop, wish, keep_chunks=True, on_close=lambda freed=freed: freed.append(1))
        memories = [weakref.ref(branch.memory) for branch in handle.state.branches]
        takes = [handle.take() for _ in range(4)]

        ticks = sum(engine.tick() for _ in range(boundary))
        handle.close()
        handle.close()

        assert ticks == boundary
        assert not engine.tick()
        assert (engine.sessions, freed) == (0, [1])
        assert engine.admission.load == 0
        assert all(take.done() for take in takes)
        assert isinstance(takes[-1].exception(0), SessionEndedError)
        assert [memory() for memory in memories] == [None, None], "a handle that is kept keeps no memory"
    assert alone([other]) == expected
