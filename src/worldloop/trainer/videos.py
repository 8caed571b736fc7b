"""Episodes cut from a folder of videos with a table of what was held when.

The table (one CSV or Parquet file in the folder) has the columns video, time, forward, right, jump, sprint, yaw: from
`time` on, seconds from that video's start, until its next row, these were held. A step's frames were made while time
ran from the frame before them to their last one; its keys are the values held for most of that time, its yaw the mean.

Owns the folder's checks, frame rates and the alignment. Called by `recorder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from worldloop.codec.colour import PlaneReader
from worldloop.codec.mp4 import video_container
from worldloop.codec.still import cover_crop
from worldloop.core.errors import InvalidInputError, PictureError
from worldloop.core.files import file_hash
from worldloop.core.types import Action
from worldloop.trainer.episodes import FRAMES_PER_STEP, NOTHING, Step, check_fps, check_size
from worldloop.trainer.table import ACTIONS, read_columns

VIDEOS = (".mp4", ".mov", ".mkv", ".webm", ".avi")
TABLES = (".csv", ".parquet")
_PROBES = 9
"""Moments of a step at which the table is asked; odd, so that a median is one of the values."""


class VideoEpisodes:
    """Every video of a folder, cut into episodes; one shard a video.

    Args:
        folder: of the videos and the table.
        steps: of an episode at most.
        size: (height, width) that pictures are scaled and cut to; None keeps those of the first video.
        fps: frames a second that all videos are brought to; None keeps theirs, which must then be equal.

    Raises:
        InvalidInputError: no videos, not one table, or a table that is wrong; the message says where.
    """

    def __init__(
        self, folder: Path, *, steps: int, size: tuple[int, int] | None = None, fps: float | None = None
    ) -> None:
        if steps < 1:
            raise InvalidInputError(f"steps is {steps}; an episode has at least 1")
        self.name = folder.name
        files = sorted(path for path in folder.iterdir() if path.is_file())
        self._videos = [path for path in files if path.suffix.lower() in VIDEOS]
        tables = [path for path in files if path.suffix.lower() in TABLES]
        if not self._videos:
            raise InvalidInputError(f"folder {folder.name!r} has no videos ({', '.join(VIDEOS)})")
        if len(tables) != 1:
            raise InvalidInputError(
                f"folder {folder.name!r} has {len(tables)} tables; one .csv or .parquet with the columns video, time, "
                f"{', '.join(ACTIONS)} is needed"
            )
        self._held = _read_held(tables[0], [path.name for path in self._videos])
        self._steps = steps
        facts = [_facts(path) for path in self._videos]
        self._rates = dict(zip(self._videos, (rate for rate, _ in facts), strict=True))
        if fps is None and len(rates := {round(rate, 3) for rate, _ in facts}) > 1:
            raise InvalidInputError(
                f"the videos have frame rates {sorted(rates)}; give fps to bring them to one"
            )
        self.fps = check_fps(fps or facts[0][0], what=self._videos[0].name)
        self.picture = check_size(*(size or facts[0][1]))
        self.settings: dict[str, Any] = {"steps": steps, "table": file_hash(tables[0])}
        self.keys = [f"{path.name} {file_hash(path)}" for path in self._videos]

    def group(self, index: int) -> Iterator[Iterator[Step]]:
        path = self._videos[index]
        frames = enumerate(self._frames(path))
        found = False
        while head := list(islice(frames, FRAMES_PER_STEP + 1)):
            if len(head) == FRAMES_PER_STEP + 1:
                found = True
                yield self._cut(path.name, head, frames)
        if not found:
            raise InvalidInputError(
                f"video {path.name!r} has fewer than {FRAMES_PER_STEP + 1} frames at {self.fps:g} fps"
            )

    def close(self) -> None:
        """Nothing is held between groups."""

    def _cut(
        self,
        name: str,
        head: list[tuple[int, NDArray[np.uint8]]],
        frames: Iterator[tuple[int, NDArray[np.uint8]]],
    ) -> Iterator[Step]:
        """One episode: its first frames, which are there, and what follows."""
        number, start = head[0]
        yield Step(time=0.0, action=NOTHING, frames=start[None])
        group = head[1:]
        for step in range(1, self._steps + 1):
            first = number + FRAMES_PER_STEP * (step - 1)
            if len(group) < FRAMES_PER_STEP:
                return
            yield Step(
                time=(first + 1 - number) / self.fps,
                action=self._action(name, first / self.fps, (first + FRAMES_PER_STEP) / self.fps),
                frames=np.stack([frame for _, frame in group]),
            )
            group = list(islice(frames, FRAMES_PER_STEP)) if step < self._steps else []

    def _action(self, name: str, since: float, until: float) -> Action:
        times, held = self._held[name]
        probes = since + (np.arange(_PROBES) + 0.5) / _PROBES * (until - since)
        rows = held[np.searchsorted(times, probes, side="right")]
        forward, right, jump, sprint = (float(value) for value in np.median(rows[:, :4], axis=0))
        return forward, right, jump, sprint, float(rows[:, 4].mean())

    def _frames(self, path: Path) -> Iterator[NDArray[np.uint8]]:
        """Frames at `fps`, by the video's own time stamps: of each moment the newest frame."""
        shown: NDArray[np.uint8] | None = None
        count, start = 0, 0.0
        # Containers round time stamps.
        slack = 0.5 / max(self.fps, self._rates[path])
        for time, picture in _timed_pictures(path):
            if shown is None:
                start = time
            while shown is not None and count / self.fps + slack <= time - start:
                yield shown
                count += 1
            shown = cover_crop(picture, height=self.picture[0], width=self.picture[1])
        if shown is not None:
            yield shown


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """(container, its video stream) of a file whose kind its first bytes tell."""
    with path.open("rb") as file:
        container = video_container(file.read(64))
        file.seek(0)
        if container is None:
            raise PictureError(f"video {path.name!r} is of no known kind; use MP4, MOV, WebM, MKV or AVI")
        try:
            with av.open(file, "r", format=container) as opened:
                if not opened.streams.video:
                    raise PictureError(f"video {path.name!r} has no video in it")
                opened.streams.video[0].codec_context.thread_count = 1
                yield opened, opened.streams.video[0]
        except FFmpegError as error:
            raise PictureError(f"video {path.name!r} is cut short or damaged; save it again") from error


