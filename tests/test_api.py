"""What a Python user holds: worlds by path, sessions by picture, bytes that can be made again."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import worldloop
from worldloop.engine.contract import Frames
from worldloop.loops.focus import region
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.testing import ScriptedPlayer, play, tiny_world

PICTURE = np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8)
KEYS: list[set[str]] = [{"w"}, {"w", "d"}, set(), {"left"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_world(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[worldloop.World]:
    with worldloop.load_world(folder, dtype="fp32", threads=1) as world:
        yield world


def played(world: worldloop.World, picture: object = PICTURE, **choices: object) -> list[Frames]:
    with world.start(picture, **choices) as session:  # type: ignore[arg-type]
        return [session.first, *(session.step(keys) for keys in KEYS)]


def joined(frames: list[Frames]) -> bytes:
    return b"".join(each.tobytes() for each in frames)


def png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def test_a_session_gives_the_start_picture_then_four_pictures_a_step(world: worldloop.World) -> None:
    with world.start(PICTURE) as session:
        first, step = session.first, session.step({"w"})
        made = session.frames_made

    assert world.picture_size == (48, 64)
    assert (first.shape, step.shape, made) == ((1, 48, 64, 3), (4, 48, 64, 3), 1)
    assert first.dtype == step.dtype == np.uint8
    assert step.std() > 10


def test_the_same_picture_seed_and_keys_give_the_same_bytes(folder: Path, world: worldloop.World) -> None:
    once = joined(played(world, seed=5))
    with worldloop.load_world(folder, dtype="fp32", threads=1) as fresh:
        again = joined(played(fresh, seed=5))

    assert once == again
    assert once != joined(played(world, seed=6))
    assert once != joined(played(world, 255 - PICTURE, seed=5))


def test_the_engine_adds_nothing_to_what_the_loop_makes(world: worldloop.World) -> None:
    host = world._host
    latent = host.encode(PICTURE).value
    focus = region(host.model, None)
    player = ScriptedPlayer.of(*KEYS)

    alone = play(WorldLoop(host.model), WorldRequest(latent=latent, seed=5, focus=focus), player, len(KEYS))

    assert joined(played(world, seed=5)) == b"".join(emit.frames.tobytes() for emit in alone)


def test_two_sessions_side_by_side_do_not_touch_each_other(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=1) as one, world.start(PICTURE, seed=2) as two:
        steps = [(one.step(keys), two.step(keys)) for keys in KEYS]
        sides = [
            joined([session.first, *step])
            for session, step in zip((one, two), zip(*steps, strict=True), strict=True)
        ]

    assert sides == [joined(played(world, seed=1)), joined(played(world, seed=2))]


def test_a_picture_may_be_an_array_bytes_or_a_file(world: worldloop.World, tmp_path: Path) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(png(PICTURE))

    wanted = joined(played(world))

    assert {joined(played(world, picture)) for picture in (png(PICTURE), file, str(file))} == {wanted}


def test_a_picture_of_another_size_covers_the_world_from_its_middle(world: worldloop.World) -> None:
    wide = np.concatenate((PICTURE[:, :16], PICTURE, PICTURE[:, -16:]), axis=1)

    assert joined(played(world, wide)) == joined(played(world))


def test_shipped_pictures_are_found_by_name(folder: Path, tmp_path: Path) -> None:
    named = tmp_path / "meadow"
    tiny_world(named)
    with worldloop.load_world(named, dtype="fp32", threads=1) as world:
        names = world.pictures()
        assert "crossroads" in names
        assert played(world, "crossroads")[0].std() > 10


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        ("no-such", "no picture 'no-such': give a file, or one of"),
        (Path("no-such.png"), "no picture 'no-such.png'"),
        (np.zeros((4, 4, 3), np.float32), r"uint8 \[H, W, 3\]; got float32 \(4, 4, 3\)"),
        (np.zeros((4, 4), np.uint8), r"got uint8 \(4, 4\)"),
        (None, "a file, its bytes, a name or uint8"),
    ],
    ids=["name", "file", "float", "grey", "none"],
)
def test_what_is_no_picture_is_refused(picture: object, says: str, world: worldloop.World) -> None:
    with pytest.raises(worldloop.InvalidInputError, match=says):
        world.start(picture)  # type: ignore[arg-type]


def test_bytes_that_are_no_picture_are_refused(world: worldloop.World) -> None:
    with pytest.raises(worldloop.PictureError):
        world.start(b"not a picture")


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"nfe": 99}, "nfe=99"),
        ({"nfe": 0}, "nfe=0 must be an integer in 1..32"),
        ({"nfe": "3"}, "nfe='3' must be an integer"),
        ({"fps": float("nan")}, "fps=nan must be a number in"),
        ({"fps": "35"}, "fps='35' must be"),
        ({"fps": 0}, "fps=0 must be"),
        ({"fps": 121}, "fps=121 must be"),
        ({"sphere": "round"}, "sphere='round'"),
        ({"reprefill_every": -2}, "reprefill_every=-2"),
    ],
)
def test_a_choice_out_of_range_is_refused(
    choices: dict[str, object], says: str, world: worldloop.World
) -> None:
    with pytest.raises(worldloop.InvalidInputError, match=says):
        world.start(PICTURE, **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"batching": "quick"}, "batching='quick': Input should be 'exact' or 'fast'"),
        ({"on_table_end": "halt"}, "on_table_end='halt': Input should be 'reprefill' or 'stop'"),
        ({"rewind_s": -1}, "rewind_s=-1: Input should be greater than or equal to 0"),
        ({"load_limit": float("nan")}, "load_limit=nan: Input should be a finite number"),
        ({"threads": -1}, "threads=-1: Input should be greater"),
        ({"threads": "2"}, "threads='2': Input should be a valid integer"),
        ({"warmup": 1}, "warmup=1: Input should be a valid boolean"),
        ({"device": "gpu"}, "device='gpu': "),
        ({"dtype": "fp64"}, "dtype='fp64': "),
    ],
)
def test_a_choice_of_a_world_is_refused_before_it_is_loaded(choices: dict[str, object], says: str) -> None:
    with pytest.raises(worldloop.InvalidInputError, match=says):
        worldloop.load_world("there is no such world", **choices)


def test_a_seed_may_be_numpys_and_an_answer_asked_for_twice(world: worldloop.World) -> None:
    with world.start(PICTURE, seed=np.int64(0)) as session:
        wait = session.submit({"w"})
        assert joined([session.first, wait()]) == joined([session.first, wait()]) == joined(played(world)[:2])
        assert session.frames_made == 1


def test_an_unknown_key_is_refused_and_the_session_goes_on(world: worldloop.World) -> None:
    with world.start(PICTURE) as session:
        with pytest.raises(worldloop.InvalidInputError, match=r"unknown keys \['jump'\]; have \['w', 'a'"):
            session.step({"w", "jump"})
        frames = session.step({"w"})

    assert joined([session.first, frames]) == joined(played(world)[:2])


def test_choices_of_a_session_change_it(world: worldloop.World) -> None:
    worlds = [
        joined(played(world, **choices))
        for choices in (
            {},
            {"nfe": 4},
            {"nfe": 4, "nfe_mode": "grid"},
            {"sphere": "all"},
            {"fps": None},
        )
    ]

    assert len(set(worlds)) == len(worlds)


def test_a_session_that_is_over_says_so(folder: Path) -> None:
    world = worldloop.load_world(folder, dtype="fp32", threads=1)
    session, other = world.start(PICTURE), world.start(PICTURE)
    session.close()
    session.close()
    with pytest.raises(worldloop.SessionEndedError, match="the session was closed"):
        session.step()
    world.close()
    with pytest.raises(worldloop.SessionEndedError):
        other.step()
    other.close()
    world.close()


def test_a_world_by_the_path_of_its_checkpoint(folder: Path, world: worldloop.World) -> None:
    with worldloop.load_world(folder / "tiny-3r.safetensors", dtype="fp32", threads=1) as same:
        assert joined(played(same)) == joined(played(world))


def test_a_folder_without_a_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(worldloop.CheckpointError, match="holds no autoencoder"):
        worldloop.load_world(tmp_path)
    with pytest.raises(worldloop.InvalidInputError, match="no world 'atlantis'"):
        worldloop.load_world("atlantis")


def test_the_public_names_are_sorted_and_there() -> None:
    assert worldloop.__all__ == sorted(worldloop.__all__)
    assert all(getattr(worldloop, name) is not None for name in worldloop.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = worldloop.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("sphere", ["off", "decode", "all"])
def test_the_newest_pictures_can_be_had_once_more(world: worldloop.World, sphere: str) -> None:
    with world.start(PICTURE, seed=5, sphere=sphere) as session:
        pairs = [(session.first, session.pictures())]
        pairs += [(session.step(keys), session.pictures()) for keys in KEYS]
        with session.fork() as fork:
            pairs.append((pairs[-1][0], fork.pictures()))

    assert all(np.array_equal(shown, again) for shown, again in pairs)
    assert len({again.tobytes() for _, again in pairs}) == 1 + len(KEYS)
