"""Start pictures: every kind that is read, and every way to be refused. All files are made in memory."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageCms

from worldloop.codec.still import FILES, cover_crop, encode_picture, read_picture
from worldloop.core.errors import InvalidInputError, PictureError

Picture = NDArray[np.uint8]
RED = (200, 30, 60)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def two_colours() -> Image.Image:
    """6 wide and 4 high, left half red, right half white."""
    image = Image.new("RGB", (6, 4), (255, 255, 255))
    image.paste(RED, (0, 0, 3, 4))
    return image


def video(*, container: str, codec: str, height: int = 48, width: int = 64, frames: int = 3) -> bytes:
    """First picture red, the others black."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=12)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for index in range(frames):
            picture = np.full((height, width, 3), RED if index == 0 else (0, 0, 0), np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})]
)
def test_lossless_kinds_come_back_exactly(kind: str, options: dict[str, Any]) -> None:
    picture = read_picture(saved(two_colours(), kind, **options))

    assert picture.dtype == np.uint8
    assert np.array_equal(picture, np.asarray(two_colours()))


@pytest.mark.parametrize("kind", ["JPEG", "AVIF", "WEBP"])
def test_lossy_kinds_come_back_closely(kind: str) -> None:
    picture = read_picture(saved(Image.new("RGB", (64, 48), RED), kind, quality=90))

    assert picture.shape == (48, 64, 3)
    assert np.abs(picture.astype(int) - RED).max() <= 6


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA"])
def test_other_pixel_modes_read_as_rgb(mode: str) -> None:
    white = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)

    picture = read_picture(saved(white, "PNG"))

    assert np.array_equal(picture, np.full((4, 4, 3), 255))


def test_16_bit_grey_is_scaled_and_not_clipped() -> None:
    grey = Image.fromarray(np.full((4, 4), 128 * 257, np.uint16))

    assert np.array_equal(read_picture(saved(grey, "PNG")), np.full((4, 4, 3), 128))


def test_floating_point_pixels_are_refused() -> None:
    with pytest.raises(PictureError, match="8 or 16 bits"):
        read_picture(saved(Image.new("F", (4, 4), 0.5), "TIFF"))


def test_cmyk_reads_as_rgb() -> None:
    cyan = Image.new("CMYK", (32, 32), (255, 0, 0, 0))

    picture = read_picture(saved(cyan, "JPEG", quality=95))

    assert np.abs(picture.astype(int) - (0, 255, 255)).max() <= 8


@pytest.mark.parametrize("mode", ["RGBA", "P"])
def test_transparent_pixels_are_laid_on_white(mode: str) -> None:
    image = Image.new("RGBA", (4, 4), (*RED, 0))
    image.paste((*RED, 255), (0, 0, 2, 4))
    options = {"transparency": image.convert("P").getpixel((3, 0))} if mode == "P" else {}

    picture = read_picture(saved(image.convert(mode), "PNG", **options))

    assert np.array_equal(picture[:, 2:], np.full((4, 2, 3), 255))
    assert np.abs(picture[:, :2].astype(int) - RED).max() <= 26  # the palette's nearest colour


def test_half_transparent_pixels_are_mixed_with_white() -> None:
    picture = read_picture(saved(Image.new("RGBA", (2, 2), (0, 0, 0, 128)), "PNG"))

    assert np.abs(picture.astype(int) - 127).max() <= 1


def test_exif_rotation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright: turn clockwise

    picture = read_picture(saved(two_colours(), "PNG", exif=exif))

    assert picture.shape == (6, 4, 3)
    assert np.array_equal(picture, np.rot90(np.asarray(two_colours()), -1))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_picture_counts(kind: str) -> None:
    later = [Image.new("RGB", (8, 8), (0, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))]
    data = saved(Image.new("RGB", (8, 8), RED), kind, save_all=True, append_images=later, lossless=True)

    assert np.abs(read_picture(data).astype(int) - RED).max() <= 2


def test_a_colour_profile_is_converted_to_srgb() -> None:
    lab_red = ImageCms.profileToProfile(
        Image.new("RGB", (4, 4), RED), ImageCms.createProfile("sRGB"), swapped_profile(), outputMode="RGB"
    )
    assert lab_red is not None
    stored = np.asarray(lab_red)
    data = saved(lab_red, "PNG", icc_profile=swapped_profile().tobytes())

    picture = read_picture(data)

    assert np.abs(stored.astype(int) - RED).max() > 20
    assert np.abs(picture.astype(int) - RED).max() <= 2


