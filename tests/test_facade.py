"""The verbs of other world models: shapes that never change, keys in every spelling, states that hold everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import worldloop
from worldloop import CtrlInput, WorldEngine
from worldloop.testing import tiny_world

PICTURE = np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8)
KEYS = [{"w"}, {"w", "d"}, set(), {"left"}]
CONTROLS = [CtrlInput(button=keys) for keys in KEYS]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[worldloop.World]:
    folder = tiny_world(tmp_path_factory.mktemp("tiny"))
    with worldloop.load_world(folder, dtype="fp32", threads=1) as world:
        yield world


@pytest.fixture
def engine(world: worldloop.World) -> Iterator[WorldEngine]:
    with WorldEngine(world, seed=5) as engine:
        yield engine


def generated(engine: WorldEngine) -> bytes:
    frames = [engine.gen_frame(ctrl) for ctrl in CONTROLS]
    return b"".join(each.tobytes() for each in frames if each is not None)


def test_pictures_always_have_four_axes(engine: WorldEngine) -> None:
    first = engine.append_frame(PICTURE)
    frames = engine.gen_frame(CtrlInput(button={87}))
    idle = engine.gen_frame()

    assert frames is not None
    assert idle is not None
    assert (first.shape, frames.shape, idle.shape) == ((1, 48, 64, 3), (4, 48, 64, 3), (4, 48, 64, 3))
    assert engine.frames_per_step == len(frames)
    assert engine.gen_frame(return_img=False) is None


def test_it_makes_what_a_session_makes(world: worldloop.World, engine: WorldEngine) -> None:
    engine.append_frame(PICTURE)
    with world.start(PICTURE, seed=5) as session:
        wanted = b"".join(session.step(keys).tobytes() for keys in KEYS)
    with world.start(PICTURE, seed=6) as session:
        other = b"".join(session.step(keys).tobytes() for keys in KEYS)

    assert generated(engine) == wanted
    assert wanted != other


def test_reset_begins_again_with_the_seed_or_another(engine: WorldEngine) -> None:
    engine.append_frame(PICTURE)
    once = generated(engine)
    engine.reset()
    engine.append_frame(np.stack([255 - PICTURE, PICTURE]))
    again = generated(engine)
    engine.reset(seed=6)
    engine.append_frame(PICTURE)

    assert again == once
    assert generated(engine) != once


def test_a_state_holds_everything_that_the_next_bytes_depend_on(
    world: worldloop.World, engine: WorldEngine
) -> None:
    engine.append_frame(PICTURE)
    generated(engine)
    state = engine.get_state()
    wanted = generated(engine)

    engine.load_state(state)
    again = generated(engine)
    with WorldEngine(world, seed=99) as other:
        other.load_state(state.pack())
        elsewhere = generated(other)
    engine.reset()
    engine.append_frame(PICTURE)

    assert again == elsewhere == wanted
    assert generated(engine) != wanted


def test_a_damaged_state_is_refused_and_the_session_goes_on(engine: WorldEngine) -> None:
    engine.append_frame(PICTURE)
    once = generated(engine)
    engine.reset()
    engine.append_frame(PICTURE)

    with pytest.raises(worldloop.WorldloopError):
        engine.load_state(b"not a state")

    assert generated(engine) == once


@pytest.mark.parametrize("forward", ["w", "W", "KeyW", 87])
def test_a_key_has_several_spellings(forward: str | int) -> None:
    assert CtrlInput(button={forward}).keys == {"w"}


@pytest.mark.parametrize(
    ("ctrl", "keys"),
    [
        (CtrlInput(), set()),
        (CtrlInput(button=[37, "ArrowRight", 32, "ShiftLeft"]), {"left", "right", "space", "shift"}),
        (CtrlInput(mouse=(0.2, 0.0)), {"right"}),
        (CtrlInput(button={"w"}, mouse=(-3.0, 0.0)), {"w", "left"}),
    ],
)
def test_controls_as_keys(ctrl: CtrlInput, keys: set[str]) -> None:
    assert ctrl.keys == keys


@pytest.mark.parametrize(
    ("ctrl", "says"),
    [
        (CtrlInput(button={81}), r"unknown button 81; have \['w', 'a'"),
        (CtrlInput(button={"KeyQ"}), "unknown button 'KeyQ'"),
        (CtrlInput(button={1.5}), "unknown button 1.5"),
        (CtrlInput(mouse=(0.0, 1.0)), r"mouse=\(0.0, 1.0\), scroll_wheel=0: only mouse to the right or left"),
        (CtrlInput(scroll_wheel=1), "scroll_wheel=1"),
    ],
)
def test_what_no_world_understands_is_refused(engine: WorldEngine, ctrl: CtrlInput, says: str) -> None:
    engine.append_frame(PICTURE)
    with pytest.raises(worldloop.InvalidInputError, match=says):
        engine.gen_frame(ctrl)
    assert engine.gen_frame() is not None


def test_a_prompt_is_refused_and_none_is_accepted(engine: WorldEngine) -> None:
    engine.set_prompt(None)
    engine.set_prompt("")
    with pytest.raises(worldloop.InvalidInputError, match="this world takes no prompt"):
        engine.set_prompt("a castle")


def test_verbs_in_the_wrong_order_say_what_comes_first(engine: WorldEngine) -> None:
    for too_early in (engine.gen_frame, engine.get_state):
        with pytest.raises(worldloop.NotReadyError, match="call append_frame first"):
            too_early()
    engine.append_frame(PICTURE)
    with pytest.raises(worldloop.NotReadyError, match=r"call reset\(\) first"):
        engine.append_frame(PICTURE)


def test_a_world_that_was_loaded_elsewhere_stays_open(world: worldloop.World, tmp_path: Path) -> None:
    WorldEngine(world).close()
    with WorldEngine(tiny_world(tmp_path), dtype="fp32", threads=1) as owner:
        owner.append_frame(PICTURE)
    with pytest.raises(worldloop.SessionEndedError):
        owner.append_frame(PICTURE)
    with pytest.raises(worldloop.InvalidInputError, match=r"\['threads'\] are choices of loading"):
        WorldEngine(world, threads=1)

    with world.start(PICTURE) as session:
        assert session.step().shape == (4, 48, 64, 3)
