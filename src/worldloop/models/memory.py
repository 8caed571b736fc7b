"""The memory of one world: a preallocated K/V buffer a block, read as one dense prefix.

    | Z0 : record(0) | RAW : (Y + 1) records, rotating | SUM : (W - Y) * X summary rows, rotating |
    read = buffer[0 : end]                                what runs as it is written
    read = buffer[:], a bias of -inf on rows from `end`   the same in fixed shapes, for `compiled`

Shapes: L blocks, H heads, K head width, N raw tokens, X summary tokens, R = N + X rows a record, Y frames kept whole,
W memory window in frames, P = K / 2 rotation planes. No concatenation and no allocation a frame, and no mask but for
the rows that are not filled: what a frame may see is what is in the buffer. When the next frame begins, the frame that
leaves RAW has its X summary rows copied to SUM; nothing else moves.

Z0's keys are kept once more, unrotated, so that moving them forward in time is always one float32 rotation away from
what was computed and never accumulates rounding. Owned by a `loops.world` state; written by `summaryformer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worldloop.models.rope import RopeTables, rotate


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """Geometry of the buffer.

    Attributes:
        layers, heads, head_dim: of the trunk.
        raw_tokens: N, cells of the latent grid.
        summary_tokens: X.
        raw_window: Y, past frames kept whole.
        window: W, past frames kept at all.
        sink_gap_max: largest distance of the start picture to the oldest frame, in [2, 64].
    """

    layers: int
    heads: int
    head_dim: int
    raw_tokens: int
    summary_tokens: int
    raw_window: int
    window: int
    sink_gap_max: int

    def __post_init__(self) -> None:
        if not 1 <= self.raw_window <= self.window:
            raise ValueError(f"raw_window={self.raw_window} must be in 1..window={self.window}")
        if not 2 <= self.sink_gap_max <= 64:
            raise ValueError(f"sink_gap_max={self.sink_gap_max} must be an integer in [2, 64]")

    @property
    def record(self) -> int:
        """R, rows of one record."""
        return self.raw_tokens + self.summary_tokens

    @property
    def sum_start(self) -> int:
        return self.record * (self.raw_window + 2)

    @property
    def capacity(self) -> int:
        """Rows a block: 6,528 for the published size at W = 24."""
        return self.sum_start + (self.window - self.raw_window) * self.summary_tokens

    def rows_read(self, frame: int) -> int:
        """Rows that frame `frame` reads while it is in the making, its own record included."""
        if frame == 0:
            return self.record
        raw = min(frame, self.raw_window + 1)
        summaries = min(max(frame - 1 - self.raw_window, 0), self.window - self.raw_window)
        return self.record * (1 + raw) + self.summary_tokens * summaries


@dataclass(frozen=True, kw_only=True, slots=True)
class Recency:
    """Additive bias on summary keys by age in frames: 0 up to `flat_until`, then a smooth ramp to -`beta`.

    Attributes:
        flat_until: last age without a bias.
        decay_end: age at which the floor is reached; at most W + 1, the age of eviction.
        beta: depth of the floor, above 0.
        gamma: exponent of the ramp, above 0.
    """

    flat_until: int
    decay_end: int
    beta: float
    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= self.flat_until < self.decay_end:
            raise ValueError(
                f"recency needs 0 <= flat_until < decay_end; got {self.flat_until}, {self.decay_end}"
            )
        if not (self.beta > 0 and self.gamma > 0):
            raise ValueError(f"recency needs beta and gamma above 0; got {self.beta}, {self.gamma}")

    def bias(self, age: int) -> float:
        """The number added to the attention logits of a summary of this age."""
        part = min(max(age - self.flat_until, 0) / (self.decay_end - self.flat_until), 1.0)
        smooth = part * part * (3 - 2 * part)
        return float(-self.beta * smooth**self.gamma)


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
    """The tensors of one memory. All keep their addresses: whatever changes in them changes in place.

    Attributes:
        keys, values: `[L, 1, H, capacity, K]`.
        layers: views of them by block, `[1, H, capacity, K]` each: all keys, then all values.
        sink: the start picture's keys as they were written, float32 `[L, 1, H, R, K]`.
        bias: what is added to the logits of each row, float32 `[capacity]`; -inf for a row that is not filled.
        rows: where the record of the frame in the making is written, int64 `[R]`.
        cos, sin: its rotation, float32 `[R, P]`.
    """

    keys: Tensor
    values: Tensor
    layers: tuple[tuple[Tensor, ...], ...]
    sink: Tensor
    bias: Tensor
    rows: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def allocate(
        cls, config: MemoryConfig, tables: RopeTables, dtype: torch.dtype, device: torch.device | str
    ) -> Buffers:
        """Zeros, but for the rotation of the start picture."""
        shape = (config.layers, 1, config.heads, config.capacity, config.head_dim)
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        cos, sin = tables.record(0)
        return cls(
            keys=keys,
            values=values,
            layers=tuple(tuple(t[i] for i in range(config.layers)) for t in (keys, values)),
            sink=torch.zeros((*shape[:3], config.record, config.head_dim), device=device),
            bias=torch.zeros(config.capacity, device=device),
            rows=torch.zeros(config.record, dtype=torch.int64, device=device),
            cos=cos.to(device),
            sin=sin.to(device),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor once, without the views."""
        return self.keys, self.values, self.sink, self.bias, self.rows, self.cos, self.sin


