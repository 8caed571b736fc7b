"""The live stream: one unit a picture, joinable, with the right colours."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.codec.h264 import AccessUnit, H264Decoder, H264Encoder
from worldloop.core.errors import InvalidInputError, SessionEndedError, SettingsError

Picture = NDArray[np.uint8]
SEQUENCE_PARAMETERS = b"\x00\x00\x01\x67"
BASELINE = 66
"""Profile, the byte after it."""


def unit_kinds(unit: AccessUnit) -> list[int]:
    """NAL unit types in order, found by their Annex-B start codes."""
    return [unit.data[match.end()] & 0x1F for match in re.finditer(b"\x00\x00\x01", unit.data)]


def enlarged(picture: Picture, scale: int) -> Picture:
    return picture.repeat(scale, 0).repeat(scale, 1)


def moving(picture: Picture, count: int) -> list[Picture]:
    return [np.roll(picture, 2 * step, axis=1) for step in range(count)]


def test_every_picture_gives_one_unit_and_comes_back_at_once(tile_art: Picture) -> None:
    encoder, decoder = H264Encoder(height=96, width=160), H264Decoder()

    counts = [len(decoder.decode(encoder.encode(picture).data)) for picture in moving(tile_art, 30)]

    assert counts == [1] * 30
    assert decoder.flush() == []


def test_key_frames_come_first_and_every_gop(tile_art: Picture) -> None:
    encoder = H264Encoder(height=96, width=160, gop=7)

    keys = [encoder.encode(picture).key for picture in moving(tile_art, 15)]

    assert [index for index, key in enumerate(keys) if key] == [0, 7, 14]


def test_a_key_frame_can_be_asked_for_and_a_new_decoder_joins_there(
    tile_art: Picture, psnr: Callable[[Picture, Picture], float]
) -> None:
    encoder = H264Encoder(height=96, width=160, scale=2)
    pictures = moving(tile_art, 5)
    units = [encoder.encode(picture, key=index == 3) for index, picture in enumerate(pictures)]

    late = H264Decoder()
    joined = late.decode(units[3].data) + late.decode(units[4].data)

    assert [unit.key for unit in units] == [True, False, False, True, False]
    assert psnr(joined[0], enlarged(pictures[3], 2)) > 34
    assert psnr(joined[1], enlarged(pictures[4], 2)) > 34


def test_units_are_annex_b_with_parameter_sets_before_every_key_frame(tile_art: Picture) -> None:
    encoder = H264Encoder(height=96, width=160, gop=2)

    units = [encoder.encode(picture) for picture in moving(tile_art, 4)]

    assert all(unit.data.startswith((b"\x00\x00\x00\x01", b"\x00\x00\x01")) for unit in units)
    for unit in units:
        pictures = [kind for kind in unit_kinds(unit) if kind in (1, 5)]
        assert pictures == ([5] if unit.key else [1])
        assert ({7, 8} <= set(unit_kinds(unit))) == unit.key


def test_the_stream_is_baseline(tile_art: Picture) -> None:
    encoder = H264Encoder(height=96, width=160)

    data = encoder.encode(tile_art).data

    assert data[data.index(SEQUENCE_PARAMETERS) + len(SEQUENCE_PARAMETERS)] == BASELINE


def test_flat_colours_come_back_within_two_levels(colours: Picture) -> None:
    coded = H264Encoder(height=96, width=160).encode(colours)

    (decoded,) = H264Decoder().decode(coded.data)

    inside = (slice(None), slice(8, -8), slice(None), slice(8, -8))
    fields = decoded.astype(int) - colours
    assert np.abs(fields.reshape(2, 48, 4, 40, 3)[inside]).max() <= 2


def test_a_gradient_keeps_45_db(gradient: Picture, psnr: Callable[[Picture, Picture], float]) -> None:
    coded = H264Encoder(height=96, width=160).encode(gradient)

    (decoded,) = H264Decoder().decode(coded.data)

    assert psnr(decoded, gradient) >= 45


@pytest.mark.parametrize("options", [{}, {"crf": 18.0}])
def test_tile_art_at_twice_the_size_keeps_34_db_where_plain_size_cannot(
    options: dict[str, float], tile_art: Picture, psnr: Callable[[Picture, Picture], float]
) -> None:
    quality: dict[int, float] = {}
    for scale in (1, 2):
        encoder = H264Encoder(height=96, width=160, scale=scale, **options)  # type: ignore[arg-type]
        decoder = H264Decoder()
        for picture in moving(tile_art, 12):
            (decoded,) = decoder.decode(encoder.encode(picture).data)
            quality[scale] = min(quality.get(scale, 99.0), psnr(decoded, enlarged(picture, scale)))

    assert quality[1] < 34 <= quality[2]


def test_the_size_of_the_stream_is_stated() -> None:
    encoder = H264Encoder(height=15, width=17, scale=2)

    (decoded,) = H264Decoder().decode(encoder.encode(np.zeros((15, 17, 3), np.uint8)).data)

    assert encoder.size == decoded.shape[:2] == (30, 34)


def test_equal_pictures_give_equal_bytes(tile_art: Picture) -> None:
    one, other = H264Encoder(height=96, width=160), H264Encoder(height=96, width=160)

    assert [one.encode(p) for p in moving(tile_art, 4)] == [other.encode(p) for p in moving(tile_art, 4)]


def test_the_callers_picture_is_not_changed_and_may_be_read_only(tile_art: Picture) -> None:
    picture = tile_art.copy()
    picture.flags.writeable = False

    H264Encoder(height=96, width=160).encode(picture)

    assert np.array_equal(picture, tile_art)


@pytest.mark.parametrize(("height", "width"), [(95, 160), (96, 161), (0, 160)])
def test_sizes_that_420_cannot_hold_are_refused(height: int, width: int) -> None:
    with pytest.raises(InvalidInputError, match=f"{width}x{height}"):
        H264Encoder(height=height, width=width)


@pytest.mark.parametrize(
    "picture",
    [np.zeros((160, 96, 3), np.uint8), np.zeros((96, 160, 4), np.uint8), np.zeros((96, 160, 3), np.float32)],
)
def test_another_shape_or_type_is_refused_and_the_stream_goes_on(picture: Picture, tile_art: Picture) -> None:
    encoder = H264Encoder(height=96, width=160)

    with pytest.raises(InvalidInputError, match=r"takes uint8 \[96, 160, 3\]"):
        encoder.encode(picture)

    assert encoder.encode(tile_art).key


@pytest.mark.parametrize(
    ("setting", "value"), [("fps", 0.0), ("bitrate", 0), ("gop", 0), ("encoder", "mpeg2video"), ("crf", 60.0)]
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: float | str) -> None:
    with pytest.raises(SettingsError, match=setting):
        H264Encoder(height=96, width=160, **{setting: value})  # type: ignore[arg-type]


def test_a_closed_encoder_says_so(tile_art: Picture) -> None:
    with H264Encoder(height=96, width=160) as encoder:
        encoder.encode(tile_art)
    encoder.close()

    with pytest.raises(SessionEndedError, match="closed"):
        encoder.encode(tile_art)


def test_bytes_that_are_no_unit_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="starts at a key frame"):
        H264Decoder().decode(b"\x00\x00\x00\x01\x65not a picture at all")
