"""Start pictures: bytes that a stranger sent to one RGB picture of the right size, and pictures to files.

Owns the limits and the refusals: every failure is a `PictureError` saying what was wrong and what is right.
Does not own where bytes come from. Called by the server's uploads, the API and the command line.

Transparent pixels are composited on white. Of an animation or a video the first frame counts.
"""

from __future__ import annotations

import io
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from worldloop.codec.mp4 import first_frame, video_container
from worldloop.core.errors import InvalidInputError, PictureError

MAX_BYTES = 16 * 1024 * 1024
MAX_PIXELS = 40_000_000
MAX_PROFILE_BYTES = 1024 * 1024
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""What Pillow may try. Formats that run other programs or open other files are not among them."""

FILES: dict[str, dict[str, Any]] = {
    "png": {"compress_level": 6},
    "jpeg": {"quality": 95, "subsampling": 0, "optimize": False, "progressive": False},
    "webp": {"lossless": True, "quality": 75, "method": 4, "exact": True},
}
"""Kinds of files that are written, with their encoders' settings."""

ALLOWED = "send a PNG, JPEG, WebP, GIF, BMP, TIFF or AVIF picture, or an MP4, MOV, WebM, MKV or AVI video"

_BACKGROUND = (255, 255, 255, 255)


def read_picture(
    data: bytes, *, filename: str = "", max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """The picture in these bytes, upright, as sRGB uint8 `[H, W, 3]`; of a video its first frame.

    Args:
        data: the file's bytes; what they are is told from their content alone.
        filename: only named in messages.
        max_bytes: a larger file is refused before it is read.
        max_pixels: a larger picture is refused from its header, before it is decoded.

    Raises:
        PictureError: too large, unknown, broken, or of a kind that has no RGB reading.
    """
    name = _shown(filename)
    if not data:
        raise PictureError(f"{name} is empty; {ALLOWED}")
    if len(data) > max_bytes:
        raise PictureError(f"{name} has {len(data)} bytes; at most {max_bytes} are allowed")
    if (container := video_container(data)) is not None:
        return first_frame(data, container=container, name=name, max_pixels=max_pixels)
    image = _open(data, name)
    if image.width * image.height > max_pixels:
        raise PictureError(
            f"{name} is {image.width}x{image.height}, {image.width * image.height} pixels; "
            f"at most {max_pixels} are allowed"
        )
    try:
        return _to_rgb(image)
    except PictureError as error:
        raise PictureError(f"{name}: {error}") from error
    except MemoryError as error:
        raise PictureError(f"{name} takes too much memory to read; save it again, smaller") from error
    except Exception as error:  # any type may come out of a decoder that was fed hostile bytes
        raise PictureError(
            f"{name} is a {image.format} picture that is cut short or damaged; save it again"
        ) from error


def cover_crop(picture: NDArray[np.uint8], *, height: int, width: int) -> NDArray[np.uint8]:
    """Scale until the picture covers `[height, width]`, then keep its centre. Never stretches.

    Args:
        picture: uint8 `[H, W, 3]`.
        height: rows of the answer.
        width: columns of the answer.

    Returns:
        uint8 `[height, width, 3]`; the same pixels when the size is right already.

    Raises:
        InvalidInputError: no such picture, or a size below 1.
    """
    _check(picture)
    if height < 1 or width < 1:
        raise InvalidInputError(f"target size {width}x{height}: both sides must be 1 or more")
    rows, columns = picture.shape[:2]
    if (rows, columns) == (height, width):
        return picture.copy()
    factor = max(height / rows, width / columns)
    kept_width, kept_height = min(width / factor, columns), min(height / factor, rows)
    left, top = (columns - kept_width) / 2, (rows - kept_height) / 2
    # Crop and scale in one step: a 1 x 40000000 picture must not be enlarged before it is cut.
    scaled = Image.fromarray(picture).resize(
        (width, height),
        Image.Resampling.BICUBIC if factor > 1 else Image.Resampling.LANCZOS,
        box=(left, top, left + kept_width, top + kept_height),
    )
    return np.asarray(scaled, np.uint8).copy()


def encode_picture(picture: NDArray[np.uint8], kind: str) -> bytes:
    """A file of uint8 `[H, W, 3]`. Fixed settings and no metadata: equal pixels give equal bytes on one build.

    Args:
        picture: the pixels.
        kind: one of `FILES`; png and webp lose nothing, jpeg little that is seen.

    Raises:
        InvalidInputError: another shape, type or kind, or too large a side for it.
    """
    if kind not in FILES:
        raise InvalidInputError(f"format {kind!r} must be one of {', '.join(FILES)}")
    _check(picture)
    buffer = io.BytesIO()
    try:
        Image.fromarray(picture).save(buffer, format=kind.upper(), **FILES[kind])
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"a {kind} file cannot hold this picture: {error}") from error
    return buffer.getvalue()


def _check(picture: NDArray[np.uint8]) -> None:
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise InvalidInputError(f"picture is {picture.dtype} {list(picture.shape)}; must be uint8 [H, W, 3]")


def _shown(filename: str) -> str:
    """The last part of a client's file name, printable and short enough for a message."""
    last = PurePath(filename.replace("\\", "/")).name
    kept = "".join(character for character in last if character.isprintable())[:60]
    return f"picture {kept!r}" if kept else "the picture"


def _open(data: bytes, name: str) -> Image.Image:
    try:
        Image.init()
        return Image.open(io.BytesIO(data), formats=[kind for kind in FORMATS if kind in Image.OPEN])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureError(f"{name} claims far more pixels than are allowed; send a smaller one") from error
    except UnidentifiedImageError as error:
        raise PictureError(f"{name} is of no known kind; {ALLOWED}") from error
    except Exception as error:  # any type may come out of a parser that was fed hostile bytes
        raise PictureError(f"{name} has a damaged header; {ALLOWED}") from error


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        raise PictureError("floating-point pixels have no stated range; save it with 8 or 16 bits a channel")
    if upright.mode.startswith("I"):
        upright = _from_16_bit(upright)
    profile = image.info.get("icc_profile")
    if "A" in upright.getbands() or "transparency" in upright.info:
        upright = upright.convert("RGBA")
        alpha = upright.getchannel("A")
        upright = _to_srgb(upright.convert("RGB"), profile)
        upright.putalpha(alpha)
        backdrop = Image.new("RGBA", upright.size, _BACKGROUND)
        upright = Image.alpha_composite(backdrop, upright)
    else:
        upright = _to_srgb(upright, profile)
    return np.asarray(upright.convert("RGB"), np.uint8).copy()


def _from_16_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise PictureError("grey values outside 0 to 65535; save it with 8 or 16 bits a channel")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Apply a colour profile if it is a plain one for the picture's own mode; else take values as sRGB."""
    if not profile or len(profile) > MAX_PROFILE_BYTES or image.mode not in ("RGB", "L", "CMYK"):
        return image
    try:
        converted = ImageCms.profileToProfile(
            image,
            ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            outputMode="RGB",
        )
    except (ImageCms.PyCMSError, OSError):
        return image
    return image if converted is None else converted
