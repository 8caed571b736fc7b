"""`worldloop.load_video`: clips, rollouts without an end, other prompts on the way, going on from an earlier one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import worldloop
from worldloop.testing import tiny_picture, tiny_video

SEED = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("video")
    tiny_picture(folder, steps=2)
    tiny_video(folder, facts={"picture": {"file": "tiny-picture.safetensors", "unread": ["walk"]}})
    return folder


@pytest.fixture(scope="module")
def maker(folder: Path) -> Iterator[worldloop.VideoMaker]:
    with worldloop.load_video(folder, threads=1) as maker:
        yield maker


def start(maker: worldloop.VideoMaker, **choices: Any) -> worldloop.Roll:
    return maker.roll("a lake", **{"seed": SEED, **choices})


def joined(chunks: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate(chunks)


def test_a_clip_is_as_long_as_asked_and_the_same_each_time(maker: worldloop.VideoMaker) -> None:
    one, two, other = (maker.make("a lake", seconds=1.5, seed=seed) for seed in (SEED, SEED, SEED + 1))

    assert one.shape == (int(1.5 * maker.fps), *maker.host.frame_size, 3)
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_a_rollout_without_an_end_begins_with_the_clip(maker: worldloop.VideoMaker) -> None:
    clip = maker.make("a lake", seconds=2, seed=SEED)
    with start(maker) as roll:
        seen = joined(list(itertools.islice(roll, 12)))
        with pytest.raises(worldloop.NotReadyError, match="the rollout is not over"):
            _ = roll.latents

    assert len(seen) > len(clip)
    assert np.array_equal(seen[: len(clip)], clip)
    with pytest.raises(worldloop.SessionEndedError, match="closed"):
        next(roll)


def test_another_prompt_is_followed_from_a_chunk_on(maker: worldloop.VideoMaker) -> None:
    with start(maker) as plain, start(maker) as told:
        before = [next(told) for _ in range(2)]
        told.prompt("walk in the meadow")
        after = list(itertools.islice(told, 8))
        same = list(itertools.islice(plain, 10))

    pairs = [np.array_equal(a, b) for a, b in zip(before + after, same, strict=True)]
    assert pairs[:2] == [True, True]
    assert not pairs[-1]
    assert pairs == sorted(pairs, reverse=True), "once it differs, it stays another"


def test_one_goes_on_from_another_as_if_it_had_never_ended(maker: worldloop.VideoMaker) -> None:
    with start(maker, seconds=3) as whole, start(maker, seconds=1) as first:
        wanted, made = joined(list(whole)), list(first)
        with start(maker, seconds=1, after=first.latents) as second:
            made += list(second)
        with start(maker, seconds=1, after=first.latents[1:]) as less:
            other = list(less)

    assert len(joined(made)) > 2 * maker.fps
    assert np.array_equal(joined(made), wanted[: len(joined(made))])
    assert not np.array_equal(joined(other), joined(list(made[-len(other) :])))


def test_it_begins_as_it_is_told(maker: worldloop.VideoMaker) -> None:
    height, width = maker.host.frame_size
    picture = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    drawn, bare, given = (
        maker.make("a lake", seconds=1, seed=SEED, **choices)
        for choices in ({}, {"draw": False}, {"first": picture})
    )

    assert not np.array_equal(drawn, bare)
    assert not np.array_equal(drawn, given)
    assert not np.array_equal(maker.make("a lake", seconds=1, seed=SEED, steps=5, guidance=2.0), drawn)


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"seconds": 0}, "seconds=0 must be a number above 0"),
        ({"seconds": "3"}, "seconds='3' must be"),
        ({"seconds": True}, "seconds=True must be"),
        ({"seconds": 1e300}, "latent_frames"),
        ({"first": 5}, "got 5"),
        ({"seed": -1}, "seed=-1"),
        ({"steps": 0}, "steps=0"),
        ({"solver": "x"}, "solver='x' must be euler or renoise"),
        ({"guidance": float("nan")}, "guidance=nan"),
        ({"first": "nope.png"}, r"no picture 'nope\.png'"),
        ({"first": b"nothing"}, "picture"),
        ({"after": torch.zeros(3)}, "context is"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_left(
    maker: worldloop.VideoMaker, choices: dict[str, Any], says: str
) -> None:
    with pytest.raises(worldloop.InvalidInputError, match=says):
        start(maker, **choices)
    maker.host.engine.call(lambda: None)
    assert maker.host.engine.sessions == 0


def test_a_clip_has_an_end(maker: worldloop.VideoMaker) -> None:
    with pytest.raises(worldloop.InvalidInputError, match="seconds=None must be a number above 0"):
        maker.make("a lake", seconds=None)  # type: ignore[arg-type]


def test_a_world_without_a_video_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(worldloop.InvalidInputError, match="no world 'nowhere'"):
        worldloop.load_video("nowhere")
    with pytest.raises(worldloop.InvalidInputError, match="video"):
        worldloop.load_video(tmp_path)
