"""The live stream: one picture in, one H.264 access unit out, with no delay, and back.

Owns the encoder's settings and the shape of its output: Annex-B, baseline, no B frames, parameter sets before
every key frame, so that a decoder can join at any of them. Does not own pacing or the byte that marks a key
frame on the wire. An encoder belongs to one session and is not thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import av
import numpy as np
from av.codec.context import Flags
from av.error import FFmpegError
from av.video.frame import PictureType
from numpy.typing import NDArray

from worldloop.codec.colour import PlaneReader, PlaneWriter, tag_colour
from worldloop.core.errors import EngineError, InvalidInputError, SessionEndedError, SettingsError

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

ENCODERS: dict[str, dict[str, str]] = {
    "libx264": {"preset": "ultrafast", "tune": "zerolatency", "profile": "baseline", "forced-idr": "1"},
    "h264_nvenc": {
        "preset": "p1",
        "tune": "ull",
        "profile": "baseline",
        "delay": "0",
        "zerolatency": "1",
        "forced-idr": "1",
    },
}
"""Encoders that give one access unit a picture, with the options that make them do so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessUnit:
    """One coded picture: Annex-B bytes, and whether a decoder can start here."""

    data: bytes
    key: bool


class H264Encoder:
    """Low-latency encoder of one stream: one access unit for every `encode`; the first is a key frame.

    Args:
        height: rows of the pictures that come in.
        width: columns of the pictures that come in.
        fps: rate that the rate control assumes; the caller may send at another.
        bitrate: target in bits a second.
        gop: a key frame every this many pictures.
        encoder: a name out of `ENCODERS`.
        crf: constant quality, 0 (best) to 51, in place of the target rate; libx264 only.
        scale: enlarge every pixel to a square of this side; the stream is `scale` times the picture's size.

    Raises:
        InvalidInputError: a size that is odd after scaling.
        SettingsError: another setting is out of range, or the encoder is not on this machine.
    """

    def __init__(
        self,
        *,
        height: int,
        width: int,
        fps: float = 35.0,
        bitrate: int = 4_000_000,
        gop: int = 120,
        encoder: str = "libx264",
        crf: float | None = None,
        scale: int = 1,
    ) -> None:
        self._writer = PlaneWriter(height=height, width=width, scale=scale)
        _check_settings(fps=fps, bitrate=bitrate, gop=gop, encoder=encoder, crf=crf)
        rate = Fraction(fps).limit_denominator(1001)
        try:
            context = cast("VideoCodecContext", av.CodecContext.create(encoder, "w"))
        except ValueError as error:
            raise SettingsError(f"encoder {encoder!r} is not part of this machine's FFmpeg") from error
        context.height, context.width = height * scale, width * scale
        context.framerate, context.time_base = rate, 1 / rate
        context.gop_size, context.max_b_frames = gop, 0
        # One thread: x264 would cut so small a picture into slices, and the cores belong to the model.
        context.thread_count = 1
        context.options = dict(ENCODERS[encoder])
        if crf is None:
            context.bit_rate = bitrate
        else:
            context.options |= {"crf": str(crf)}
        tag_colour(context)
        try:
            context.open()
        except FFmpegError as error:
            raise SettingsError(
                f"encoder {encoder!r} does not start on this machine ({error.strerror}); try libx264"
            ) from error
        self._context: VideoCodecContext | None = context
        self._count = 0

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the coded pictures."""
        return self._writer.height * self._writer.scale, self._writer.width * self._writer.scale

    def encode(self, frame: NDArray[np.uint8], *, key: bool = False) -> AccessUnit:
        """Code one picture, uint8 `[H, W, 3]`; `key` makes it a key frame out of turn.

        Raises:
            InvalidInputError: another shape or type than the stream's.
            SessionEndedError: the encoder is closed.
            EngineError: the codec failed, or held the picture back.
        """
        if self._context is None:
            raise SessionEndedError("the encoder is closed; make a new one for a new stream")
        planes = self._writer.write(frame)
        planes.pts = self._count
        if key:
            planes.pict_type = PictureType.I
        try:
            packets = self._context.encode(planes)
        except FFmpegError as error:
            raise EngineError(f"encoder {self._context.name!r} failed: {error.strerror}") from error
        if len(packets) != 1:
            raise EngineError(f"encoder {self._context.name!r} gave {len(packets)} units for one picture")
        self._count += 1
        return AccessUnit(data=bytes(packets[0]), key=bool(packets[0].is_keyframe))

    def close(self) -> None:
        """Free the codec. May be called twice."""
        self._context = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class H264Decoder:
    """Reads what `H264Encoder` writes; for tests, recordings and Python clients. Not thread-safe."""

    def __init__(self) -> None:
        self._context = av.CodecContext.create("h264", "r")
        self._context.thread_count = 1
        self._context.flags |= Flags.low_delay
        self._reader = PlaneReader()

    def decode(self, data: bytes) -> list[NDArray[np.uint8]]:
        """Pictures, uint8 `[H, W, 3]`, that one access unit completes.

        Raises:
            InvalidInputError: the bytes are no access unit that fits the stream so far.
        """
        return self._decode(av.Packet(data))

    def flush(self) -> list[NDArray[np.uint8]]:
        """Pictures that are still held back; the decoder then starts anew at a key frame."""
        pictures = self._decode(None)
        self._context.flush_buffers()
        return pictures

    def _decode(self, packet: av.Packet[Any] | None) -> list[NDArray[np.uint8]]:
        try:
            frames = self._context.decode(packet)
        except FFmpegError as error:
            raise InvalidInputError(
                f"not a readable H.264 access unit ({error.strerror}); a stream starts at a key frame"
            ) from error
        return [self._reader.read(frame) for frame in frames]


def _check_settings(*, fps: float, bitrate: int, gop: int, encoder: str, crf: float | None) -> None:
    if not 1 <= fps <= 240:
        raise SettingsError(f"fps {fps}: must be 1 to 240")
    if bitrate < 10_000:
        raise SettingsError(f"bitrate {bitrate}: must be 10000 bits a second or more")
    if gop < 1:
        raise SettingsError(f"gop {gop}: must be 1 picture or more")
    if encoder not in ENCODERS:
        raise SettingsError(f"encoder {encoder!r}: must be one of {', '.join(sorted(ENCODERS))}")
    if crf is not None and (encoder != "libx264" or not 0 <= crf <= 51):
        raise SettingsError(f"crf {crf} with {encoder}: must be 0 to 51, and only libx264 takes it")
