"""`worldloop.load_picture`, and stepping into what it made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import worldloop
from worldloop.core.errors import InvalidInputError
from worldloop.session.picture_host import Step
from worldloop.testing import tiny_picture, tiny_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tiny_world(tmp_path_factory.mktemp("worlds") / "tiny")
    tiny_picture(folder)
    return folder


@pytest.fixture(scope="module")
def maker(folder: Path) -> Iterator[worldloop.PictureMaker]:
    with worldloop.load_picture(folder, threads=1) as maker:
        yield maker


def test_the_same_call_makes_the_same_picture(maker: worldloop.PictureMaker) -> None:
    one, two, other = maker.make("a lake"), maker.make("a lake"), maker.make("a lake", seed=1)

    assert np.array_equal(one.pixels, two.pixels)
    assert not np.array_equal(one.pixels, other.pixels)
    assert one.pixels.shape == (*maker.host.facts.size, 3)


def test_choices_reach_it(maker: worldloop.PictureMaker) -> None:
    steps: list[Step] = []
    made = maker.make(
        "a lake",
        seed=2,
        size=(64, 96),
        negative="walk",
        steps=5,
        guidance=1.5,
        shift=2.0,
        on_step=steps.append,
    )

    assert made.pixels.shape == (64, 96, 3)
    assert [step.done for step in steps] == [1, 2, 3, 4, 5]
    order = made.order
    assert (order.seed, order.negative, order.steps, order.guidance, order.shift) == (2, "walk", 5, 1.5, 2.0)
    assert maker.sizes == ((48, 64), (64, 48), (32, 32), (64, 96))


def test_a_world_begins_with_the_very_picture(maker: worldloop.PictureMaker, folder: Path) -> None:
    made = maker.make("a lake", seed=5)
    with worldloop.load_world(folder, threads=1, warmup=False) as world:
        inside, through_pixels = world.start(made), world.start(made.pixels)
        walked = [session.step("w") for session in (inside, through_pixels)]

    assert np.array_equal(inside.first[0], made.pixels)
    assert not np.array_equal(through_pixels.first[0], made.pixels), "control: the encoder loses something"
    assert not np.array_equal(walked[0], walked[1])


def test_any_picture_may_begin_a_world(maker: worldloop.PictureMaker, folder: Path) -> None:
    large, small = maker.make("a lake", size=(64, 96)), maker.make("a lake", size=(32, 32))
    with worldloop.load_world(folder, threads=1, warmup=False) as world:
        inside = world.start(large).first[0].astype(int)
        assert world.start(small).first.shape == (1, 48, 64, 3)
    # Of the larger one its middle as it is, a whole cell of 16 pixels below and beside its corner.
    assert np.abs(inside - large.pixels[16:, 16:80]).mean() < 3
    assert np.abs(inside - large.pixels[:48, :64]).mean() > 10, "control: another part of it"


def test_a_checkpoint_a_folder_or_a_world_may_be_named(folder: Path) -> None:
    with worldloop.load_picture(folder / "tiny-picture.safetensors") as maker:
        assert maker.host.model_id == "tiny-picture"
    with pytest.raises(InvalidInputError, match="no world 'nowhere'"):
        worldloop.load_picture("nowhere")


def test_a_folder_without_one_is_told(tmp_path: Path, one_thread: None) -> None:
    with pytest.raises(InvalidInputError, match="no picture model"):
        worldloop.load_picture(tiny_world(tmp_path / "w"))


def test_an_error_ends_nothing(maker: worldloop.PictureMaker) -> None:
    before = maker.make("a lake").pixels
    with pytest.raises(InvalidInputError, match="steps 0"):
        maker.make("a lake", steps=0)

    def stop(step: Step) -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError):
        maker.make("a lake", on_step=stop)
    assert np.array_equal(maker.make("a lake").pixels, before)
    assert maker.host.engine.sessions == 0
