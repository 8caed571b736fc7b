"""The curve of a training run on disk, and its progress bar.

Owns the CSV's form: `step,time,name,value`, a row a number. Called by runs.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class CurveFile:
    """A CSV that grows with every step, and a progress bar with the same numbers; used as a context.

    Args:
        path: of the CSV; one that is there grows.
        title: of the bar.
        steps, done: how many there are, and have been.
    """

    def __init__(self, path: Path, title: str, steps: int, done: int = 0) -> None:
        self._path, self._title, self._steps, self._done = path, title, steps, done
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )  # fmt: skip

    def __enter__(self) -> CurveFile:
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=self._steps, completed=self._done, note="")
        self._file = self._path.open("a", newline="")
        self._writer = csv.writer(self._file)
        if self._path.stat().st_size == 0:
            self._writer.writerow(("step", "time", "name", "value"))
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._file.close()

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write the numbers after step number `step`."""
        now = round(time.time(), 1)
        self._writer.writerows((step, now, name, f"{value:.6g}") for name, value in values.items())
        self._file.flush()
        note = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._progress.update(self._task, completed=step, note=note)
