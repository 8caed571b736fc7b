"""Files sent as a start picture: odd ones that must come out upright in the right colours, and all the others."""

from __future__ import annotations

import functools
import io
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from worldloop.codec.still import cover_crop

from . import files
from .case import Case, Scene, said
from .files import COLUMNS, ROWS, Picture, image, quarters, saved, with_alpha

MAX_PIXELS = 4_000_000
MAX_UPLOAD = 2 * 2**20

KEPT = [0.02, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85]
"""Shares of a file that are left of it."""

FLIPS = 8

ONE_TAG = b"II*\x00\x08\x00\x00\x00\x01\x00\x12\x01"
"""The beginning of an EXIF block that holds an orientation and no more."""


class Eyes:
    """Sees the picture that a server's encoder gets."""

    def __init__(self, host: Any) -> None:
        self.picture: Picture | None = None
        self._encode = host.encode
        host.encode = self._look

    def _look(self, picture: Picture) -> Any:
        self.picture = picture
        return self._encode(picture)


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A picture that is unusual and right: what it shows, and the greatest mean difference of a channel."""

    data: bytes
    shown: Picture
    off: float = 0.0
    filename: str = "a.png"


def accepted(odd: Odd, eyes: Eyes, scene: Scene) -> str:
    """`200 upright` when the encoder got what the file shows."""
    eyes.picture = None
    answer = scene.live.upload("rogue-painter", odd.data, odd.filename)
    if answer.status_code != 200 or eyes.picture is None:
        return said(answer)
    wanted = cover_crop(odd.shown, height=ROWS, width=COLUMNS)
    off = np.abs(eyes.picture.astype(int) - wanted).mean(axis=(0, 1)).max()
    return "200 upright" if off <= odd.off else f"200 but {off:.1f} levels off"


def odd_cases(eyes: Eyes) -> list[Case]:
    return [
        Case(name=f"odd picture {name}", expected="200 upright", run=functools.partial(accepted, odd, eyes))
        for name, odd in odd_pictures().items()
    ]


def odd_pictures() -> dict[str, Odd]:
    """By name."""
    shown = quarters()
    half = (shown.astype(float) * (128 / 255) + 255 * (1 - 128 / 255)).round().astype(np.uint8)
    no_red = shown.copy()
    no_red[(shown == files.RED).all(2)] = 255
    two_tone = np.where(quarters().mean(2) > 120, 255, 0).astype(np.uint8)[..., None].repeat(3, 2)
    lumps = files.grey(shown)
    found: dict[str, Odd] = {}

    def add(
        name: str, data: bytes, picture: Picture = shown, off: float = 0.0, filename: str = "a.png"
    ) -> None:
        found[name] = Odd(data=data, shown=picture, off=off, filename=filename)

    for orientation in range(1, 9):
        add(f"jpeg turned {orientation}", files.turned("JPEG", orientation, quality=95), off=4)
        add(f"png turned {orientation}", files.turned("PNG", orientation))
        add(f"webp turned {orientation}", files.turned("WEBP", orientation, lossless=True))
        add(f"tiff turned {orientation}", files.turned("TIFF", orientation))
    for orientation in (0, 9, 65535):
        add(f"jpeg of unknown turn {orientation}", files.turned("JPEG", orientation, quality=95), off=4)
    plain = saved(image(), "JPEG", quality=95)
    for name, exif in {
        "empty": b"",
        "no tiff": b"garbage" * 9,
        "cut short": b"II*\x00\x08\x00\x00\x00\x05\x00\x12\x01",
        "a loop": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
        "far away": b"II*\x00\xff\xff\xff\xff",
        "a wrong type": b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x02\x00\x00\x00\x01A" + bytes(7),
        "a turn as text": ONE_TAG + b"\x02\x00\x02\x00\x00\x00\x36" + bytes(7),
        "many turns": ONE_TAG + b"\x03\x00\xff\xff\xff\x7f" + bytes(8),
    }.items():
        add(f"jpeg with exif that is {name}", files.with_exif(plain, exif), off=4)

    cmyk = image().convert("CMYK")
    add("cmyk jpeg", saved(cmyk, "JPEG", quality=95), off=4)
    add("cmyk tiff", saved(cmyk, "TIFF"), off=1)
    add("grey jpeg", saved(image().convert("L"), "JPEG", quality=95), lumps, 3)
    add("grey png", saved(image().convert("L"), "PNG"), lumps)
    add("grey with alpha", saved(image().convert("LA"), "PNG"), lumps)
    add("progressive jpeg", saved(image(), "JPEG", progressive=True, quality=95), off=4)
    add("4:4:4 jpeg", saved(image(), "JPEG", subsampling=0, quality=95), off=3)
    add("4:2:0 jpeg", saved(image(), "JPEG", subsampling=2, quality=95), off=4)
    add("optimised jpeg", saved(image(), "JPEG", optimize=True, quality=95), off=4)
    add("jpeg with restarts", saved(image(), "JPEG", restart_marker_rows=1, quality=95), off=4)
    add("jpeg with a comment", saved(image(), "JPEG", comment=b"x" * 60_000, quality=95), off=4)
    add("jpeg with a tail", plain + bytes(5000), off=4)
    add("jpeg with a video behind it", plain + files.video(), off=4)
    add("png with a tail", saved(image(), "PNG") + b"<script>alert(1)</script>")

    wide = files.deep(shown)
    add("16-bit rgb png", files.raw_png(wide, colour_type=2, depth=16))
    add("16-bit rgba png", files.raw_png(with_alpha(wide, 65535), colour_type=6, depth=16))
    add("16-bit grey png", files.raw_png(files.deep(lumps)[..., :1], colour_type=0, depth=16), lumps)
    alpha_grey = with_alpha(files.deep(lumps)[..., :1], 65535)
    add("16-bit grey png with alpha", files.raw_png(alpha_grey, colour_type=4, depth=16), lumps)
    add("16-bit grey tiff", saved(Image.fromarray(files.deep(lumps)[..., 0]), "TIFF"), lumps)
    add("rgba png", saved(image().convert("RGBA"), "PNG"))
    see_through = files.raw_png(with_alpha(shown, 128), colour_type=6)
    add("half transparent png", see_through, half, 1)
    add(
        "wholly transparent png", files.raw_png(with_alpha(shown, 0), colour_type=6), np.full_like(shown, 255)
    )
    keyed = files.chunk(b"tRNS", bytes((0, files.RED[0], 0, files.RED[1], 0, files.RED[2])))
    add("png with one transparent colour", files.raw_png(shown, colour_type=2, extra=[keyed]), no_red)
    add("palette png", saved(files.palette(), "PNG"))
    index = files.palette().getpixel((0, 0))
    assert isinstance(index, int)
    add("palette png with a transparent colour", saved(files.palette(), "PNG", transparency=index), no_red)
    alphas = bytes(0 if number == index else 255 for number in range(4))
    add("palette png with alphas", saved(files.palette(), "PNG", transparency=alphas), no_red)
    add("2-bit palette png", saved(files.palette(), "PNG", bits=2))
    black_white = Image.fromarray(two_tone[..., 0]).convert("1")
    add("1-bit png", saved(black_white, "PNG"), two_tone)
    add("1-bit tiff", saved(black_white, "TIFF", compression="group4"), two_tone)
    add("1-bit bmp", saved(black_white, "BMP"), two_tone)

    later = [image(np.zeros_like(shown)), image(np.full_like(shown, 99))]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        more = {"lossless": True} if kind == "WEBP" else {}
        add(
            f"animated {kind.lower()}",
            saved(image(), kind, save_all=True, append_images=later, **more),
            off=3,
        )
    add("gif", saved(files.palette(), "GIF"))
    add("gif with a transparent colour", saved(files.palette(), "GIF", transparency=index), no_red)
    add("interlaced gif", saved(files.palette(), "GIF", interlace=1))
    for kind, name in (("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp"), ("TIFF", "tiff")):
        options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
        add(
            f"{name} with a colour profile", files.in_profile(kind, files.swapped_profile(), **options), off=6
        )
    for name, profile in {"broken": b"nonsense" * 40, "huge": bytes(900_000), "empty": b" "}.items():
        add(f"png with a colour profile that is {name}", saved(image(), "PNG", icc_profile=profile))
    add("webp", saved(image(), "WEBP", quality=95), off=5)
    add("lossless webp", saved(image(), "WEBP", lossless=True))
    add("webp with alpha", saved(Image.open(io.BytesIO(see_through)), "WEBP", lossless=True), half, 1)
    add("bmp", saved(image(), "BMP"))
    add("palette bmp", saved(files.palette(), "BMP"))
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        name, off = compression.removeprefix("tiff_"), 6 if compression == "jpeg" else 0
        add(f"tiff with {name}", saved(image(), "TIFF", compression=compression), off=off)
    add("avif", saved(image(), "AVIF", quality=95), off=5)

    add("1x1", saved(image(shown[:1, :1]), "PNG"), shown[:1, :1])
    add("1x1 gif", saved(image(shown[:1, :1]), "GIF"), shown[:1, :1])
    flat = np.full((1, 4000, 3), 77, np.uint8)
    add("4000x1", saved(image(flat), "PNG"), flat)
    add("1x4000", saved(image(flat.transpose(1, 0, 2)), "PNG"), flat.transpose(1, 0, 2))
    long_line = np.full((1, 65_000, 3), 77, np.uint8)
    add("65000x1 jpeg", saved(image(long_line), "JPEG"), long_line, 2)
    add("1x65000 jpeg", saved(image(long_line.transpose(1, 0, 2)), "JPEG"), long_line.transpose(1, 0, 2), 2)
    add(
        "65000x61",
        saved(image(np.full((61, 65_000, 3), 77, np.uint8)), "PNG"),
        np.full((61, 650, 3), 77, np.uint8),
    )
    big = quarters(2000, 2000)
    add("as many pixels as are allowed", saved(image(big), "PNG"), big)

    for container, codec in (
        ("mp4", "libx264"),
        ("mov", "libx264"),
        ("matroska", "libx264"),
        ("webm", "libvpx"),
        ("avi", "mpeg4"),
        ("matroska", "mjpeg"),
        ("mov", "png"),
        ("matroska", "ffv1"),
    ):
        pixels = {"mjpeg": "yuvj420p", "png": "rgb24"}.get(codec, "yuv420p")
        clip = files.video(container, codec, pixels=pixels)
        add(f"{codec} in {container}", clip, off=10, filename="a.jpg")
    add("4:4:4 video", files.video(pixels="yuv444p"), off=8)
    add("10-bit video", files.video(pixels="yuv420p10le"), off=8)
    for degrees in (90, 180, 270):
        stored = np.ascontiguousarray(np.rot90(shown, degrees // 90))
        add(f"video turned {degrees}", files.video(picture=stored, turn=degrees), off=8)

    names = {
        "of another kind": "a.jpg",
        "of a program": "a.exe",
        "with no ending": "a",
        "with a path": "../../../../etc/passwd",
        "with a windows path": "C:\\\\windows\\\\system32\\\\cmd.png",
        "with other letters": "снимок.png",
        "very long": "x" * 4000 + ".png",
        "with a percent code": "a%00.png",
        "of a device": "/dev/null",
        "with dots only": "...",
        "with spaces": "   ",
        "with shell words": "$(reboot).png",
        "turned around": "a\u202egnp.exe",
    }
    for name, filename in names.items():
        add(f"name {name}", saved(image(), "PNG"), filename=filename)
    return found


def bad_cases() -> list[Case]:
    """Everything that is refused with 400, and what is refused or read by chance."""
    cases = [
        Case(name=f"no picture: {name}", expected="400 no known kind", run=posting(data))
        for name, data in not_pictures().items()
    ]
    cases += [
        Case(name=f"bad picture: {name}", expected=expected, run=posting(data))
        for name, (data, expected) in broken().items()
    ]
    for kind, data in samples().items():
        # The rest of a video's pictures is not needed for the first.
        whole = "400 picture" if kind not in ("mp4", "webm", "avi") else "400 picture | 200"
        cases += [
            Case(name=f"{kind} cut to {part:.0%}", expected=whole, run=posting(data[: int(len(data) * part)]))
            for part in KEPT
        ]
        cases += [
            Case(
                name=f"{kind} with flipped bits {seed}",
                expected="400 picture | 200",
                run=posting(files.flipped(data, seed)),
            )
            for seed in range(FLIPS)
        ]
    return cases


def bomb_cases() -> list[Case]:
    """Small files that claim, or unfold to, far more than they are."""
    return [
        Case(name=f"bomb: {name}", expected=expected, run=posting(data))
        for name, (data, expected) in bombs().items()
    ]


def posting(data: bytes, filename: str = "a.png") -> Callable[[Scene], str]:
    return lambda scene: said(scene.live.upload("rogue-bomber", data, filename))


def samples() -> dict[str, bytes]:
    """One file of each kind, noisy, so that most of its bytes matter."""
    noise = Image.fromarray(np.random.default_rng(3).integers(0, 256, (64, 64, 3)).astype(np.uint8))
    return {
        "png": saved(noise, "PNG"),
        "jpeg": saved(noise, "JPEG"),
        "progressive jpeg": saved(noise, "JPEG", progressive=True),
        "gif": saved(noise, "GIF"),
        "webp": saved(noise, "WEBP"),
        "bmp": saved(noise, "BMP"),
        "tiff": saved(noise, "TIFF", compression="tiff_lzw"),
        "avif": saved(noise, "AVIF"),
        "mp4": files.video(picture=np.asarray(noise)),
        "webm": files.video("webm", "libvpx", picture=np.asarray(noise)),
        "avi": files.video("avi", "mpeg4", picture=np.asarray(noise)),
    }


def not_pictures() -> dict[str, bytes]:
    """Files of other kinds that call themselves a.png."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.png", saved(image(), "PNG"))
    # Kinds that Pillow or FFmpeg could read, and that are not let near them.
    return {
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "svg with entities": b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>',
        "html": b"<!doctype html><script>alert(1)</script>",
        "pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n",
        "zip": zipped.getvalue(),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(200),
        "exe": b"MZ" + bytes(200),
        "shell script": b"#!/bin/sh\nrm -rf /\n",
        "gzip": b"\x1f\x8b\x08" + bytes(100),
        "text": "just words, ünï¢ode".encode(),
        "one byte": b"\x89",
        "zeroes": bytes(10_000),
        "noise": np.random.default_rng(1).bytes(10_000),
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id) (r) file\n",
        "ico": saved(image(), "ICO"),
        "ppm": saved(image(), "PPM"),
        "pcx": saved(image(), "PCX"),
        "tga": saved(image(), "TGA"),
        "dds": saved(image(), "DDS"),
        "icns": saved(image().resize((64, 64)), "ICNS"),
        "sgi": saved(image(), "SGI"),
        "jpeg 2000": saved(image(), "JPEG2000"),
        "photoshop": b"8BPS\x00\x01" + bytes(200),
        "heic": b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(50),
        "play list": b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/secret\n",
        "concat list": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nm=video 9 RTP/AVP 96\n",
        "dash": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"></MPD>',
        "mpeg ts": (b"G\x40\x00\x10" + bytes(184)) * 20,
        "flv": b"FLV\x01\x05\x00\x00\x00\x09" + bytes(50),
        "ogg": b"OggS\x00\x02" + bytes(50),
        "wav": b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(30),
        "mp3": b"ID3\x04\x00\x00\x00\x00\x00\x00" + bytes(50),
        "safetensors": b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
        "pickle": b"\x80\x04cos\nsystem\n(S'id'\ntR.",
        "half a png mark": b"\x89PNG\r\n",
        "a jpeg mark twice": b"\xff\xd8\xff\xd8",
        "riff of nothing": b"RIFF\x00\x00\x00\x00WEBP",
    }


