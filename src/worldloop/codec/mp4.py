"""Video files: pictures to an MP4 that plays everywhere, and the pictures of a file, one at a time.

Owns containers. Does not own the live stream (`h264`). Called by the recorder, the trainer's data sets, the
command line, and `still` for the first frame of an uploaded video.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from worldloop.codec.colour import PlaneReader, PlaneWriter, tag_colour
from worldloop.core.errors import InvalidInputError, PictureError, SettingsError
from worldloop.core.files import replacing

_STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")


def write_mp4(
    path: str | os.PathLike[str],
    frames: Iterable[NDArray[np.uint8]],
    *,
    fps: float,
    crf: float = 18.0,
    scale: int = 1,
) -> int:
    """Write H.264 in MP4, its index first, so that a browser plays it while it loads.

    Args:
        path: where to; appears whole or not at all, and replaces what was there.
        frames: uint8 `[H, W, 3]`, all of one even size (after `scale`), at least one.
        fps: pictures a second.
        crf: constant quality, 0 (lossless but for colour subsampling) to 51.
        scale: enlarge every pixel to a square of this side.

    Returns:
        How many pictures were written.

    Raises:
        InvalidInputError: no picture, or one of another shape or type.
        SettingsError: a setting is out of range.
    """
    if not 1 <= fps <= 240 or not 0 <= crf <= 51:
        raise SettingsError(f"fps {fps}, crf {crf}: fps must be 1 to 240 and crf 0 to 51")
    target = Path(path)
    with replacing(target) as partial:
        return _write(partial, frames, fps=fps, crf=crf, scale=scale)


def read_video(source: str | os.PathLike[str] | bytes) -> Iterator[NDArray[np.uint8]]:
    """The pictures of an MP4, MOV, WebM, MKV or AVI file, in order, each uint8 `[H, W, 3]` and upright.

    Raises:
        PictureError: not such a file, no video in it, or damaged; also in mid-iteration.
        OSError: the file cannot be opened.
    """
    name = "the video" if isinstance(source, bytes) else f"video {Path(source).name!r}"
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        container = video_container(file.read(64))
        if container is None:
            raise PictureError(f"{name} is of no known kind; use MP4, MOV, WebM, MKV or AVI")
        file.seek(0)
        yield from _pictures(file, container=container, name=name, max_pixels=None)


def first_frame(data: bytes, *, container: str, name: str, max_pixels: int) -> NDArray[np.uint8]:
    """The first picture of a video in memory, uint8 `[H, W, 3]`; `container` comes from `video_container`.

    Raises:
        PictureError: larger than `max_pixels`, no video in it, or damaged; the message begins with `name`.
    """
    with closing(
        _pictures(io.BytesIO(data), container=container, name=name, max_pixels=max_pixels)
    ) as pictures:
        return next(pictures)


def video_container(head: bytes) -> str | None:
    """FFmpeg's name for the container that these first bytes begin, or None when it is no video that is read.

    The demuxer is chosen here and not by FFmpeg, which also knows play lists that open other files and hosts.
    """
    if head[4:8] == b"ftyp" and head[8:12] not in _STILL_BRANDS:
        return "mov"
    if head[4:8] in (b"moov", b"mdat", b"wide"):
        return "mov"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    return None


def _write(path: Path, frames: Iterable[NDArray[np.uint8]], *, fps: float, crf: float, scale: int) -> int:
    iterator = iter(frames)
    first = next(iterator, None)
    if first is None:
        raise InvalidInputError("no pictures to write; a video has at least one")
    if first.ndim != 3:
        raise InvalidInputError(f"picture is {first.dtype} {list(first.shape)}; must be uint8 [H, W, 3]")
    height, width = first.shape[:2]
    writer = PlaneWriter(height=height, width=width, scale=scale)
    with av.open(path, "w", format="mp4", options={"movflags": "+faststart"}) as file:
        stream = file.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = height * scale, width * scale
        stream.options = {"crf": str(crf), "preset": "medium"}
        context = stream.codec_context
        context.thread_count = 1
        tag_colour(context)
        count = 0
        for picture in _chain(first, iterator):
            planes = writer.write(picture)
            planes.pts = count
            file.mux(stream.encode(planes))
            count += 1
        file.mux(stream.encode(None))
    return count


def _chain(first: NDArray[np.uint8], rest: Iterator[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    yield first
    yield from rest


def _pictures(
    file: Any, *, container: str, name: str, max_pixels: int | None
) -> Generator[NDArray[np.uint8], None, None]:
    reader, count = PlaneReader(), 0
    try:
        # Else a decoder makes room for any size that a stream claims, before that size is seen here.
        limits = {} if max_pixels is None else {"max_pixels": str(max_pixels)}
        with av.open(file, "r", format=container, options=limits) as opened:
            if not opened.streams.video:
                raise PictureError(f"{name} has no video in it; send one with a picture track")
            stream = opened.streams.video[0]
            if stream.codec_context is None:
                raise PictureError(f"{name} has a codec that is not known; save it again as H.264 MP4")
            stream.codec_context.thread_count = 1
            _check_size(stream.codec_context, name, max_pixels)
            for frame in opened.decode(stream):
                _check_size(frame, name, max_pixels)
                yield reader.read(frame)
                count += 1
    except PictureError:
        raise
    except MemoryError as error:
        raise PictureError(f"{name} takes too much memory to read; save it again, smaller") from error
    except (FFmpegError, ValueError, EOFError) as error:
        raise PictureError(f"{name} is cut short or damaged after {count} pictures; save it again") from error
    if count == 0:
        raise PictureError(f"{name} has no picture that can be decoded; save it again as H.264 MP4")


def _check_size(sized: Any, name: str, max_pixels: int | None) -> None:
    if max_pixels is not None and sized.width * sized.height > max_pixels:
        raise PictureError(
            f"{name} is {sized.width}x{sized.height}; at most {max_pixels} pixels a picture are allowed"
        )
