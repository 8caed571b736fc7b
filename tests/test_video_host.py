"""Videos on a device: lengths, first pictures, files, and living beside a world."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from worldloop.cli import app
from worldloop.codec.mp4 import read_video
from worldloop.core.errors import CapacityError, InvalidInputError, SessionEndedError
from worldloop.core.settings import Settings
from worldloop.engine.admission import Admission
from worldloop.engine.engine import Engine
from worldloop.host import WorldHost
from worldloop.loops.video_model import pictures_before
from worldloop.models.registry import find_video, scan
from worldloop.pictures import PictureMaker
from worldloop.session.videos import VideoOrder
from worldloop.testing import tiny_picture, tiny_video, tiny_world
from worldloop.video_host import VideoHost, VideoRollout, latents_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_video(tmp_path_factory.mktemp("video"))


@pytest.fixture(scope="module")
def videos(checkpoint: Path) -> Iterator[VideoHost]:
    with closing(Engine()) as engine:
        yield VideoHost(engine, checkpoint, device=CPU)


def pictures(rollout: VideoRollout) -> list[np.ndarray[Any, Any]]:
    """Its chunks."""
    chunks = []
    while (frames := rollout.take().result(30)) is not None:
        chunks.append(frames)
    return chunks


def order(**wishes: Any) -> VideoOrder:
    return VideoOrder(**{"prompt": "a lake", "seconds": 1, "seed": 3, **wishes})


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_latents_hold_the_pictures_and_no_chunk_too_many(chunk: int, first: bool) -> None:
    for count in range(1, 60):
        latents = latents_of(count, chunk, first=first)

        assert (latents - first) % chunk == 0
        assert pictures_before(latents) >= count
        assert latents - chunk < 1 or pictures_before(latents - chunk) < count


@pytest.mark.parametrize("seconds", [1, 2, 3])
def test_a_video_is_as_long_as_ordered(videos: VideoHost, seconds: int) -> None:
    chunks = pictures(videos.start(order(seconds=seconds)))

    assert sum(map(len, chunks)) == seconds * videos.fps
    assert len(chunks) > 1
    assert chunks[0].shape[1:] == (*videos.frame_size, 3)


def test_the_first_picture_is_what_was_given(videos: VideoHost) -> None:
    height, width = videos.frame_size
    red = np.zeros((height, width, 3), np.uint8) + np.array([200, 20, 20], np.uint8)
    blue = red[..., ::-1]

    starts = [pictures(videos.start(order(first=first)))[0] for first in (red, red, blue)]

    assert len(starts[0]) == 1
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


def test_prompt_and_seed_shape_it(videos: VideoHost) -> None:
    made = [
        np.concatenate(pictures(videos.start(order(**wishes))))
        for wishes in ({}, {}, {"seed": 4}, {"prompt": "walk in the meadow"})
    ]

    assert np.array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])
    assert not np.array_equal(made[0], made[3])


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A video model with the picture model that it names."""
    folder = tmp_path_factory.mktemp("drawing")
    tiny_picture(folder, steps=2)
    facts = {"picture": {"file": "tiny-picture.safetensors", "unread": ["walk"]}}
    return tiny_video(folder, facts=facts)


@pytest.fixture(scope="module")
def drawn(drawing: Path) -> Iterator[VideoHost]:
    with closing(Engine()) as engine:
        yield VideoHost(engine, drawing, device=CPU)


def test_the_first_picture_is_the_picture_models(drawn: VideoHost, drawing: Path) -> None:
    wish = order(prompt="walk in the lake")
    with PictureMaker.load(drawing.with_name("tiny-picture.safetensors"), threads=1) as maker:
        still, other = (maker.make(prompt, seed=3).pixels for prompt in ("in the lake", "walk in the lake"))
    chunks = pictures(drawn.start(wish))

    assert np.array_equal(chunks[0], still[None])
    assert not np.array_equal(chunks[0], other[None]), "control: a word that is not read"
    assert sum(map(len, chunks)) == 12
    assert drawn.draws_with == "tiny-picture"


def test_drawing_can_be_left_out_and_gives_way_to_a_given_picture(
    drawn: VideoHost, videos: VideoHost
) -> None:
    given = np.full((*drawn.frame_size, 3), 90, np.uint8)
    made = [
        np.concatenate(pictures(host.start(order(**wishes))))
        for host, wishes in (
            (drawn, {}), (drawn, {"drawn": False}), (drawn, {"first": given}), (videos, {}), (videos, {"first": given}),
        )
    ]  # fmt: skip

    assert np.array_equal(made[1], made[3])
    assert np.array_equal(made[2], made[4])
    assert len({each.tobytes() for each in made[:3]}) == 3
    assert videos.draws_with is None


def test_a_video_may_end_after_any_unit_of_its_drawing(drawing: Path) -> None:
    engine = Engine(threaded=False)
    host = VideoHost(engine, drawing, device=CPU)
    for units in range(10):
        rollout = host.start(order())
        taken = rollout.take()
        assert all(engine.tick() for _ in range(units))
        rollout.close()

        assert not engine.tick()
        assert isinstance(taken.exception(0), SessionEndedError)
        assert (engine.sessions, engine.admission.resident_bytes) == (0, 0)
    engine.close()


