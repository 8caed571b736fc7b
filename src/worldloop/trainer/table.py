"""The table of a recording: which action was held while which frames were made.

Columns: episode, step, shard, frame, time, forward, right, jump, sprint, yaw. Row 0 of an episode is its first
picture, one frame and no action; every further row is one latent frame: the 4 RGB frames of the shard from number
`frame` on, made while the row's action was held. `time` is that of the first of them, seconds from the episode's start.

Owns Parquet and CSV. pyarrow is loaded on use, because training on the simulator must not need it. Called by
`recorder`, `recorded` and `videos`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError, SettingsError
from worldloop.core.files import replacing
from worldloop.core.types import Action

ACTIONS = ("forward", "right", "jump", "sprint", "yaw")
TABLE = "actions.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One step in the table; see the module's docstring."""

    episode: int
    step: int
    shard: int
    frame: int
    time: float
    action: Action


def write_table(path: Path, rows: list[Row]) -> None:
    """The table of actions, whole or not at all."""
    pa, parquet = _arrow("pyarrow"), _arrow("pyarrow.parquet")
    whole = {
        name: pa.array([getattr(row, name) for row in rows], pa.int32())
        for name in ("episode", "step", "shard")
    }
    columns = {
        **whole,
        "frame": pa.array([row.frame for row in rows], pa.int64()),
        "time": pa.array([row.time for row in rows], pa.float64()),
        **{name: pa.array([row.action[i] for row in rows], pa.float32()) for i, name in enumerate(ACTIONS)},
    }
    with replacing(path) as partial:
        parquet.write_table(pa.table(columns), partial)


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """Every column of a Parquet or CSV file as an array.

    Raises:
        InvalidInputError: it cannot be read as a table.
        SettingsError: pyarrow is missing.
    """
    pa = _arrow("pyarrow")
    try:
        if path.suffix == ".csv":
            table = _arrow("pyarrow.csv").read_csv(path)
        else:
            table = _arrow("pyarrow.parquet").read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInputError(f"{path.name} cannot be read as a table: {error}") from error
    return {name: table[name].to_numpy() for name in table.column_names}


def read_table(path: Path) -> list[Row]:
    """The rows that `write_table` wrote.

    Raises:
        InvalidInputError: not such a table.
    """
    columns = read_columns(path)
    names = ("episode", "step", "shard", "frame", "time", *ACTIONS)
    if missing := [name for name in names if name not in columns]:
        raise InvalidInputError(f"{path.name} lacks the columns {missing}; record again")
    return [
        Row(
            episode=int(e),
            step=int(s),
            shard=int(n),
            frame=int(f),
            time=float(t),
            action=(a0, a1, a2, a3, a4),
        )
        for e, s, n, f, t, a0, a1, a2, a3, a4 in zip(*(columns[name].tolist() for name in names), strict=True)
    ]


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingsError("recordings need pyarrow; pip install 'worldloop[train]'") from error
