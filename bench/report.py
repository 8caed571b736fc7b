"""What every bench's report has: the machine it ran on, a table on the terminal, a JSON file.

Called by the benches of this folder.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
Row = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A figure that must be below its limit; NaN, a figure of nothing, is not."""

    name: str
    found: float
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        return self.found < self.limit

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{self.found:.2f} {self.unit}, target below {self.limit:g} {self.unit}: {verdict}"


def environment(*, dtype: torch.dtype | str, threads: int | None = None) -> dict[str, Any]:
    """CPU, cores, threads, versions, number format, load and commit of this run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads() if threads is None else threads,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "commit": _commit(),
    }


def publish(
    title: str, where: dict[str, Any], rows: Sequence[Row], result: dict[str, Any], file: Path | None
) -> None:
    """Print the table; write `{"bench", "environment", "result"}` to `file` when there is one."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    caption = ", ".join(
        f"{key} {where[key]}" for key in ("cpu", "cores", "threads", "dtype", "torch", "commit", "load")
    )
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print(caption, highlight=False)
    if file is not None:
        file.write_text(json.dumps({"bench": title, "environment": where, "result": result}, indent=1) + "\n")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def memory_bytes(pid: int | str = "self", *, peak: bool = False) -> int:
    """Bytes of a process on Linux: resident at its highest, or what it has allocated and holds now.

    The latter leaves out pages of files (libraries, weights), which the system takes and gives back as it likes.
    """
    key = "VmHWM:" if peak else "RssAnon:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no {key} line")


def thread_seconds(pid: int, thread: int) -> float:
    """Processor seconds that one thread of a process has used, on Linux, to a hundredth of a second.

    A process's first thread has the process's own number.
    """
    fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or "unknown"