def test_the_time_left_counts_the_drawing_until_there_is_a_picture(drawing: Path) -> None:
    with closing(Engine()) as engine:
        fresh = VideoHost(engine, drawing, device=CPU)
        pictures(fresh.start(order(drawn=False)))
        unknown = fresh.seconds_left(order(), 0)
        pictures(fresh.start(order()))
        whole, bare, begun = (
            fresh.seconds_left(each, made)
            for each, made in ((order(), 0), (order(drawn=False), 0), (order(), 1))
        )

    assert unknown is None
    assert whole is not None and bare is not None and begun is not None
    assert whole > bare >= begun > 0


def test_its_weights_are_counted(drawing: Path, checkpoint: Path) -> None:
    held = []
    for path in (checkpoint, drawing):
        with closing(Engine()) as engine:
            VideoHost(engine, path, device=CPU)
            held.append(engine.admission.base_bytes)

    assert held[1] > 1.9 * held[0] > 0


def test_closing_ends_it_and_frees_the_engine(videos: VideoHost) -> None:
    rollout = videos.start(order(seconds=60))
    rollout.take().result(30)

    rollout.close()

    with pytest.raises(SessionEndedError):
        pictures(rollout)
    assert videos.engine.sessions == 0


def test_time_left_is_known_once_a_chunk_was_made(checkpoint: Path) -> None:
    with closing(Engine()) as engine:
        fresh = VideoHost(engine, checkpoint, device=CPU)
        before = fresh.seconds_left(order(), 0)
        pictures(fresh.start(order()))
        short, long = fresh.seconds_left(order(seconds=2), 0), fresh.seconds_left(order(seconds=20), 0)

    assert before is None
    assert short is not None and long is not None
    assert long == pytest.approx(10 * short)


def test_what_does_not_fit_is_refused(checkpoint: Path) -> None:
    with closing(Engine(admission=Admission(memory_bytes=2**20))) as engine:
        tight = VideoHost(engine, checkpoint, device=CPU)

        with pytest.raises(CapacityError):
            tight.start(order())
        assert tight.engine.admission.base_bytes > 2**18


def test_a_world_and_its_video_model_share_a_folder(tmp_path: Path, one_thread: None) -> None:
    world = tiny_world(tmp_path / "tiny")
    assert find_video("", str(world)) is None
    path = tiny_video(world)

    assert (
        find_video("", str(world))
        == find_video(str(path), "meadow")
        == find_video(str(world), "meadow")
        == path
    )
    assert list(scan(world).entries) == ["tiny-3r"]
    with pytest.raises(InvalidInputError, match="no video model"):
        find_video(str(tmp_path), "meadow")


def test_settings_choose_the_model(tmp_path: Path, one_thread: None) -> None:
    folder = tmp_path / "tiny"
    tiny_video(tiny_world(folder))
    with closing(Engine()) as engine:
        own = VideoHost.from_settings(Settings(world=str(folder)), engine)
        off = VideoHost.from_settings(Settings(world=str(folder), video="off"), engine)

    assert own is not None and own.model_id == "tiny-video"
    assert off is None


def test_a_world_may_switch_while_a_video_is_made(tmp_path: Path, one_thread: None) -> None:
    folder = tiny_world(tmp_path / "tiny")
    tiny_world(folder, cache_mode="last_step_writes", seed=1, step=2)
    path = tiny_video(folder)
    with closing(WorldHost.open(str(folder), threads=1, warmup=False)) as world:
        beside = VideoHost(world.engine, path, device=CPU)
        rollout = beside.start(order(seconds=2))
        start = rollout.take().result(30)
        world.switch("tiny-3r" if world.active_model_id == "tiny-3nr" else "tiny-3nr")
        rest = pictures(rollout)

    assert start is not None
    assert len(start) + sum(map(len, rest)) == 24


def test_the_command_writes_a_file(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"

    made = CliRunner().invoke(
        app, ["video", "a lake", "--out", str(out), "--seconds", "1", "--model", str(checkpoint.parent)]
    )

    assert made.exit_code == 0, made.output
    assert "12 pictures, seed " in made.output
    assert "first frame: none" in made.output
    assert len(list(read_video(out))) == 12
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        (["--seconds", "61"], "seconds 61 must be in 1..60"),
        (["--out", "no/such/folder/a.mp4"], "a.mp4 cannot be written: there is no folder 'no/such/folder'"),
        (["--first-frame", "nowhere.png"], "nowhere.png"),
        (["--model", "nowhere"], "no video model"),
        (["--model", "off"], "no video model"),
        (["--set", "video_keep_s=-1"], "video_keep_s"),
    ],
)
def test_the_command_says_what_is_wrong(
    checkpoint: Path, tmp_path: Path, wishes: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    made = CliRunner().invoke(
        app, ["video", "a lake", "--out", "a.mp4", "--seconds", "1", "--model", str(checkpoint), *wishes]
    )

    assert made.exit_code == 2, made.output
    assert says in made.output
    assert list(tmp_path.iterdir()) == []
