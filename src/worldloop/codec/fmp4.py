"""Fragmented MP4: a video file that can be played while it is made, one fragment for every chunk of pictures.

Owns the container's form: the header and the first fragment, then a `moof` and an `mdat` for each further chunk. Every
chunk is a closed group of pictures that begins with a key picture, so a fragment is complete the moment its chunk is.
The bytes are a function of the pictures and the codec's build: no clock, no random numbers. Does not own whole files
(`mp4`) or the live stream (`h264`). Called by `session.videos` and the command line.
"""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from worldloop.codec.colour import PlaneWriter, tag_colour
from worldloop.core.errors import EngineError, InvalidInputError, SettingsError

MEDIA_TYPE = "video/mp4"
CRF = 18
"""Constant quality of libx264: no loss that is seen."""

_CONTAINER = {
    # One fragment a container, whatever is in it; times as they are given, so that fragments follow each other.
    "movflags": "frag_custom+empty_moov+default_base_moof+frag_discont+skip_trailer",
    "avoid_negative_ts": "disabled",
    "use_editlist": "0",
    "fflags": "+bitexact",
}
_CODEC = {"preset": "medium", "crf": str(CRF), "x264-params": "bframes=0:scenecut=0:keyint=infinite"}


class FragmentWriter:
    """Turns chunks of one video into its bytes, in order. Not thread-safe.

    Args:
        height, width: of the pictures; even.
        fps: pictures a second, 1 to 240.

    Raises:
        InvalidInputError: a size that 4:2:0 cannot hold.
        SettingsError: `fps` is out of range.
    """

    def __init__(self, *, height: int, width: int, fps: float) -> None:
        if not 1 <= fps <= 240:
            raise SettingsError(f"fps {fps}: must be 1 to 240")
        self._planes = PlaneWriter(height=height, width=width)
        self._size = height, width
        self._rate = Fraction(fps).limit_denominator(1001)
        self._pictures = self._fragments = 0

    def write(self, frames: NDArray[np.uint8]) -> bytes:
        """The file's next bytes: one chunk, uint8 `[T, H, W, 3]`, at least one picture.

        Raises:
            InvalidInputError: no picture, or another shape or type.
            EngineError: the codec failed.
        """
        if frames.ndim != 4 or not len(frames):
            raise InvalidInputError(f"a chunk is {list(frames.shape)}; must be [T, H, W, 3], T at least 1")
        try:
            data = self._container(frames)
        except FFmpegError as error:
            raise EngineError(f"the video encoder failed: {error.strerror}") from error
        self._pictures += len(frames)
        self._fragments += 1
        return data if self._fragments == 1 else data[_fragment_start(data) :]

    def _container(self, frames: NDArray[np.uint8]) -> bytes:
        out = io.BytesIO()
        options = {**_CONTAINER, "fragment_index": str(self._fragments + 1)}
        with av.open(out, "w", format="mp4", options=options) as file:
            stream = file.add_stream("libx264", rate=self._rate)
            stream.height, stream.width = self._size
            stream.options = dict(_CODEC)
            context = stream.codec_context
            context.thread_count, context.time_base = 1, 1 / self._rate
            tag_colour(context)
            for count, picture in enumerate(frames, start=self._pictures):
                planes = self._planes.write(picture)
                planes.pts, planes.time_base = count, 1 / self._rate
                file.mux(stream.encode(planes))
            file.mux(stream.encode(None))
        return out.getvalue()


def boxes(data: bytes) -> list[tuple[str, int, int]]:
    """(kind, first byte, byte after the last) of each box of the outermost level.

    Raises:
        InvalidInputError: the bytes end within a box.
    """
    found, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        if size < 8 or start + size > len(data):
            raise InvalidInputError(f"box at byte {start} says {size} bytes of {len(data) - start}")
        found.append((data[start + 4 : start + 8].decode("latin-1"), start, start + size))
        start += size
    return found


def _fragment_start(data: bytes) -> int:
    return next(start for kind, start, _ in boxes(data) if kind == "moof")
