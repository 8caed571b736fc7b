"""A folder of videos with a table of actions becomes a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError, PictureError
from worldloop.trainer.recorded import RecordedWalks
from worldloop.trainer.recorder import record
from worldloop.trainer.shards import read_frames, write_lossless

COLUMNS = "video,time,forward,right,jump,sprint,yaw\n"
ROWS = "a.mkv,0,1,0,0,0,0\na.mkv,0.4,0,-1,0,0,0.5\nb.mkv,0.35,0,0,1,1,0\n"


def numbered(count: int, *, first: int = 0) -> list[NDArray[np.uint8]]:
    """Flat pictures whose red is their number."""
    frames = np.zeros((count, 32, 48, 3), np.uint8)
    frames[..., 0] = np.arange(first, first + count)[:, None, None]
    return list(frames)


def numbers(frames: NDArray[np.uint8]) -> list[int]:
    return [int(number) for number in frames[:, 0, 0, 0]]


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Two videos at 10 frames a second: a.mkv with 21 frames from 0, b.mkv with 12 from 100."""
    folder = tmp_path / "videos"
    folder.mkdir()
    write_lossless(folder / "a.mkv", numbered(21), fps=10)
    write_lossless(folder / "b.mkv", numbered(12, first=100), fps=10)
    (folder / "held.csv").write_text(COLUMNS + ROWS)
    return folder


def test_videos_are_cut_into_episodes_with_what_was_held(videos: Path, tmp_path: Path) -> None:
    card = record(videos, tmp_path / "out", license="CC-BY-4.0", steps=3)

    walks = RecordedWalks(tmp_path / "out")
    assert (card.source, card.fps, card.picture, card.episodes) == ("videos", 10, (32, 48), 3)
    assert [walks.steps(episode) for episode in range(3)] == [3, 1, 2]
    assert numbers(walks.frames(0)) == list(range(13))
    assert numbers(walks.frames(1)) == list(range(13, 18))
    assert numbers(walks.frames(2)) == list(range(100, 109))
    # Frames 1 to 4 of a.mkv were made from 0.0 to 0.4 s, frames 5 to 8 from 0.4 to 0.8 s.
    assert walks.actions(0).tolist() == [[0] * 5, [1, 0, 0, 0, 0], [0, -1, 0, 0, 0.5], [0, -1, 0, 0, 0.5]]
    assert walks.actions(1).tolist() == [[0] * 5, [0, -1, 0, 0, 0.5]]
    # Nothing was held for most of the first step of b.mkv.
    assert walks.actions(2).tolist() == [[0] * 5, [0] * 5, [0, 0, 1, 1, 0]]


def test_a_key_counts_for_most_of_a_step_and_yaw_is_the_mean(videos: Path, tmp_path: Path) -> None:
    (videos / "held.csv").write_text(
        COLUMNS + "a.mkv,0,1,0,0,0,0.9\na.mkv,0.3,0,1,0,0,0\na.mkv,0.7,0,0,0,0,0\nb.mkv,0,0,0,0,0,0\n"
    )

    record(videos, tmp_path / "out", license="CC0", steps=3)

    held = RecordedWalks(tmp_path / "out").actions(0)
    assert held[1].tolist() == pytest.approx([1, 0, 0, 0, 0.9 * 7 / 9])
    assert held[2].tolist() == [0, 1, 0, 0, 0]


def test_parquet_is_read_as_csv_is(videos: Path, tmp_path: Path) -> None:
    table = pyarrow.csv.read_csv(videos / "held.csv")
    record(videos, tmp_path / "csv", license="CC0", steps=3)
    (videos / "held.csv").unlink()
    pyarrow.parquet.write_table(table, videos / "held.parquet")

    record(videos, tmp_path / "parquet", license="CC0", steps=3)

    assert (tmp_path / "parquet" / "actions.parquet").read_bytes() == (
        tmp_path / "csv" / "actions.parquet"
    ).read_bytes()


