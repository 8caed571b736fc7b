"""The buffer alone: its size, what is in it, how far apart things get, and keys that were moved 10,000 times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.models.memory import Buffers, Memory, MemoryConfig, Recency
from worldloop.models.rope import RopeConfig, RopeTables, rotate
from worldloop.models.summaryformer import SummaryformerConfig

from .reference import Geometry, angles, recency_bias, turn

SMALL = MemoryConfig(
    layers=1, heads=1, head_dim=64, raw_tokens=2, summary_tokens=1, raw_window=2, window=6, sink_gap_max=5
)
FRAMES = 10_000
FLOAT32_DRIFT = 1e-6
BFLOAT16_DRIFT = 2.0**-8
"""Largest drift of a key of 64 normals, relative to its largest number: one rounding to bfloat16's 8 bits."""


def memory(
    config: MemoryConfig = SMALL, dtype: torch.dtype = torch.float32, kind: type[Memory] = Memory
) -> Memory:
    rope = RopeConfig(
        head_dim=config.head_dim, grid=(1, config.raw_tokens), summary_tokens=config.summary_tokens,
        table_len=FRAMES + 64,
    )  # fmt: skip
    return kind(config, RopeTables(rope), dtype=dtype)


def write(buffer: Memory, value: Tensor | float) -> None:
    c = buffer.config
    rows = torch.zeros(1, c.heads, c.record, c.head_dim) + value
    for layer in range(c.layers):
        buffer.write(layer, rows, rows)


def test_the_published_size_holds_6528_keys_instead_of_26208() -> None:
    config = SummaryformerConfig.named("gta").memory

    assert config.record == 1104
    assert config.capacity == 6528
    assert config.raw_tokens * (config.window + 2) == 26_208, "were every frame kept whole"
    assert replace(config, window=16).capacity == 1104 + 3 * 1104 + 14 * 96


def test_the_buffer_grows_while_it_fills_and_then_stays() -> None:
    buffer = memory()
    ends = []
    for _ in range(12):
        ends.append(buffer.end)
        assert buffer.end == len(buffer.rows()) == buffer.read(0)[0].shape[2]
        write(buffer, 0.0)
        buffer.advance()

    assert ends == [3, 6, 9, 12, 13, 14, 15, 16, 16, 16, 16, 16]
    assert ends[-1] == SMALL.capacity


def test_rows_hold_what_they_say() -> None:
    buffer = memory()
    for frame in range(40):
        write(buffer, float(frame))
        rows = buffer.rows()
        assert [float(v) for v in buffer.read(0)[1][0, 0, :, 0]] == [float(of) for of, _ in rows]
        ages = {kind: sorted({frame - of for of, k in rows if k == kind}) for kind in ("raw", "summary")}
        assert ages["raw"] == ([] if frame == 0 else list(range(min(frame, 3))))
        assert ages["summary"] == list(range(3, min(frame - 1, 6) + 1))
        buffer.advance()


def held(memory: Memory) -> int:
    """Bytes of every storage that a memory holds, in attributes, buffers or lists."""
    return sum(storage.nbytes() for storage in _storages(memory).values())


def _storages(thing: Any) -> dict[int, torch.UntypedStorage]:
    if isinstance(thing, Tensor):
        return {thing.data_ptr(): thing.untyped_storage()} if thing.storage_offset() == 0 else {}
    if isinstance(thing, Buffers):
        thing = thing.tensors
    parts = (
        vars(thing).values()
        if isinstance(thing, Memory)
        else thing
        if isinstance(thing, list | tuple)
        else ()
    )
    return {key: storage for part in parts for key, storage in _storages(part).items()}


class Hoarder(Memory):
    """Keeps every summary that it ever had."""

    def advance(self) -> None:
        self.__dict__.setdefault("hoard", []).append(self.keys[..., -1:, :].clone())
        super().advance()


def run_to(buffer: Memory, frames: int) -> Iterator[int]:
    generator = torch.Generator().manual_seed(0)
    while buffer.frame < frames:
        write(buffer, torch.randn(buffer.config.head_dim, generator=generator))
        buffer.advance()
        yield buffer.frame


def growth(kind: type[Memory]) -> int:
    """Bytes held at frame 10,000 beyond those at frame W."""
    buffer = memory(kind=kind)
    sizes = {frame: held(buffer) for frame in run_to(buffer, FRAMES) if frame in (SMALL.window, FRAMES)}
    assert held(memory()) == memory().bytes
    return sizes[FRAMES] - sizes[SMALL.window]


def test_memory_is_flat_to_frame_10000() -> None:
    buffer = memory()
    place = buffer.keys.data_ptr(), buffer.values.data_ptr(), buffer.bias.data_ptr()
    sizes = {(buffer.bytes, buffer.end) for frame in run_to(buffer, FRAMES) if frame > SMALL.window}

    assert sizes == {(memory().bytes, SMALL.capacity)}
    assert place == (buffer.keys.data_ptr(), buffer.values.data_ptr(), buffer.bias.data_ptr())
    assert growth(Memory) == 0
    assert growth(Hoarder) > 0  # control


class Unchased(Memory):
    def _chase(self, sink_id: int) -> None:
        """The start picture stays where it was written."""


