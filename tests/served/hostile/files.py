"""Odd, damaged and hostile files, made in memory.

Owns writing them: pictures by Pillow where it can, by hand where it won't. Knows nothing of servers.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

Picture = NDArray[np.uint8]

RED, GREEN, BLUE, SAND = (210, 40, 30), (30, 170, 60), (40, 60, 200), (230, 200, 120)
ROWS, COLUMNS = 48, 64


def quarters(rows: int = ROWS, columns: int = COLUMNS) -> Picture:
    """Red and green above blue and sand, as uint8 `[rows, columns, 3]`: every turn and mirror image shows."""
    picture = np.empty((rows, columns, 3), np.uint8)
    picture[: rows // 2, : columns // 2], picture[: rows // 2, columns // 2 :] = RED, GREEN
    picture[rows // 2 :, : columns // 2], picture[rows // 2 :, columns // 2 :] = BLUE, SAND
    return picture


def grey(picture: Picture) -> Picture:
    """The same in Pillow's grey, three times."""
    return np.asarray(Image.fromarray(picture).convert("L").convert("RGB"))


def image(picture: Picture | None = None) -> Image.Image:
    return Image.fromarray(quarters() if picture is None else picture)


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, **options)
    return buffer.getvalue()


def turned(kind: str, orientation: int, **options: Any) -> bytes:
    """The quarters, stored so that this EXIF orientation shows them upright."""
    stored = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned_image = image().transpose(stored[orientation]) if orientation in stored else image()
    return saved(turned_image, kind, exif=exif, **options)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(
    samples: NDArray[Any],
    *,
    colour_type: int,
    depth: int = 8,
    size: tuple[int, int] | None = None,
    extra: Sequence[bytes] = (),
) -> bytes:
    """A PNG by hand. `samples` `[H, W, C]`, 8 or 16 bits; `size` (width, height) may claim another size."""
    rows, columns = samples.shape[:2]
    stored = samples.astype(">u2") if depth == 16 else samples.astype(np.uint8)
    lines = b"".join(b"\x00" + stored[row].tobytes() for row in range(rows))
    width, height = size or (columns, rows)
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    body = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def deep(picture: Picture) -> NDArray[np.uint16]:
    """8 bits as 16: 255 becomes 65535."""
    return picture.astype(np.uint16) * 257


def with_alpha(samples: NDArray[Any], value: int) -> NDArray[Any]:
    return np.concatenate([samples, np.full_like(samples[..., :1], value)], axis=2)


def palette(picture: Picture | None = None) -> Image.Image:
    return image(picture).quantize(colors=4, dither=Image.Dither.NONE)


def swapped_profile() -> ImageCms.ImageCmsProfile:
    """sRGB with the red and green primaries exchanged: well-formed, and wrong to ignore."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, green = data.index(b"rXYZ", 128), data.index(b"gXYZ", 128)
    data[red : red + 4], data[green : green + 4] = b"gXYZ", b"rXYZ"
    return ImageCms.ImageCmsProfile(io.BytesIO(bytes(data)))


def in_profile(kind: str, profile: ImageCms.ImageCmsProfile, **options: Any) -> bytes:
    """The quarters in another colour space, with the profile that says so."""
    stored = ImageCms.profileToProfile(image(), ImageCms.createProfile("sRGB"), profile, outputMode="RGB")
    assert stored is not None
    return saved(stored, kind, icc_profile=profile.tobytes(), **options)


def video(
    container: str = "mp4",
    codec: str = "libx264",
    *,
    frames: int = 4,
    pixels: str = "yuv420p",
    picture: Picture | None = None,
    turn: int = 0,
) -> bytes:
    """The quarters, then black. `turn` is stored beside the pictures, in degrees clockwise."""
    first = quarters() if picture is None else picture
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=10)
        stream.height, stream.width, stream.pix_fmt = first.shape[0], first.shape[1], pixels
        stream.codec_context.thread_count = 1
        stream.options = {"crf": "10"} if codec == "libx264" else {}
        if codec in ("mpeg4", "mjpeg", "libvpx"):
            stream.bit_rate = 4_000_000
        for number in range(frames):
            shown = first if number == 0 else np.zeros_like(first)
            source = av.VideoFrame.from_ndarray(shown, format="rgb24")
            source.pts = number
            file.mux(stream.encode(source))
        if frames:
            file.mux(stream.encode(None))
    data = buffer.getvalue()
    return turned_track(data, turn) if turn else data


def turned_track(data: bytes, degrees: int) -> bytes:
    """An MP4 whose track header says that players turn the picture by this much, clockwise."""
    cosine, sine = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    matrix = struct.pack(">9i", cosine << 16, sine << 16, 0, -sine << 16, cosine << 16, 0, 0, 0, 1 << 30)
    place = data.index(b"tkhd") + 4 + 40
    return data[:place] + matrix + data[place + 36 :]


def sound(container: str, codec: str) -> bytes:
    """A file with a sound track and nothing else."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=8000)
        stream.layout = "mono"
        samples = np.zeros((1, 1024), np.float32 if codec == "aac" else np.int16)
        for number in range(4):
            heard = av.AudioFrame.from_ndarray(
                samples, format="fltp" if codec == "aac" else "s16", layout="mono"
            )
            heard.sample_rate, heard.pts = 8000, number * 1024
            file.mux(stream.encode(heard))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def many_samples(count: int) -> bytes:
    """An MP4 of under 2 KB whose tables say that it has `count` pictures: each costs its reader a table entry."""
    data = bytearray(video())
    sizes, chunks = data.index(b"stsz"), data.index(b"stsc")
    struct.pack_into(">II", data, sizes + 8, 1, count)
    struct.pack_into(">I", data, chunks + 16, count)
    return bytes(data)