def test_another_rate_takes_the_newest_frame_of_each_moment(videos: Path, tmp_path: Path) -> None:
    record(videos, tmp_path / "half", license="CC0", steps=2, fps=5)
    record(videos, tmp_path / "double", license="CC0", steps=2, fps=20)

    assert numbers(RecordedWalks(tmp_path / "half").frames(0)) == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert numbers(RecordedWalks(tmp_path / "double").frames(0)) == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_enough_videos_for_the_episodes_that_are_asked_for(videos: Path, tmp_path: Path) -> None:
    card = record(videos, tmp_path / "out", license="CC0", steps=3, episodes=2)

    assert (card.episodes, len(card.shards), card.complete) == (2, 1, True)
    more: list[int] = []
    card = record(
        videos, tmp_path / "out", license="CC0", steps=3, on_shard=lambda card: more.append(len(card.shards))
    )
    assert (card.episodes, more) == (3, [2])


def test_a_changed_table_is_not_mixed_with_what_was_recorded(videos: Path, tmp_path: Path) -> None:
    record(videos, tmp_path / "out", license="CC0", steps=3)
    (videos / "held.csv").write_text(COLUMNS + ROWS.replace("0.35", "0.3"))

    with pytest.raises(InvalidInputError, match="record into another folder"):
        record(videos, tmp_path / "out", license="CC0", steps=3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "video,time,forward\na.mkv,0,1\n",
            r"held.csv lacks the columns \['right', 'jump', 'sprint', 'yaw'\]",
        ),
        (COLUMNS + ROWS + "a.mkv,0.5,2,0,0,0,0\n", r"row 4: time 0.5, actions \[2.0, .*in \[-1, 1\]"),
        (COLUMNS + ROWS + "a.mkv,-1,0,0,0,0,0\n", "row 4: time -1"),
        (COLUMNS + ROWS + "a.mkv,0.4,0,0,0,0,0\n", r"two rows for video 'a.mkv' at time 0.4"),
        (COLUMNS + ROWS + "c.mkv,0,0,0,0,0,0\n", r"videos that the folder does not have: \['c.mkv'\]"),
        (COLUMNS + "a.mkv,0,1,0,0,0,0\n", "no row for video 'b.mkv'"),
        (COLUMNS + ROWS + "a.mkv,0.5,fast,0,0,0,0\n", "must be numbers"),
        ("", "cannot be read as a table"),
    ],
)
def test_a_wrong_table_is_refused_in_words(table: str, message: str, videos: Path, tmp_path: Path) -> None:
    (videos / "held.csv").write_text(table)

    with pytest.raises(InvalidInputError, match=message):
        record(videos, tmp_path / "out", license="CC0")


def test_a_wrong_folder_is_refused_in_words(videos: Path, tmp_path: Path) -> None:
    def refused(message: str, **changes: Any) -> None:
        with pytest.raises(InvalidInputError, match=message):
            record(changes.pop("source", videos), tmp_path / "out", license="CC0", **changes)

    (tmp_path / "out").mkdir()
    refused("the same folder", source=tmp_path / "out")
    refused("has no videos", source=tmp_path)
    refused("is for environments", actions=videos / "held.csv")
    write_lossless(videos / "b.mkv", numbered(12), fps=12)
    refused(r"have frame rates \[10.0, 12.0\]; give fps")
    write_lossless(videos / "b.mkv", numbered(4), fps=10)
    refused(r"'b.mkv' has fewer than 5 frames", steps=3)
    (videos / "b.mkv").write_bytes(b"\x1a\x45\xdf\xa3 no more")
    refused(r"'b.mkv' is cut short or damaged")
    (videos / "b.mkv").write_bytes(b"no video at all")
    refused(r"'b.mkv' is of no known kind")
    (videos / "again.csv").write_text("")
    refused("has 2 tables")


def test_a_shard_takes_pictures_of_one_size_and_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        write_lossless(tmp_path / "x.mkv", [], fps=10)
    with pytest.raises(InvalidInputError, match=r"takes uint8 \[32, 48, 3\]"):
        write_lossless(tmp_path / "x.mkv", [numbered(1)[0], numbered(1)[0][:16]], fps=10)
    assert list(tmp_path.iterdir()) == []


def test_noise_comes_back_bit_for_bit_from_any_frame_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = list(rng.integers(0, 256, (100, 16, 32, 3)).astype(np.uint8))

    write_lossless(tmp_path / "x.mkv", noise, fps=35)

    for first in (0, 1, 47, 48, 49, 99):
        assert np.array_equal(np.stack(list(read_frames(tmp_path / "x.mkv", first))), np.stack(noise[first:]))
    with pytest.raises(PictureError, match="ends before frame 100"):
        list(read_frames(tmp_path / "x.mkv", 100))
