"""Video shards of a recording, written so that every bit comes back, and read from any frame on.

Lossless is H.264 High 4:4:4 Predictive on RGB planes at quantiser 0 (libx264rgb) in Matroska: there is no colour
conversion, so every bit comes back, at less than a tenth of FFV1's size on drawn pictures. H.264 on YUV 4:4:4 planes
loses the last bits of a colour in the conversion.

Owns shard files. Does not own lossy ones' writing (`codec.mp4`). Called by `recorder` and `recorded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from worldloop.codec.colour import PlaneReader
from worldloop.core.errors import InvalidInputError, PictureError
from worldloop.core.files import replacing

LOSSLESS = "H.264 lossless on RGB planes (libx264rgb, quantiser 0), Matroska"
LOSSY = "H.264 4:2:0, MP4"
KEY_FRAMES = 48
"""Frames from one key frame to the next at most: what a read in the middle decodes in vain."""


def write_lossless(path: Path, frames: Iterable[NDArray[np.uint8]], *, fps: float) -> int:
    """Write frames uint8 `[H, W, 3]` of one size so that every bit comes back; whole or not at all.

    Returns:
        How many frames were written.

    Raises:
        InvalidInputError: no frame, or one of another size.
    """
    count, shape = 0, (0, 0, 3)
    # Without this flag the muxer puts a random number into the file, and equal recordings have other hashes.
    flags = {"fflags": "+bitexact"}
    with replacing(path) as partial, av.open(partial, "w", format="matroska", options=flags) as file:
        stream = file.add_stream("libx264rgb", rate=Fraction(fps).limit_denominator(1001))
        stream.pix_fmt = "rgb24"
        stream.options = {"qp": "0", "preset": "veryfast", "g": str(KEY_FRAMES)}
        stream.codec_context.thread_count = 1
        for frame in frames:
            if count == 0:
                shape = (frame.shape[0], frame.shape[1], 3)
                stream.height, stream.width = shape[:2]
            if frame.shape != shape or frame.dtype != np.uint8:
                raise InvalidInputError(
                    f"picture is {frame.dtype} {list(frame.shape)}; this shard takes uint8 {list(shape)}"
                )
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts = count
            file.mux(stream.encode(picture))
            count += 1
        if count == 0:
            raise InvalidInputError("no pictures to write; a shard has at least one")
        file.mux(stream.encode(None))
    return count


def read_frames(path: Path, first: int = 0) -> Iterator[NDArray[np.uint8]]:
    """Frames of a shard from number `first` on, uint8 `[H, W, 3]`.

    Raises:
        PictureError: the file is missing, damaged or shorter than `first`; also in mid-iteration.
    """
    reader, expected = PlaneReader(), first
    try:
        with av.open(path, "r", format="mov" if path.suffix == ".mp4" else "matroska") as file:
            stream = file.streams.video[0]
            stream.codec_context.thread_count = 1
            rate = stream.average_rate
            if rate is None or stream.time_base is None:
                raise PictureError(f"shard {path.name!r} has no frame rate; record it again")
            if first:
                file.seek(int(first / rate / stream.time_base), stream=stream)
            for frame in file.decode(stream):
                number = round(float(frame.time or 0) * float(rate))
                if number < first:
                    continue
                if number != expected:
                    raise PictureError(f"shard {path.name!r} lacks frame {expected}; record it again")
                yield reader.read(frame)
                expected += 1
    except (FFmpegError, OSError, IndexError) as error:
        raise PictureError(f"shard {path.name!r} is missing or damaged; record it again") from error
    if expected == first:
        raise PictureError(f"shard {path.name!r} ends before frame {first}; record it again")