def many_scans(scans: int, side: int) -> bytes:
    """A progressive JPEG that refines the same coefficients again and again: each scan visits every block."""
    data = saved(Image.new("L", (side, side), 100), "JPEG", progressive=True, quality=50)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * scans + data[-2:]


def vp8_of_size(width: int, height: int) -> bytes:
    """A WebM whose one coded picture is 30 bytes and claims this size."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="webm") as file:
        stream: Any = file.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        coded = b"\x10\x02\x00\x9d\x01\x2a" + struct.pack("<HH", width, height) + bytes(20)
        packet = av.Packet(coded)
        packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, 0, 0, True
        file.mux(packet)
    return buffer.getvalue()


def sized_jpeg(width: int, height: int) -> bytes:
    """A JPEG whose header claims this size."""
    data = bytearray(saved(image(), "JPEG"))
    place = data.index(b"\xff\xc0") + 5
    struct.pack_into(">HH", data, place, height, width)
    return bytes(data)


def sized_gif(canvas: tuple[int, int], shown: tuple[int, int] | None = None) -> bytes:
    """A GIF whose canvas, and whose first picture, claim these sizes."""
    data = bytearray(saved(palette(), "GIF"))
    struct.pack_into("<HH", data, 6, *canvas)
    place = data.index(b"\x2c\x00\x00\x00\x00") + 5
    struct.pack_into("<HH", data, place, *(shown or canvas))
    return bytes(data)


def sized_webp(width: int, height: int) -> bytes:
    """A WebP of the extended kind whose canvas claims this size."""
    lossless = saved(image(), "WEBP", lossless=True)
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4)
    canvas += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + canvas + lossless[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def sized_bmp(width: int, height: int) -> bytes:
    data = bytearray(saved(image(), "BMP"))
    struct.pack_into("<ii", data, 18, width, height)
    return bytes(data)


def sized_tiff(width: int, height: int) -> bytes:
    """A TIFF of one strip that claims this size."""
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, 64)]
    table = struct.pack("<H", len(tags))
    for number, kind, count, value in tags:
        table += struct.pack("<HHI", number, kind, count) + struct.pack("<I", value)
    return b"II*\x00" + struct.pack("<I", 72) + bytes(64) + table + bytes(4)


def overlapping_tiff(tags: int, size: int) -> bytes:
    """A TIFF whose many tags all point to the same bytes: each costs its reader a copy."""
    table = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8)]
    table += [(277, 3, 1, 1), (278, 3, 1, 8), (279, 4, 1, 64)]
    table += [(40_000 + number, 7, size, 8) for number in range(tags)]
    packed = struct.pack("<H", len(table))
    for number, kind, count, value in table:
        packed += struct.pack("<HHI", number, kind, count) + struct.pack("<I", value)
    return b"II*\x00" + struct.pack("<I", 8 + size) + bytes(size) + packed + bytes(4)


def with_exif(data: bytes, exif: bytes) -> bytes:
    """A JPEG with these bytes as its EXIF block."""
    block = b"Exif\x00\x00" + exif
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + data[2:]


def flipped(data: bytes, seed: int, bits: int = 8) -> bytes:
    """With some bits turned over."""
    damaged, draw = bytearray(data), np.random.default_rng(seed)
    for place in draw.integers(0, len(data), bits):
        damaged[place] ^= 1 << int(draw.integers(0, 8))
    return bytes(damaged)
