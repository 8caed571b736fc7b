"""Video files: what is written is read back, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.codec.mp4 import read_video, video_container, write_mp4
from worldloop.core.errors import InvalidInputError, PictureError, SettingsError

Picture = NDArray[np.uint8]


@pytest.fixture
def clip(tile_art: Picture) -> list[Picture]:
    return [np.roll(tile_art, 4 * step, axis=1) for step in range(10)]


def test_pictures_come_back_in_order(
    clip: list[Picture], tmp_path: Path, psnr: Callable[[Picture, Picture], float]
) -> None:
    count = write_mp4(tmp_path / "clip.mp4", clip, fps=12, crf=12, scale=2)

    pictures = list(read_video(tmp_path / "clip.mp4"))

    assert count == len(pictures) == 10
    for picture, original in zip(pictures, clip, strict=True):
        assert psnr(picture, original.repeat(2, 0).repeat(2, 1)) >= 34


def test_rate_size_and_colour_are_written_into_the_file(clip: list[Picture], tmp_path: Path) -> None:
    write_mp4(tmp_path / "clip.mp4", clip, fps=12.5)

    with av.open(tmp_path / "clip.mp4") as file:
        stream = file.streams.video[0]
        assert float(stream.average_rate or 0) == 12.5
        assert (stream.height, stream.width) == (96, 160)
        assert (stream.codec_context.colorspace, stream.codec_context.color_range) == (6, 1)
    data = (tmp_path / "clip.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_bytes_are_read_as_a_file_is(clip: list[Picture], tmp_path: Path) -> None:
    write_mp4(tmp_path / "clip.mp4", clip, fps=12)

    pictures = list(read_video((tmp_path / "clip.mp4").read_bytes()))

    assert np.array_equal(pictures, list(read_video(tmp_path / "clip.mp4")))


def test_a_broken_source_leaves_neither_a_file_nor_a_part(clip: list[Picture], tmp_path: Path) -> None:
    def breaks() -> Iterator[Picture]:
        yield clip[0]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_mp4(tmp_path / "clip.mp4", breaks(), fps=12)

    assert list(tmp_path.iterdir()) == []


def test_no_picture_or_a_changing_size_is_refused(clip: list[Picture], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        write_mp4(tmp_path / "clip.mp4", [], fps=12)
    with pytest.raises(InvalidInputError, match=r"takes uint8 \[96, 160, 3\]"):
        write_mp4(tmp_path / "clip.mp4", [clip[0], clip[1][:48]], fps=12)


@pytest.mark.parametrize("settings", [{"fps": 0.0}, {"fps": 12.0, "crf": 99.0}])
def test_settings_out_of_range_are_refused(
    settings: dict[str, float], clip: list[Picture], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError):
        write_mp4(tmp_path / "clip.mp4", clip, **settings)  # type: ignore[arg-type]


def test_what_is_no_video_is_refused() -> None:
    with pytest.raises(PictureError, match="no known kind"):
        list(read_video(b"#EXTM3U\nfile:///etc/hostname\n"))


def test_a_file_that_is_cut_short_is_refused(clip: list[Picture], tmp_path: Path) -> None:
    write_mp4(tmp_path / "clip.mp4", clip, fps=12)
    data = (tmp_path / "clip.mp4").read_bytes()

    with pytest.raises(PictureError, match="cut short or damaged"):
        list(read_video(data[: len(data) // 2]))


@pytest.mark.parametrize(
    ("head", "container"),
    [
        (b"\x00\x00\x00\x20ftypisom", "mov"),
        (b"\x00\x00\x00\x14ftypqt  ", "mov"),
        (b"\x1a\x45\xdf\xa3\x01\x00\x00\x00", "matroska"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", "avi"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", None),
        (b"\x00\x00\x00\x1cftypavif", None),
        (b"\x89PNG\r\n\x1a\n", None),
        (b"", None),
    ],
)
def test_containers_are_told_by_content(head: bytes, container: str | None) -> None:
    assert video_container(head) == container
