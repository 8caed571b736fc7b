"""Fragmented MP4: every prefix plays, bytes repeat, and chunks follow each other without a gap."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.codec.fmp4 import FragmentWriter, boxes
from worldloop.codec.mp4 import read_video
from worldloop.core.errors import InvalidInputError, SettingsError

HEIGHT, WIDTH, FPS = 48, 64, 12
CHUNKS = (1, 8, 8, 3)


def grey(count: int, start: int) -> NDArray[np.uint8]:
    """Picture k of a video is of level 20 + 8 k."""
    levels = np.arange(start, start + count, dtype=np.uint8) * 8 + 20
    return np.broadcast_to(levels[:, None, None, None], (count, HEIGHT, WIDTH, 3)).copy()


def video() -> list[bytes]:
    writer = FragmentWriter(height=HEIGHT, width=WIDTH, fps=FPS)
    starts = np.cumsum((0, *CHUNKS))
    return [writer.write(grey(count, int(start))) for count, start in zip(CHUNKS, starts, strict=False)]


def times(data: bytes) -> list[float]:
    with av.open(io.BytesIO(data)) as file:
        return [float(frame.pts * frame.time_base) * FPS for frame in file.decode(video=0)]


def test_every_chunk_is_one_fragment_and_only_the_first_brings_the_header() -> None:
    kinds = [[kind for kind, _, _ in boxes(part)] for part in video()]

    assert kinds == [["ftyp", "moov", "moof", "mdat"], *[["moof", "mdat"]] * 3]


def test_the_whole_plays_in_order_without_a_gap() -> None:
    data = b"".join(video())

    pictures = list(read_video(data))

    assert [round((int(picture.mean()) - 20) / 8) for picture in pictures] == list(range(sum(CHUNKS)))
    assert times(data) == pytest.approx(range(sum(CHUNKS)))


@pytest.mark.parametrize("chunks", range(1, len(CHUNKS)))
def test_what_has_been_made_so_far_plays(chunks: int) -> None:
    assert len(list(read_video(b"".join(video()[:chunks])))) == sum(CHUNKS[:chunks])


def test_a_fragment_that_claims_the_wrong_time_is_seen() -> None:
    parts = video()
    moved = parts[2].index(b"tfdt") + 8
    parts[2] = parts[2][:moved] + b"\0" * 8 + parts[2][moved + 8 :]

    assert times(b"".join(parts)) != pytest.approx(range(sum(CHUNKS)))


def test_fragments_are_numbered() -> None:
    numbers = [part[part.index(b"mfhd") + 8 :][:4] for part in video()]

    assert [int.from_bytes(number, "big") for number in numbers] == [1, 2, 3, 4]


def test_the_same_pictures_give_the_same_bytes_and_others_do_not() -> None:
    writer = FragmentWriter(height=HEIGHT, width=WIDTH, fps=FPS)

    assert video() == video()
    assert writer.write(grey(1, 1)) != video()[0]


@pytest.mark.parametrize("shape", [(0, HEIGHT, WIDTH, 3), (HEIGHT, WIDTH, 3), (1, HEIGHT, 2 * WIDTH, 3)])
def test_what_is_no_chunk_is_refused(shape: tuple[int, ...]) -> None:
    writer = FragmentWriter(height=HEIGHT, width=WIDTH, fps=FPS)

    with pytest.raises(InvalidInputError, match=r"must be|takes"):
        writer.write(np.zeros(shape, np.uint8))
    assert writer.write(grey(1, 0)) == video()[0]


def test_sizes_and_rates_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="even"):
        FragmentWriter(height=47, width=64, fps=12)
    with pytest.raises(SettingsError, match="fps"):
        FragmentWriter(height=48, width=64, fps=0)


def test_half_a_box_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="box at byte"):
        boxes(video()[0][:-1])
