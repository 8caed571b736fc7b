"""`worldloop replay`: a tape played again as the same bytes, as a video, as training data."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import worldloop
from worldloop.cli import app
from worldloop.core.types import Controls
from worldloop.engine.contract import Frames
from worldloop.loops.tape import Tape
from worldloop.testing import tiny_world
from worldloop.trainer.card import Card
from worldloop.trainer.shards import read_frames
from worldloop.trainer.table import TABLE, read_table

PICTURE = np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8)
KEYS: list[set[str]] = [{"w"}, {"w", "d"}, set(), {"left"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_world(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Frames]]:
    """A tape's file and the pictures that were played."""
    file = tmp_path_factory.mktemp("tapes") / "walk.tape"
    with (
        worldloop.load_world(folder, dtype="fp32", threads=1) as world,
        world.start(PICTURE, seed=5) as session,
    ):
        frames = [session.first, *(session.step(keys) for keys in KEYS)]
        session.tape().save(file)
    return file, frames


def replay(folder: Path, *arguments: object) -> Result:
    words = ["replay", "--world", str(folder), "--dtype", "fp32", "--threads", "1", *map(str, arguments)]
    return CliRunner().invoke(app, words)


def test_it_makes_the_same_bytes(folder: Path, made: tuple[Path, list[Frames]]) -> None:
    answer = replay(folder, made[0], "--check")

    assert (answer.exit_code, answer.stdout) == (0, "17 pictures, the same bytes as played\n")


def test_other_bytes_fail_the_check(folder: Path, made: tuple[Path, list[Frames]], tmp_path: Path) -> None:
    tape, other = Tape.load(made[0]), tmp_path / "other.tape"
    Tape(start=tape.start, controls=(*tape.controls[:-1], Controls()), sha256=tape.sha256).save(other)

    answer = replay(folder, other, "--check")

    assert (answer.exit_code, answer.stdout) == (1, "17 pictures, not the same bytes as played\n")
    assert replay(folder, other).exit_code == 0


def test_it_writes_a_video(folder: Path, made: tuple[Path, list[Frames]], tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"

    answer = replay(folder, made[0], "--out", clip, "--nfe", 4)

    assert (answer.exit_code, answer.stdout) == (0, "17 pictures\n")
    with av.open(clip) as file:
        pictures = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        rate = file.streams.video[0].average_rate
    assert (len(pictures), pictures[0].shape, rate) == (17, (48, 64, 3), 12)
    assert np.abs(pictures[0].astype(int) - made[1][0][0]).mean() < 30


def test_it_writes_training_data(folder: Path, made: tuple[Path, list[Frames]], tmp_path: Path) -> None:
    out = tmp_path / "recording"

    answer = replay(folder, made[0], "--shard", out, "--license", "CC0-1.0")

    assert answer.exit_code == 0, answer.stderr
    card, rows = Card.read(out), read_table(out / TABLE)
    assert (card.complete, card.episodes, card.steps, card.frames, card.fps) == (True, 1, 4, 17, 12)
    assert (card.license, card.picture) == ("CC0-1.0", (48, 64))
    assert (np.concatenate(made[1]) == np.stack(list(read_frames(out / card.shards[0].file)))).all()
    nothing = (0.0, 0.0, 0.0, 0.0, 0.0)
    assert [row.action for row in rows] == [
        nothing, (1, 0, 0, 0, 0), (1, 1, 0, 0, 0), nothing, (0, 0, 0, 0, -1),
    ]  # fmt: skip


def test_a_game_from_the_middle_is_training_data_too(folder: Path, tmp_path: Path) -> None:
    with worldloop.load_world(folder, dtype="fp32", threads=1) as world:
        with world.start(PICTURE) as session:
            session.step({"w"})
            moment = session.snapshot()
        with world.restore(moment, fps=None) as session:
            frames = [session.step({"w"}) for _ in range(3)]
            card = world.export(session.tape(), tmp_path, license="CC0-1.0")

    assert (card.episodes, card.steps, card.frames) == (1, 2, 9)
    wanted = np.concatenate([frames[0][-1:], *frames[1:]])
    assert (wanted == np.stack(list(read_frames(tmp_path / card.shards[0].file)))).all()
    assert {row.action for row in read_table(tmp_path / TABLE)} == {(0.0, 0.0, 0.0, 0.0, 0.0)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such.tape"], "no-such.tape cannot be read: No such file"),
        ([__file__], "the file is damaged, or of another kind: a worldloop snapshot or tape is needed"),
        (["{tape}", "--nfe", 4, "--check"], "--check and --nfe exclude each other"),
        (["{tape}", "--nfe", 4, "--shard", "x"], "--shard and --nfe exclude each other"),
        (["{tape}", "--nfe", 99], "nfe=99"),
        (["{tape}", "--shard", "x"], "--shard needs --license"),
        (["{tape}", "--out", "no/such/a.mp4"], "a.mp4 cannot be written: there is no folder 'no/such'"),
        (["{tape}", "--out", "."], "cannot be written: it is a folder"),
        (["{tape}", "--threads", -1], "threads=-1: Input should be greater than or equal to 0"),
        (["{tape}", "--world", "meadow"], "tiny-3r"),
    ],
)
def test_what_does_not_fit_is_one_line(
    arguments: list[object], says: str, folder: Path, made: tuple[Path, list[Frames]]
) -> None:
    answer = replay(folder, *(str(word).format(tape=made[0]) for word in arguments))

    assert answer.exit_code == 2
    assert says in answer.stderr
    assert answer.stderr.count("\n") == 1
