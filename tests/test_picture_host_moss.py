"""A pipeline in the layout of diffusers, served by the picture host like the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from worldloop.core.errors import InvalidInputError
from worldloop.core.settings import Settings
from worldloop.engine.engine import Engine
from worldloop.loops.picture_model import one_by_one
from worldloop.picture_host import PictureHost
from worldloop.session.picture_host import Picture, PictureOrder, PictureTooLargeError

CPU = torch.device("cpu")
SIZES = ((64, 64), (64, 96), (32, 32), (48, 80))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    pytest.importorskip("diffusers")
    from worldloop.testing_moss import tiny_moss

    return tiny_moss(tmp_path_factory.mktemp("pipelines") / "moss")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[PictureHost]:
    with closing(Engine()) as engine:
        yield PictureHost.load(engine, folder, device=CPU, dtype="fp32")


def make(host: PictureHost, **wishes: Any) -> Picture:
    own = {
        "prompt": "a fox",
        "negative": "",
        "size": (64, 64),
        "seed": 3,
        "steps": 5,
        "guidance": 3.0,
        "shift": 5.0,
    }
    job = host.start(PictureOrder(**{**own, **wishes}))
    while not isinstance(news := job.take().result(60), Picture):
        pass
    return news


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("negative", ["", "blur"])
def test_the_same_order_gives_the_same_bytes(host: PictureHost, size: tuple[int, int], negative: str) -> None:
    one, two = (make(host, size=size, negative=negative) for _ in range(2))

    assert one.pixel_hash == two.pixel_hash
    assert one.pixels.shape == (*size, 3)
    assert one.latent is None, "no world has this autoencoder"


def test_phases_that_take_turns_change_no_bytes(host: PictureHost) -> None:
    least = one_by_one(host.model.bytes_of((64, 64)))
    tight = PictureHost(host.engine, host.model, model_id="tight", memory_bytes=least)

    assert make(tight).pixel_hash == make(host).pixel_hash
    with pytest.raises(PictureTooLargeError):
        PictureHost(host.engine, host.model, model_id="tighter", memory_bytes=least - 1).admit((64, 64))


def test_a_refused_request_changes_no_bytes(host: PictureHost) -> None:
    before = make(host).pixel_hash
    for size in ((60, 64), (512, 512)):
        with pytest.raises(InvalidInputError):
            make(host, size=size)

    assert make(host).pixel_hash == before


def test_settings_name_its_folder(folder: Path) -> None:
    with closing(Engine()) as engine:
        host = PictureHost.from_settings(Settings.load(picture=str(folder), device="cpu"), engine)

    assert host is not None
    assert (host.facts.model, host.facts.sizes, host.facts.guidance) == ("moss", None, 3.0)
    assert {"transformers", "diffusers"} <= set(host.machine)
