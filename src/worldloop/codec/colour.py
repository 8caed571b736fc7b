"""RGB pictures to 4:2:0 planes and back, and the colour tags that say how.

Owns the one choice of matrix and range, so that encoder, decoder and files agree. Does not own any codec.
Used by `h264` and `mp4`.

The matrix is BT.601, limited range, with BT.709 primaries and transfer (those of sRGB displays). Chromium's
software conversion of that matrix is within one level of the source on flat colours; its BT.709 conversion is
up to nine levels off. Chroma is the mean of each 2x2 block, which keeps more of hard-edged art than smoother
kernels do, and is read back unsmoothed, as Chromium's software path reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import av
import numpy as np
from av.video.reformatter import (
    ColorPrimaries,
    ColorRange,
    Colorspace,
    ColorTrc,
    Interpolation,
    VideoReformatter,
)
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

_SMPTE170M = 6
_ENCODE_FILTER = Interpolation.AREA | Interpolation.ACCURATE_RND
_DECODE_FILTER = Interpolation.POINT | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND


def tag_colour(context: VideoCodecContext) -> None:
    """Write the colour tags into an encoder's context, once its other options are set and before it opens."""
    context.pix_fmt = "yuv420p"
    context.color_range = ColorRange.MPEG
    context.colorspace = _SMPTE170M
    context.color_primaries = ColorPrimaries.BT709
    context.color_trc = ColorTrc.BT709
    # The mean of a block lies at its centre. Untagged, a reader takes it half a pixel to the left.
    context.options = {**context.options, "chroma_sample_location": "center"}


class PlaneWriter:
    """Turns RGB pictures of one size into tagged 4:2:0 frames, through one buffer that is kept.

    Args:
        height: rows of the pictures; `height * scale` must be even.
        width: columns of the pictures; `width * scale` must be even.
        scale: every pixel becomes a square of this side. At 2, chroma subsampling loses nothing.

    Raises:
        InvalidInputError: a size that 4:2:0 cannot hold.
    """

    def __init__(self, *, height: int, width: int, scale: int = 1) -> None:
        if height < 1 or width < 1 or scale < 1:
            raise InvalidInputError(f"picture size {width}x{height} at scale {scale}: each must be 1 or more")
        if height * scale % 2 or width * scale % 2:
            raise InvalidInputError(
                f"picture size {width * scale}x{height * scale}: width and height must be even: 4:2:0 video "
                "stores colour for blocks of 2x2 pixels"
            )
        self.height, self.width, self.scale = height, width, scale
        self._pixels = np.zeros((height * scale, width * scale, 3), np.uint8)
        self._blocks = self._pixels.reshape(height, scale, width, scale, 3)
        self._source = av.VideoFrame.from_numpy_buffer(self._pixels, format="rgb24")
        self._reformatter = VideoReformatter()

    def write(self, picture: NDArray[np.uint8]) -> av.VideoFrame:
        """One picture, uint8 `[height, width, 3]`, as a new frame `[height * scale, width * scale]`.

        Raises:
            InvalidInputError: another shape or type.
        """
        expected = (self.height, self.width, 3)
        if picture.shape != expected or picture.dtype != np.uint8:
            raise InvalidInputError(
                f"picture is {picture.dtype} {list(picture.shape)}; this stream takes uint8 {list(expected)}"
            )
        self._blocks[:] = picture[:, None, :, None, :]
        return self._reformatter.reformat(
            self._source,
            format="yuv420p",
            src_color_range=ColorRange.JPEG,
            dst_color_range=ColorRange.MPEG,
            dst_colorspace=Colorspace.ITU601,
            interpolation=_ENCODE_FILTER,
            threads=1,
        )


class PlaneReader:
    """Turns decoded frames into RGB pictures by the frame's own colour tags."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def read(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        """One frame as uint8 `[H, W, 3]`, turned upright when the file says that it is rotated."""
        rgb = self._reformatter.reformat(
            frame,
            format="rgb24",
            dst_color_range=ColorRange.JPEG,
            interpolation=_DECODE_FILTER,
            threads=1,
        )
        picture = np.asarray(rgb.to_ndarray(), np.uint8)
        quarter_turns = round(frame.rotation / 90) % 4
        return np.ascontiguousarray(np.rot90(picture, quarter_turns)) if quarter_turns else picture
