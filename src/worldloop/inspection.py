"""What checkpoint files hold, as an operator reads it: facts of the config, and counts from the file's header.

Owns the choice of facts and their wording. Does not own what is refused (`models.registry`); weights are never read.
Called by the command line, which prints.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from worldloop.core.errors import CheckpointError
from worldloop.models.registry import Entry, find_world, read_entry, scan_report

DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
}
"""Names of number formats in a safetensors header, as torch calls them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """Checkpoints of a file or folder.

    Attributes:
        entries: what could be served.
        refusals: what could not, in the order of the files.
    """

    entries: tuple[Entry, ...]
    refusals: tuple[CheckpointError, ...] = ()

    @classmethod
    def of(cls, path: Path) -> Inspection:
        """Read a file, or every file of a folder or a shipped world past those that are refused.

        Raises:
            CheckpointError: the one file is refused.
            InvalidInputError: there is no such file, folder or world.
        """
        if path.is_file():
            return cls(entries=(read_entry(path),))
        report = scan_report(find_world(str(path)))
        return cls(entries=tuple(report.entries.values()), refusals=tuple(report.refusals))

    def to_dict(self) -> dict[str, Any]:
        """JSON: `{"checkpoints": facts by model id, "refused": [{"file", "problem", "key", "found", "allowed"}]}`."""
        return {
            "checkpoints": {entry.name.model_id: facts(entry) for entry in self.entries},
            "refused": [
                {
                    "file": refusal.file,
                    "problem": refusal.problem,
                    "key": refusal.key,
                    "found": refusal.found,
                    "allowed": refusal.allowed,
                }
                for refusal in self.refusals
            ],
        }


def facts(entry: Entry) -> dict[str, Any]:
    """The entry of `GET /models`; and bytes, number of weights by number format, licence, training data."""
    return entry.details() | {
        "bytes": entry.path.stat().st_size,
        "weights": weight_counts(entry.path),
        "license": entry.config.saved["license"],
        "trained_on": entry.config.saved["trained_on"],
    }


def rows(entry: Entry) -> dict[str, str]:
    """The same for people, by name."""
    line, whole = entry.line(), facts(entry)
    counts = ", ".join(f"{count:,} {dtype}" for dtype, count in whole["weights"].items())
    return {
        "recipe": entry.name.recipe or "not named",
        "timesteps": ", ".join(str(step) for step in entry.config.timesteps),
        "cache mode": entry.config.cache_mode,
        "recency": str(line["recency"]),
        "start picture's gap": f"at most {line['gap']} frames",
        "focus": str(line["focus"]),
        "X / Y / W": f"{line['X']} summaries, {line['Y']} raw frames, window {line['W']}",
        "schedule": str(line["schedule"]),
        "training step": "not told" if line["step"] is None else f"{line['step']:,}",
        "profile": str(line["profile"]),
        "controls": " ".join(entry.profile["controls"]),
        "weights": counts,
        "file": f"{entry.path.name}, {whole['bytes'] / 1e6:.1f} MB",
        "licence": whole["license"] or "not told",
        "trained on": whole["trained_on"] or "not told",
    }


def weight_counts(path: Path) -> dict[str, int]:
    """Number of weights by number format, most first, from shapes alone.

    Raises:
        CheckpointError: the file is not readable.
    """
    counts: Counter[str] = Counter()
    try:
        if path.suffix == ".pt":
            # Mapped: the values stay on disk.
            for value in torch.load(path, map_location="cpu", weights_only=True, mmap=True)["model"].values():
                counts[str(value.dtype).removeprefix("torch.")] += value.numel()
        else:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 -- not a dict
                    part = file.get_slice(key)
                    counts[DTYPES.get(part.get_dtype(), part.get_dtype())] += math.prod(part.get_shape())
    except Exception as error:
        raise CheckpointError(path.name, f"its header is not readable: {type(error).__name__}") from error
    return dict(counts.most_common())
