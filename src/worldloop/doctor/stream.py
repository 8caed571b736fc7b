"""The stream: which video encoders work here at the world's size, and what a browser needs for it.

Owns the probes and their wording. Whether the chosen encoder works is asked of `codec.h264`, as a server would.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import av
import numpy as np
from av.codec.codec import UnknownCodecError
from av.error import FFmpegError
from numpy.typing import NDArray

from worldloop.codec.h264 import ENCODERS, H264Encoder
from worldloop.core.errors import WorldloopError
from worldloop.core.settings import Settings
from worldloop.doctor.report import Finding, one_line
from worldloop.session.table import SMALL_PICTURE_ROWS
from worldloop.wire.world import codec_string

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

OTHERS = ("h264_vaapi", "libopenh264")
"""Encoders that FFmpeg may have and that this server does not drive."""
PICTURES = 3
BROWSERS = "Chrome, Edge, Safari 16.4 or newer, Firefox 130 or newer"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def encoders(settings: Settings, size: tuple[int, int]) -> Iterator[Finding]:
    """How quickly each encoder codes pictures of this (height, width), or why it does not; then the chosen one."""
    pictures, scale = _pictures(*size), _scale(settings, size)
    failed: dict[str, str] = {}
    for name in (*ENCODERS, *OTHERS):
        try:
            if name in ENCODERS:
                spent, more = _code_ours(name, settings, pictures, scale), ""
            else:
                spent, more = _code_other(name, pictures), "; this server has no settings for it"
        except (WorldloopError, FFmpegError, ValueError) as error:
            failed[name] = _why_not(error)
            yield Finding(area="video encoders", name=name, text=failed[name])
            continue
        text = f"{1000 * spent:.2f} ms a picture{more}"
        yield Finding(area="video encoders", name=name, text=text, value=1000 * spent)
    working = [name for name in ENCODERS if name not in failed]
    if (chosen := settings.h264_encoder) not in working:
        why = failed.get(chosen) or f"{chosen!r} must be one of {', '.join(ENCODERS)}"
        instead = (
            f"set h264_encoder={working[0]}" if working else "none works here: install PyAV with libx264"
        )
        yield Finding(area="settings", name="h264_encoder", text=f"{why}; {instead}", stops=True)


def browser(settings: Settings, size: tuple[int, int]) -> Iterator[Finding]:
    """What a page is told that the stream is, and which browsers can show it."""
    scale = _scale(settings, size)
    height, width = (side * scale for side in size)
    codec = codec_string(height=height, width=width, fps=settings.stream_fps)
    level = int(codec[-2:], 16) / 10
    yield Finding(
        area="browser",
        name="codec",
        text=f"{codec}: {width} x {height}, constrained baseline, level {level:g}",
        value=codec,
    )
    yield Finding(area="browser", name="needs", text=f"WebCodecs with H.264: {BROWSERS}")
    if settings.host not in LOOPBACK:
        text = "on other machines the page needs https: browsers decode video on secure pages only"
        yield Finding(area="browser", name="https", text=text)


def _scale(settings: Settings, size: tuple[int, int]) -> int:
    return settings.stream_scale or (2 if size[0] < SMALL_PICTURE_ROWS else 1)


def _pictures(height: int, width: int) -> list[NDArray[np.uint8]]:
    """A slope that moves."""
    row, column = np.ogrid[:height, :width]
    return [
        np.stack([(row + column + 7 * n) % 256, (2 * row + n) % 256 + 0 * column, 0 * row + (column + 3 * n) % 256], -1)
        .astype(np.uint8)
        for n in range(PICTURES)
    ]  # fmt: skip


def _code_ours(name: str, settings: Settings, pictures: list[NDArray[np.uint8]], scale: int) -> float:
    height, width = pictures[0].shape[:2]
    with H264Encoder(
        height=height,
        width=width,
        fps=settings.stream_fps,
        bitrate=settings.h264_bitrate,
        gop=settings.h264_gop,
        encoder=name,
        scale=scale,
    ) as encoder:
        return _time(encoder.encode, pictures)


def _code_other(name: str, pictures: list[NDArray[np.uint8]]) -> float:
    context = cast("VideoCodecContext", av.CodecContext.create(name, "w"))
    context.height, context.width = pictures[0].shape[:2]
    context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 35)

    def code(picture: NDArray[np.uint8]) -> None:
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
        if not context.encode(frame):
            raise ValueError("it holds pictures back")

    return _time(code, pictures)


def _time(code: Callable[[NDArray[np.uint8]], object], pictures: list[NDArray[np.uint8]]) -> float:
    """Median seconds of a picture after the first, which pays for the start."""
    spent = []
    for picture in pictures:
        began = time.perf_counter()
        code(picture)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[1:])


def _why_not(error: Exception) -> str:
    if isinstance(error, UnknownCodecError):
        return "not part of this machine's FFmpeg"
    if isinstance(error, FFmpegError):
        return f"does not start on this machine ({error.strerror})"
    return one_line(error)