class Rows(Protocol):
    """What a block of the network writes its record to and reads; arguments and results as of `Memory`."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None: ...

    def read(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]: ...


def memory_bytes(config: MemoryConfig, tables: RopeTables, dtype: torch.dtype) -> int:
    """Bytes of a `Memory` of this geometry, without making one."""
    return sum(tensor.nbytes for tensor in Buffers.allocate(config, tables, dtype, "meta").tensors)


class Memory:
    """K/V buffer of one session, and the ids of what is in it.

    Args:
        config: geometry.
        tables: rotary tables, for the record in the making and to move the start picture's keys.
        recency: bias on summary keys, or None.
        dtype, device: of keys and values.
        buffers: those of a session that is over, to be used again; None allocates.

    Attributes:
        frame: id of the latent frame in the making; 0 while the start picture is written.
        sink_id: frame id at which the start picture's keys stand.
        chases: how often they were moved.
        buffers: what a graph of fixed shapes reads.
    """

    def __init__(
        self,
        config: MemoryConfig,
        tables: RopeTables,
        *,
        recency: Recency | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        buffers: Buffers | None = None,
    ) -> None:
        if recency is not None and recency.decay_end > config.window + 1:
            raise ValueError(
                f"recency decay_end={recency.decay_end} must be at most W + 1 = {config.window + 1}"
            )
        self.config = config
        self.recency = recency
        self._tables = tables
        self.buffers = buffers or Buffers.allocate(config, tables, dtype, device)
        self.keys, self.values, self._sink = self.buffers.keys, self.buffers.values, self.buffers.sink
        self.bias = self.buffers.bias
        self._summary_bias = None if recency is None else self._bias_by_slot(recency)
        self._begin()
        if buffers is not None:
            self._clear()

    def reset(self) -> None:
        """Forget everything; the next record written is the start picture's."""
        self._begin()
        self._clear()

    @property
    def end(self) -> int:
        """Rows that the frame in the making reads."""
        return self.config.rows_read(self.frame)

    @property
    def oldest(self) -> int:
        """Id of the oldest body frame in memory."""
        return max(1, self.frame - self.config.window)

    @property
    def bytes(self) -> int:
        """Bytes held, constant from construction on."""
        return sum(t.nbytes for t in self.buffers.tensors)

    @property
    def rope(self) -> tuple[Tensor, Tensor]:
        """(cos, sin) of the record in the making, `[R, P]`; refreshed in place by `advance`."""
        return self.buffers.cos, self.buffers.sin

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the record of the frame in the making, `[1, H, R, K]`; overwrites what an earlier pass stored."""
        start = 0 if self.frame == 0 else self._raw_start(self.frame)
        rows = slice(start, start + self.config.record)
        self.keys[layer, :, :, rows] = keys
        self.values[layer, :, :, rows] = values
        if self.frame == 0:
            self._sink[layer] = keys

    def read(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """(keys, values, bias): views of the filled prefix, `[1, H, end, K]` and `[end]` or None."""
        end = self.end
        bias = None if self.recency is None else self.bias[:end]
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end], bias

    def advance(self) -> None:
        """The frame in the making is committed; begin the next one. IndexError past the rotary table's end."""
        self.frame += 1
        leaving = self.frame - 1 - self.config.raw_window
        if leaving >= 1:
            self._summarise(leaving)
        if self.oldest - self.sink_id >= self.config.sink_gap_max:
            self._chase(self.oldest - 1)
        self._refresh()

    def contents(self) -> dict[str, Tensor]:
        """What `restore` takes beside the counters: copies of the rows read and of the sink, by name.

        The record in the making is zeros: whoever goes on writes it first.
        """
        keys, values = (t[..., : self.end, :].clone() for t in (self.keys, self.values))
        start = 0 if self.frame == 0 else self._raw_start(self.frame)
        for tensor in (keys, values):
            tensor[..., start : start + self.config.record, :] = 0
        return {"keys": keys, "values": values, "sink": self._sink}

    def restore(self, contents: Mapping[str, Tensor], *, frame: int, sink_id: int, chases: int) -> None:
        """Hold what another memory of this geometry held, in place. No contents stand for an empty memory."""
        self.reset()
        self.frame, self.sink_id, self.chases = frame, sink_id, chases
        for name, tensor in contents.items():
            target = self._sink if name == "sink" else getattr(self, name)[..., : self.end, :]
            target.copy_(tensor)
        self._refresh()

    def rows(self) -> list[tuple[int, str]]:
        """(frame id, kind) of each row that is read, kind `z0`, `raw`, `raw-summary` or `summary`. For inspection."""
        c = self.config
        result: list[tuple[int, str]] = [(0, "z0")] * c.record
        if self.frame == 0:
            return result
        for slot in range(min(self.frame, c.raw_window + 1)):
            newest = self.frame - (self.frame - 1 - slot) % (c.raw_window + 1)
            result += [(newest, "raw")] * c.raw_tokens + [(newest, "raw-summary")] * c.summary_tokens
        for slot, frame in enumerate(self._summary_frames()):
            assert slot == self._sum_slot(frame)
            result += [(frame, "summary")] * c.summary_tokens
        return result

    def _raw_start(self, frame: int) -> int:
        c = self.config
        return c.record * (1 + (frame - 1) % (c.raw_window + 1))

    def _sum_slot(self, frame: int) -> int:
        return (frame - 1) % (self.config.window - self.config.raw_window)

    def _sum_start(self, frame: int) -> int:
        return self.config.sum_start + self.config.summary_tokens * self._sum_slot(frame)

    def _summary_frames(self) -> list[int]:
        """Frames whose summaries are in SUM, in slot order."""
        c = self.config
        newest = self.frame - 1 - c.raw_window
        frames = range(max(1, newest - (c.window - c.raw_window) + 1), newest + 1)
        return sorted(frames, key=self._sum_slot)

    def _summarise(self, leaving: int) -> None:
        c = self.config
        if c.window == c.raw_window:
            return
        source = self._raw_start(leaving) + c.raw_tokens
        target = self._sum_start(leaving)
        for buffer in (self.keys, self.values):
            buffer[..., target : target + c.summary_tokens, :] = buffer[
                ..., source : source + c.summary_tokens, :
            ]

    def _chase(self, sink_id: int) -> None:
        cos, sin = self._tables.forward_in_time(sink_id)
        self.keys[..., : self.config.record, :] = rotate(self._sink, cos, sin).to(self.keys.dtype)
        self.sink_id = sink_id
        self.chases += 1

    def _begin(self) -> None:
        self.frame = 0
        self.sink_id = 0
        self.chases = 0
        self.bias.fill_(float("-inf"))
        self._refresh()

    def _clear(self) -> None:
        """Zeros, so that a row that is read with no weight is a number."""
        self.keys.zero_()
        self.values.zero_()

    def _refresh(self) -> None:
        """What the frame in the making needs to know about itself: where it writes and stands, what it reads."""
        b, end = self.buffers, self.end
        start = 0 if self.frame == 0 else self._raw_start(self.frame)
        torch.arange(start, start + self.config.record, out=b.rows)
        self._tables.place(self.frame, b.cos, b.sin)
        self.bias[:end] = 0.0
        newest = self.frame - 1 - self.config.raw_window
        if self._summary_bias is not None and end > self.config.sum_start:
            turned = self._summary_bias.roll(self.config.summary_tokens * (self._sum_slot(newest) + 1))
            self.bias[self.config.sum_start : end] = turned[: end - self.config.sum_start]

    def _bias_by_slot(self, recency: Recency) -> Tensor:
        """Bias of every row of SUM when the newest summary is in the last slot."""
        c = self.config
        by_age = [recency.bias(age) for age in range(c.window, c.raw_window, -1)]
        return torch.tensor(by_age, device=self.bias.device).repeat_interleave(c.summary_tokens)