def largest_distance(kind: type[Memory]) -> int:
    buffer = memory(kind=kind)
    return max(max(frame - buffer.sink_id, frame - buffer.oldest) for frame in run_to(buffer, FRAMES))


def test_no_distance_passes_the_stated_one() -> None:
    assert largest_distance(Memory) == SMALL.window + SMALL.sink_gap_max - 1
    assert largest_distance(Unchased) > SMALL.window + SMALL.sink_gap_max  # control


def test_the_sink_is_chased_when_the_gap_reaches_its_limit() -> None:
    buffer = memory()
    gaps = [buffer.oldest - buffer.sink_id for frame in run_to(buffer, 40) if frame > SMALL.window + 1]

    assert gaps == list(itertools.islice(itertools.cycle([2, 3, 4, 1]), len(gaps)))
    assert buffer.chases == len([g for g in gaps if g == 1])


def drift(kind: type[Memory], dtype: torch.dtype) -> float:
    """Difference of the start picture's keys from freshly turned ones after 10,000 moves, relative."""
    config = replace(SMALL, raw_window=1, window=1, sink_gap_max=2)
    buffer = memory(config, dtype, kind)
    key = torch.randn(1, 1, config.record, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    buffer.write(0, key, key)
    buffer.advance()
    while buffer.chases < FRAMES:
        buffer.advance()
    place = Geometry(
        layers=1, heads=1, head_dim=64, grid=(1, 2), summary_tokens=1, raw_window=1, window=1, sink_gap_max=2
    )
    fresh = turn(key[0].double().numpy(), angles(place, buffer.sink_id) - angles(place, 0))
    found = buffer.keys[0, 0, :, : config.record].double().numpy()
    assert torch.equal(buffer.values[0, :, :, : config.record], key)
    return float(np.abs(found - fresh).max() / np.abs(fresh).max())


class InPlace(Memory):
    """Turns what is stored by the step since the last move, again and again."""

    def _chase(self, sink_id: int) -> None:
        rows = self.keys[..., : self.config.record, :]
        cos, sin = self._tables.forward_in_time(sink_id - self.sink_id)
        rows.copy_(rotate(rows.float(), cos, sin))
        self.sink_id = sink_id
        self.chases += 1


def test_ten_thousand_moves_do_not_wear_the_keys() -> None:
    assert drift(Memory, torch.float32) < FLOAT32_DRIFT
    assert drift(Memory, torch.bfloat16) < BFLOAT16_DRIFT
    assert drift(InPlace, torch.float32) > FLOAT32_DRIFT  # control
    assert drift(InPlace, torch.bfloat16) > 10 * BFLOAT16_DRIFT  # control


def test_reset_forgets() -> None:
    buffer = memory()
    list(run_to(buffer, 30))
    buffer.reset()

    assert (buffer.frame, buffer.sink_id, buffer.chases, buffer.end) == (0, 0, 0, SMALL.record)
    assert buffer.rows() == [(0, "z0")] * SMALL.record


@pytest.mark.parametrize("law", [(5, 17, 6.0, 2.0), (0, 3, 1.5, 0.5), (2, 25, 4.0, 1.0)])
def test_recency_equals_the_reference(law: tuple[int, int, float, float]) -> None:
    bias = Recency(flat_until=law[0], decay_end=law[1], beta=law[2], gamma=law[3])
    values = [bias.bias(age) for age in range(30)]

    assert values == pytest.approx([recency_bias(law, age) for age in range(30)], abs=1e-12)
    assert values[: law[0] + 1] == [0.0] * (law[0] + 1)
    assert values[law[1]] == values[-1] == -law[2]
    assert values == sorted(values, reverse=True)


def test_bias_is_on_summaries_only() -> None:
    law = Recency(flat_until=2, decay_end=7, beta=6.0, gamma=2.0)
    buffer = Memory(SMALL, memory()._tables, recency=law)
    for frame in run_to(buffer, 30):
        bias = buffer.read(0)[2]
        assert bias is not None
        expected = [law.bias(frame - of) if kind == "summary" else 0.0 for of, kind in buffer.rows()]
        assert bias.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw_window": 0}, "raw_window=0 must be in 1..window=6"),
        ({"raw_window": 7}, "raw_window=7 must be in 1..window=6"),
        ({"sink_gap_max": 1}, r"sink_gap_max=1 must be an integer in \[2, 64\]"),
        ({"sink_gap_max": 65}, r"sink_gap_max=65 must be an integer in \[2, 64\]"),
    ],
)
def test_geometry_that_cannot_work_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize("law", [(5, 5, 1.0, 1.0), (-1, 5, 1.0, 1.0), (0, 5, 0.0, 1.0), (0, 5, 1.0, 0.0)])
def test_recency_that_is_no_ramp_is_refused(law: tuple[int, int, float, float]) -> None:
    with pytest.raises(ValueError, match="recency needs"):
        Recency(flat_until=law[0], decay_end=law[1], beta=law[2], gamma=law[3])


def test_recency_past_eviction_is_refused() -> None:
    law = Recency(flat_until=0, decay_end=8, beta=1.0, gamma=1.0)

    with pytest.raises(ValueError, match=r"decay_end=8 must be at most W \+ 1 = 7"):
        Memory(SMALL, memory()._tables, recency=law)
