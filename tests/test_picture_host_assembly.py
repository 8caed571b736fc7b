"""A picture host put together: found by name, chosen by settings, and living beside a world and its weights."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from worldloop.core.errors import InvalidInputError
from worldloop.core.settings import Settings
from worldloop.core.types import Controls
from worldloop.engine.engine import Engine
from worldloop.host import WorldHost
from worldloop.models.registry import find_picture, scan
from worldloop.picture_host import PictureHost
from worldloop.session.host import GameOptions
from worldloop.session.picture_host import Picture, PictureOrder, PictureTooLargeError
from worldloop.testing import tiny_picture, tiny_world

SIZES = ((48, 64), (64, 48), (32, 32), (64, 96))


def make(host: PictureHost, size: tuple[int, int] = (48, 64)) -> Picture:
    job = host.start(
        PictureOrder(prompt="a lake", negative="", size=size, seed=3, steps=3, guidance=2.0, shift=5.0)
    )
    while not isinstance(news := job.take().result(60), Picture):
        pass
    return news


def test_a_world_and_its_picture_model_share_a_folder(tmp_path: Path, one_thread: None) -> None:
    world = tiny_world(tmp_path / "tiny")
    assert find_picture("", str(world)) is None
    path = tiny_picture(world)

    asked = ("", str(world)), (str(path), "meadow"), (str(world), "meadow")
    assert {find_picture(*each) for each in asked} == {path}
    assert list(scan(world).entries) == ["tiny-3r"]
    with pytest.raises(InvalidInputError, match="no picture model"):
        find_picture(str(tmp_path), "meadow")


def test_settings_choose_the_model_and_its_share(tmp_path: Path, one_thread: None) -> None:
    folder = tiny_world(tmp_path / "tiny")
    tiny_picture(folder)

    def host(**flags: Any) -> PictureHost | None:
        return PictureHost.from_settings(Settings.load(world=str(folder), dtype="fp32", **flags), engine)

    with closing(Engine()) as engine:
        own, small, off = host(), host(picture_memory_mib=1, picture_steps_max=5), host(picture="off")
        assert own is not None and small is not None
        assert off is None
        assert (own.facts.model, own.facts.steps_max, own.facts.sizes) == ("tiny-picture", 100, SIZES)
        assert small.facts.steps_max == 5
        own.admit((64, 96))
        with pytest.raises(PictureTooLargeError, match="no picture fits"):
            small.admit((32, 32))
        assert own.machine["dtype"] == "float32"
        assert own.machine["torch"] == torch.__version__


def test_a_pipeline_without_its_libraries_names_the_extra(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "MOSSImagePipeline"}')
    monkeypatch.setitem(sys.modules, "worldloop.loops.moss_pictures", None)
    assert find_picture(str(tmp_path), "meadow") == tmp_path
    with closing(Engine()) as engine, pytest.raises(InvalidInputError, match=r"worldloop\[moss\]"):
        PictureHost.load(engine, tmp_path, device=torch.device("cpu"))


def test_a_world_that_switches_forgets_no_other_weights(tmp_path: Path, one_thread: None) -> None:
    folder = tiny_world(tmp_path / "tiny")
    tiny_world(folder, cache_mode="last_step_writes", seed=1, step=2)
    path = tiny_picture(folder)
    with closing(WorldHost.open(str(folder), threads=1, warmup=False)) as world:
        PictureHost.load(world.engine, path, device=torch.device("cpu"))
        held = world.engine.admission.base_bytes
        world.switch("tiny-3r" if world.active_model_id == "tiny-3nr" else "tiny-3nr")

        assert world.engine.admission.base_bytes == held


def test_a_world_takes_a_pictures_latent_or_else_its_pixels(tmp_path: Path, one_thread: None) -> None:
    folder, stranger = tiny_world(tmp_path / "tiny"), tmp_path / "other"
    path, foreign = tiny_picture(folder), tiny_picture(stranger, seed=5)
    with closing(WorldHost.open(str(folder), threads=1, warmup=False)) as world:
        host = PictureHost.load(world.engine, path, device=torch.device("cpu"))
        other = PictureHost.load(world.engine, foreign, device=torch.device("cpu"))
        own, large, theirs = make(host), make(host, (64, 96)), make(other)
        frames = [world.adopt(each) for each in (own, large, theirs)]
        encoded = world.encode(theirs.pixels)
        game = world.start(frames[0], options=GameOptions(), seed=1)
        shown = game.submit(Controls(fps=12.0)).result(60).frames

    assert torch.equal(frames[0].value[0].T.reshape(8, 3, 4), own.latent.latent)
    assert {frame.shape for frame in frames} == {(1, 8, 3, 4)}
    assert torch.equal(frames[2].value, encoded.value)
    assert np.array_equal(shown[0], own.pixels), "the game begins with the very picture"