def _timed_pictures(path: Path) -> Iterator[tuple[float, NDArray[np.uint8]]]:
    reader = PlaneReader()
    with _opened(path) as (opened, stream):
        for frame in opened.decode(stream):
            if frame.time is None:
                raise PictureError(f"video {path.name!r} has frames without a time; save it again as MP4")
            yield frame.time, reader.read(frame)


def _facts(path: Path) -> tuple[float, tuple[int, int]]:
    """(frame rate, (height, width) upright)."""
    with _opened(path) as (opened, stream):
        first = next(opened.decode(stream), None)
        if first is None:
            raise PictureError(
                f"video {path.name!r} has no picture that can be decoded; save it again as MP4"
            )
        height, width = PlaneReader().read(first).shape[:2]
        return float(stream.average_rate or 0), (height, width)


def _read_held(path: Path, names: list[str]) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Of each video: times `[R]`, ascending, and what was held before the first and from each on, `[R + 1, 5]`."""
    columns = read_columns(path)
    if missing := [name for name in ("video", "time", *ACTIONS) if name not in columns]:
        raise InvalidInputError(f"{path.name} lacks the columns {missing}")
    try:
        numbers = np.stack([columns[name].astype(np.float64) for name in ("time", *ACTIONS)], axis=1)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{path.name}: time and actions must be numbers ({error})") from error
    wrong = ~np.isfinite(numbers).all(1) | (np.abs(numbers[:, 1:]) > 1).any(1) | (numbers[:, 0] < 0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidInputError(
            f"{path.name}, row {row + 1}: time {numbers[row, 0]:g}, actions {numbers[row, 1:].tolist()}; "
            "a time must be 0 or more and an action in [-1, 1]"
        )
    listed = columns["video"].astype(str)
    if unknown := sorted(set(listed.tolist()) - set(names)):
        raise InvalidInputError(f"{path.name} names videos that the folder does not have: {unknown}")
    held = {}
    for name in names:
        rows = numbers[listed == name]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        if not len(rows):
            raise InvalidInputError(f"{path.name} has no row for video {name!r}")
        if len(again := rows[1:][rows[1:, 0] == rows[:-1, 0]]):
            raise InvalidInputError(f"{path.name} has two rows for video {name!r} at time {again[0, 0]:g}")
        held[name] = rows[:, 0], np.concatenate((np.zeros((1, 5)), rows[:, 1:]))
    return held