def swapped_profile() -> ImageCms.ImageCmsProfile:
    """sRGB with the red and green primaries exchanged: well-formed, and wrong to ignore."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, green = data.index(b"rXYZ", 128), data.index(b"gXYZ", 128)
    data[red : red + 4], data[green : green + 4] = b"gXYZ", b"rXYZ"
    return ImageCms.ImageCmsProfile(io.BytesIO(bytes(data)))


def test_a_broken_colour_profile_is_ignored() -> None:
    data = saved(two_colours(), "PNG", icc_profile=b"not a profile" * 20)

    assert np.array_equal(read_picture(data), np.asarray(two_colours()))


@pytest.mark.parametrize(
    ("container", "codec"),
    [("mp4", "libx264"), ("mov", "libx264"), ("matroska", "libx264"), ("webm", "libvpx"), ("avi", "mpeg4")],
)
def test_of_a_video_the_first_picture_counts(container: str, codec: str) -> None:
    picture = read_picture(video(container=container, codec=codec), filename="picture.png")

    assert picture.shape == (48, 64, 3)
    assert np.abs(picture.mean(axis=(0, 1)) - RED).max() <= 8


def test_a_video_with_larger_pictures_is_refused() -> None:
    with pytest.raises(PictureError, match="64x48; at most 1000 pixels"):
        read_picture(video(container="mp4", codec="libx264"), max_pixels=1000)


def test_a_video_without_pictures_is_refused() -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as file:
        stream: Any = file.add_stream("pcm_s16le", rate=8000)
        stream.layout = "mono"
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.sample_rate = 8000
        file.mux(stream.encode(sound))
        file.mux(stream.encode(None))

    with pytest.raises(PictureError, match="no video in it"):
        read_picture(buffer.getvalue())


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("side", [7_000, 10_000, 60_000])
def test_pictures_that_claim_too_many_pixels_are_refused_undecoded(side: int) -> None:
    with pytest.raises(PictureError, match="are allowed"):
        read_picture(bomb(side, side))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"hello, this is text", "no known kind"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no known kind"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no known kind"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/secret\n", "no known kind"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "no known kind"),
        (b"\x00\x00\x00\x20ftypisom" + bytes(40), "cut short or damaged"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(PictureError, match=reason):
        read_picture(data)


def test_a_file_with_too_many_bytes_is_refused() -> None:
    with pytest.raises(PictureError, match="101 bytes; at most 100"):
        read_picture(bytes(101), max_bytes=100)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "AVIF", "TIFF"])
def test_a_picture_that_is_cut_short_is_refused(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8).astype(np.uint8))
    data = saved(noise, kind)

    with pytest.raises(PictureError, match=r"cut short|damaged|no known kind"):
        read_picture(data[: len(data) * 2 // 3])


def test_the_message_names_the_file_and_nothing_else_of_its_path() -> None:
    with pytest.raises(PictureError, match=r"^picture 'cat\.png' is of no known kind"):
        read_picture(b"?", filename="/private/stuff\\more/cat\n.png")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "BMP", "mp4", "matroska"]), st.data())
def test_damaged_bytes_never_fail_in_another_way(kind: str, draw: st.DataObject) -> None:
    data = bytearray(SAMPLES[kind])
    places = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=20)
    for place, value in draw.draw(places):
        data[place] = value

    try:
        picture = read_picture(bytes(data), max_pixels=100_000)
    except PictureError:
        return
    assert picture.dtype == np.uint8
    assert picture.ndim == 3


SAMPLES = {kind: saved(two_colours(), kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")} | {
    "mp4": video(container="mp4", codec="libx264"),
    "matroska": video(container="matroska", codec="libx264"),
}


def test_a_picture_of_the_right_size_is_copied_unchanged(tile_art: Picture) -> None:
    cropped = cover_crop(tile_art, height=96, width=160)

    assert np.array_equal(cropped, tile_art)
    assert not np.shares_memory(cropped, tile_art)


@pytest.mark.parametrize(("height", "width"), [(40, 400), (400, 40), (100, 100), (7, 5)])
def test_the_centre_is_kept_and_nothing_is_stretched(height: int, width: int) -> None:
    rows, columns = np.mgrid[:height, :width] + 0.5
    side = min(height, width)
    disc = (rows - height / 2) ** 2 + (columns - width / 2) ** 2 < (side * 0.4) ** 2
    picture = np.where(disc[..., None], 255, 0).astype(np.uint8).repeat(3, axis=2)

    cropped = cover_crop(picture, height=64, width=64)

    inside = cropped[..., 0] > 127
    assert cropped.shape == (64, 64, 3)
    assert abs(int(inside.any(0).sum()) - int(inside.any(1).sum())) <= (2 if side > 10 else 8)
    assert abs(np.mean(np.nonzero(inside)[0]) - 31.5) < 1
    assert abs(np.mean(np.nonzero(inside)[1]) - 31.5) < 1


def test_a_hostile_shape_is_cut_before_it_is_scaled() -> None:
    line = np.full((1, 2_000_000, 3), 77, np.uint8)

    assert np.array_equal(cover_crop(line, height=384, width=672), np.full((384, 672, 3), 77))


@pytest.mark.parametrize(
    "act", [lambda p: cover_crop(p, height=4, width=4), lambda p: encode_picture(p, "png")]
)
def test_what_is_no_rgb_array_is_refused(act: Callable[[Picture], object]) -> None:
    with pytest.raises(InvalidInputError, match=r"must be uint8 \[H, W, 3\]"):
        act(np.zeros((4, 4), np.uint8))


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_each_kind_holds_the_picture_and_the_same_bytes_each_time(
    tile_art: Picture, kind: str
) -> None:
    data = encode_picture(tile_art, kind)
    back = read_picture(data)

    assert data == encode_picture(tile_art.copy(), kind)
    assert Image.open(io.BytesIO(data)).format == kind.upper()
    assert np.abs(back.astype(int) - tile_art).mean() < 3
    assert np.array_equal(back, tile_art) == (kind != "jpeg")


def test_a_png_says_nothing_but_its_pixels(tile_art: Picture) -> None:
    assert Image.open(io.BytesIO(encode_picture(tile_art, "png"))).info == {}


def test_what_a_file_cannot_hold_is_refused(tile_art: Picture) -> None:
    with pytest.raises(InvalidInputError, match="'bmp' must be one of png, jpeg, webp"):
        encode_picture(tile_art, "bmp")
    with pytest.raises(InvalidInputError, match="a webp file cannot hold"):
        encode_picture(np.zeros((1, 16_384, 3), np.uint8), "webp")
    with pytest.raises(InvalidInputError, match="must be uint8"):
        encode_picture(np.zeros((4, 4), np.uint8), "jpeg")