def broken() -> dict[str, tuple[bytes, str]]:
    """Of a known kind, and wrong in themselves."""
    good = saved(image(), "PNG")
    bad_sum = bytearray(good)
    bad_sum[good.index(b"IDAT") + 20] ^= 255
    floats = saved(Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)), "TIFF")
    return {
        "nothing": (b"", "400 is empty | 422"),
        "png mark alone": (b"\x89PNG\r\n\x1a\n", "400 picture"),
        "png without data": (b"\x89PNG\r\n\x1a\n" + files.chunk(b"IHDR", bytes(13)), "400 picture"),
        "png of no size": (files.raw_png(np.zeros((1, 1, 3)), colour_type=2, size=(0, 0)), "400 picture"),
        "png of no width": (files.raw_png(np.zeros((1, 1, 3)), colour_type=2, size=(0, 9)), "400 picture"),
        "png of an unknown colour type": (files.raw_png(np.zeros((4, 4, 3)), colour_type=5), "400 picture"),
        "png of an unknown depth": (
            files.raw_png(np.zeros((4, 4, 3)), colour_type=2, depth=7),
            "400 picture",
        ),
        "png with a wrong sum": (bytes(bad_sum), "400 picture"),
        "png with too little data": (
            files.raw_png(np.zeros((4, 4, 3)), colour_type=2, size=(400, 400)),
            "400 cut short or damaged",
        ),
        "floating-point tiff": (floats, "400 floating-point"),
        "jpeg mark alone": (b"\xff\xd8\xff", "400 "),
        "jpeg without a picture": (b"\xff\xd8\xff\xd9", "400 "),
        "gif that is a script": (b"GIF89a=1;/*" + bytes(90) + b"*/alert(1)", "400 picture"),
        "gif without a picture": (b"GIF89a\x08\x00\x08\x00\x00\x00\x00\x3b", "400 picture"),
        "gif in half a byte": (b"GIF89a\x08", "400 picture"),
        "bmp in its header": (saved(image(), "BMP")[:20], "400 picture"),
        "tiff without tags": (b"II*\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00", "400 picture"),
        "tiff that points outside": (b"II*\x00\xf0\xff\xff\xff", "400 picture"),
        "tiff that points to itself": (
            b"II*\x00\x08\x00\x00\x00\x01\x00\x00\x01\x03\x00\x01\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00\x00",
            "400 picture",
        ),
        "webp mark alone": (b"RIFF\x0c\x00\x00\x00WEBPVP8 ", "400 "),
        "avif mark alone": (b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1miaf", "400 "),
        "mp4 mark alone": (b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isomiso2", "400 picture"),
        "mp4 of boxes in boxes": (b"\x00\x00\x00\x10ftypisom" + bytes(8) + nested(400), "400 picture"),
        "mp4 of a box with no size": (
            b"\x00\x00\x00\x10ftypisom" + bytes(8) + b"\x00\x00\x00\x00moov",
            "400 picture",
        ),
        "mp4 with no picture": (files.video(frames=0), "400 picture"),
        "mp4 with sound only": (files.sound("mp4", "aac"), "400 no video in it"),
        "mkv with sound only": (files.sound("matroska", "pcm_s16le"), "400 no video in it"),
        "avi with sound only": (files.sound("avi", "pcm_s16le"), "400 no video in it"),
        "mkv mark alone": (b"\x1a\x45\xdf\xa3", "400 picture"),
        "mkv of endless size": (b"\x1a\x45\xdf\xa3\x01\xff\xff\xff\xff\xff\xff\xff", "400 picture"),
        "avi mark alone": (b"RIFF\x00\x00\x00\x00AVI LIST", "400 picture"),
        "mov of nothing": (b"\x00\x00\x00\x08moov" + bytes(64), "400 picture"),
    }


def nested(depth: int) -> bytes:
    """Boxes in boxes."""
    box = b""
    for _ in range(depth):
        box = (len(box) + 8).to_bytes(4, "big") + b"moov" + box
    return box


def bombs() -> dict[str, tuple[bytes, str]]:
    """Files of at most a few hundred KB, with the right answer."""
    dot = np.zeros((1, 1, 3))
    found: dict[str, tuple[bytes, str]] = {}
    for side in (2001, 7_000, 12_000, 60_000, 2**31 - 1):
        found[f"png of {side} x {side}"] = (files.raw_png(dot, colour_type=2, size=(side, side)), "400 ")
    found["png of 4 billion x 1"] = (files.raw_png(dot, colour_type=2, size=(2**32 - 1, 1)), "400 ")
    found["png that unfolds"] = (
        saved(Image.new("L", (3000, 3000)), "PNG"),
        "400 at most 4000000 are allowed",
    )
    found["16-bit png that unfolds"] = (
        files.raw_png(np.zeros((2000, 2000, 1)), colour_type=0, depth=16),
        "200 | 400 ",
    )
    text = files.chunk(b"zTXt", b"a\x00\x00" + zlib.compress(bytes(40_000_000)))
    found["png with a text that unfolds"] = (
        files.raw_png(quarters(), colour_type=2, extra=[text]),
        "400 | 200",
    )
    profile = files.chunk(b"iCCP", b"a\x00\x00" + zlib.compress(bytes(40_000_000)))
    found["png with a profile that unfolds"] = (
        files.raw_png(quarters(), colour_type=2, extra=[profile]),
        "400 | 200",
    )
    found["png of many chunks"] = (
        files.raw_png(quarters(), colour_type=2, extra=[files.chunk(b"teST", b"x")] * 20_000),
        "200 | 400 ",
    )
    for width, height in ((65_535, 65_535), (65_500, 62), (62, 65_500)):
        found[f"jpeg of {width} x {height}"] = (files.sized_jpeg(width, height), "400 ")
    found["gif canvas"] = (files.sized_gif((65_535, 65_535)), "400 ")
    found["gif picture over its canvas"] = (files.sized_gif((8, 8), (65_535, 65_535)), "400 ")
    found["gif of many comments"] = (gif_of_comments(1500), "200 | 400 ")
    found["webp canvas"] = (files.sized_webp(16_384, 16_384), "400 ")
    found["webp canvas of 16 million"] = (files.sized_webp(2**24, 2**24), "400 ")
    found["bmp"] = (files.sized_bmp(60_000, 60_000), "400 ")
    found["bmp upside down"] = (files.sized_bmp(60_000, -60_000), "400 ")
    found["bmp of negative width"] = (files.sized_bmp(-60_000, 60_000), "400 ")
    found["tiff"] = (files.sized_tiff(60_000, 60_000), "400 ")
    found["tiff of 4 billion rows"] = (files.sized_tiff(1, 2**32 - 1), "400 ")
    found["tiff of overlapping tags"] = (files.overlapping_tiff(4000, 500_000), "200 | 400 ")
    found["vp8 picture of 16383 x 16383"] = (files.vp8_of_size(16_383, 16_383), "400 ")
    found["vp8 picture of 4096 x 4096"] = (files.vp8_of_size(4096, 4096), "400 ")
    found["video over the limit"] = (
        files.video("matroska", "mjpeg", pixels="yuvj420p", frames=1, picture=quarters(2002, 2002)),
        "400 at most 4000000 pixels",
    )
    for count in (100_000, 20_000_000, 80_000_000, 2**32 - 1):
        found[f"mp4 of {count} samples"] = (files.many_samples(count), "400 picture")
    found["jpeg of many scans"] = (files.many_scans(4000, 1900), "400 ")
    return found


def gif_of_comments(blocks: int) -> bytes:
    data = saved(files.palette(), "GIF")
    place = data.index(b"\x2c\x00\x00\x00\x00")
    comment = b"\x21\xfe" + (b"\xff" + b"x" * 255) * blocks + b"\x00"
    return data[:place] + comment + data[place:]
