"""Rotary positions over time, row and column, with the level axis. Pure tables and one rotation.

Shapes: N raw tokens, X summary tokens, R = N + X rows of a record, P = head_dim / 2 rotation planes.
Planes are laid out as `[time | level | row | column]`; plane p turns the pair (x[p], x[P + p]).

The two slowest time planes hardly turn inside a memory window, so they are taken from time and hold the level: raw
tokens angle 0, summary tokens a quarter turn. Summary tokens have no place on the grid: identity on row and column.
Called by `memory` (to move the start picture's keys) and `summaryformer`. Rotary embedding: Su et al., 2021
(arXiv:2104.09864); the level axis and the moving sink follow the Summaryformer model card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEVEL_PLANES = 2
TRAINED_ROWS = 1024
"""Frames over which the level planes must be idle (the trained table's length)."""
MAX_IDLE_TURN = 0.5
"""Radians that a level plane may turn over `TRAINED_ROWS` frames and still count as idle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeConfig:
    """Geometry of the rotary tables.

    Attributes:
        head_dim: a multiple of 32; 3/8 of it is time, the rest row and column in equal parts.
        grid: (rows, columns) of the latent grid.
        summary_tokens: X.
        base: wavelength base of the time axis.
        spatial_base: wavelength base of the row and column axes.
        table_len: frame ids that have a row; a session ends or starts over when it reaches this.
    """

    head_dim: int
    grid: tuple[int, int]
    summary_tokens: int
    base: float = 10_000.0
    spatial_base: float = 10_000.0
    table_len: int = 4096

    def __post_init__(self) -> None:
        if self.head_dim < 32 or self.head_dim % 32:
            raise ValueError(f"head_dim={self.head_dim} must be a multiple of 32, such as 64")
        turns = [TRAINED_ROWS * f for f in self.time_frequencies[-LEVEL_PLANES:].tolist()]
        if max(turns) > MAX_IDLE_TURN:
            raise ValueError(
                f"the two slowest of {self.time_planes} time planes at base {self.base:g} turn "
                f"{turns[0]:.2f} and {turns[1]:.2f} rad over {TRAINED_ROWS} frames; they hold the level axis only when "
                f"idle (at most {MAX_IDLE_TURN} rad): use a larger head_dim or base"
            )

    @property
    def planes(self) -> int:
        return self.head_dim // 2

    @property
    def time_planes(self) -> int:
        """Planes of the time axis, the two level planes included."""
        return self.head_dim * 3 // 16

    @property
    def spatial_planes(self) -> int:
        """Planes of the row axis, and of the column axis."""
        return (self.planes - self.time_planes) // 2

    @property
    def time_frequencies(self) -> Tensor:
        """Radians a frame of every time plane, float64 `[time_planes]`, fastest first."""
        exponent = torch.arange(self.time_planes, dtype=torch.float64) / self.time_planes
        return self.base**-exponent

    @property
    def moving_planes(self) -> int:
        """Time planes that turn with the frame id."""
        return self.time_planes - LEVEL_PLANES


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every plane of `x [..., 2P]` by the angle whose cosine and sine are given, `[..., P]`."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class RopeTables:
    """Cosines and sines of a record at any frame id, float32, made in float64.

    Args:
        config: geometry.
        device: where the tables live.
    """

    def __init__(self, config: RopeConfig, device: torch.device | str = "cpu") -> None:
        self.config = config
        ids = torch.arange(config.table_len, dtype=torch.float64)
        time = ids[:, None] * config.time_frequencies[None, : config.moving_planes]
        self._time_cos = time.cos().float().to(device)
        self._time_sin = time.sin().float().to(device)
        fixed = _level_and_place(config)
        self._fixed_cos = fixed.cos().float().to(device)
        self._fixed_sin = fixed.sin().float().to(device)

    def record(self, frame_id: int) -> tuple[Tensor, Tensor]:
        """(cos, sin) of all rows of one record, `[R, P]`. IndexError past the table's end."""
        return self.records(torch.tensor([frame_id]))

    def records(self, frame_ids: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) of the records with ids `[T]`, concatenated to `[T * R, P]`; for T = 1 `[R, P]`."""
        rows = self._fixed_cos.shape[0]
        index = frame_ids.to(self._time_cos.device)
        cos = torch.cat((_spread(self._time_cos[index], rows), self._fixed_cos.repeat(len(index), 1)), dim=-1)
        sin = torch.cat((_spread(self._time_sin[index], rows), self._fixed_sin.repeat(len(index), 1)), dim=-1)
        return cos, sin

    def place(self, frame_id: int, cos: Tensor, sin: Tensor) -> None:
        """Change `record(...)` of any frame to that of `frame_id`, in place. IndexError past the table's end."""
        cos[:, : self.config.moving_planes] = self._time_cos[frame_id]
        sin[:, : self.config.moving_planes] = self._time_sin[frame_id]

    def forward_in_time(self, frames: int) -> tuple[Tensor, Tensor]:
        """(cos, sin) `[P]` that moves a stored key `frames` into the future; level and place stay."""
        still = self.config.planes - self.config.moving_planes
        cos = torch.cat((self._time_cos[frames], self._time_cos.new_ones(still)))
        sin = torch.cat((self._time_sin[frames], self._time_sin.new_zeros(still)))
        return cos, sin


def _spread(table: Tensor, rows: int) -> Tensor:
    return table.repeat_interleave(rows, dim=0)


def _level_and_place(config: RopeConfig) -> Tensor:
    """Angles of the planes that no frame id changes, float64 `[R, P - moving_planes]`."""
    height, width = config.grid
    count = config.spatial_planes
    frequencies = config.spatial_base ** -(torch.arange(count, dtype=torch.float64) / count)
    row = torch.arange(height, dtype=torch.float64).repeat_interleave(width)
    column = torch.arange(width, dtype=torch.float64).repeat(height)
    level = torch.zeros(height * width, LEVEL_PLANES, dtype=torch.float64)
    raw = torch.cat((level, row[:, None] * frequencies, column[:, None] * frequencies), dim=-1)
    summary = torch.zeros(config.summary_tokens, raw.shape[1], dtype=torch.float64)
    summary[:, :LEVEL_PLANES] = math.pi / 2
    return torch.cat((raw, summary), dim=0)
