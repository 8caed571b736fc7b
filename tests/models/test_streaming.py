"""The streaming buffer equals dense attention over the same records, recomputed in float64; and its planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from worldloop.models.memory import Memory, Recency
from worldloop.models.rope import RopeTables
from worldloop.models.summaryformer import Summaryformer, SummaryformerConfig

from .driving import (
    ODD,
    TINY,
    MemoryFactory,
    Step,
    dense,
    plain_memory,
    random_model,
    script,
    stream,
    with_changes,
    worst,
)  # fmt: skip

BOUND = 5e-6
"""Queries and keys are normed and turned in float32; everything else of either side is float64. v is near 1."""
RED = 1000 * BOUND
FRAMES = 22
"""Five chases at `tiny` and more at the odd geometry, after a fill of W frames."""
RECENCY = Recency(flat_until=2, decay_end=5, beta=6.0, gamma=2.0)


@pytest.fixture(scope="module", params=[TINY, ODD], ids=["tiny", "odd"])
def model(request: pytest.FixtureRequest) -> Summaryformer:
    return random_model(request.param)


@pytest.fixture(scope="module")
def tiny() -> Summaryformer:
    return random_model(TINY)


@pytest.mark.parametrize("recency", [None, RECENCY], ids=["flat", "recency"])
@pytest.mark.parametrize("cache_mode", ["recache", "last_step_writes"])
@torch.inference_mode()
def test_streaming_equals_dense(model: Summaryformer, cache_mode: str, recency: Recency | None) -> None:
    steps = script(model, FRAMES, cache_mode)

    ours = stream(model, steps, recency=recency)

    assert worst(ours, dense(model, steps, recency=recency)) < BOUND
    assert min(float(v.abs().max()) for v in ours) > 0.5


@torch.inference_mode()
def test_the_focus_region_is_read(model: Summaryformer) -> None:
    focus = torch.arange(model.config.raw_tokens) % 3 == 0
    steps = script(model, 4, "recache", focus=focus)

    ours = stream(model, steps)

    assert worst(ours, dense(model, steps)) < BOUND
    assert worst(ours, dense(model, script(model, 4, "recache"))) > RED


@pytest.mark.parametrize("window", [1, 2])
@torch.inference_mode()
def test_a_window_without_summaries(window: int) -> None:
    model = random_model(replace(TINY, raw_window_frames=window, summary_window_frames=window))
    steps = script(model, 9, "recache")

    assert worst(stream(model, steps), dense(model, steps)) < BOUND


class Unchased(Memory):
    """Believes that it moved the start picture."""

    def _chase(self, sink_id: int) -> None:
        self.sink_id = sink_id


class OffByOne(Memory):
    """Moves the start picture one frame too far."""

    def _chase(self, sink_id: int) -> None:
        super()._chase(sink_id + 1)
        self.sink_id = sink_id


class WrongRows(Memory):
    """Keeps the last raw row instead of the last summary."""

    def _summarise(self, leaving: int) -> None:
        source = self._raw_start(leaving) + self.config.raw_tokens - 1
        target = self._sum_start(leaving)
        for buffer in (self.keys, self.values):
            buffer[..., target : target + self.config.summary_tokens, :] = buffer[
                ..., source : source + self.config.summary_tokens, :
            ]


class KeysOnly(Memory):
    """Copies a summary's keys and forgets its values."""

    def _summarise(self, leaving: int) -> None:
        kept = self.values.clone()
        super()._summarise(leaving)
        self.values.copy_(kept)


def build(kind: type[Memory]) -> MemoryFactory:
    def make(config: SummaryformerConfig, tables: RopeTables, recency: Recency | None) -> Memory:
        return kind(config.memory, tables, recency=recency, dtype=torch.float64)

    return make


FAULTS: dict[str, MemoryFactory] = {
    "a frame that left the raw window is still whole": with_changes(TINY, raw_window_frames=3),
    "summaries are read after eviction": with_changes(TINY, summary_window_frames=6),
    "a frame leaves the window too early": with_changes(TINY, summary_window_frames=4),
    "the sink is not chased": build(Unchased),
    "the sink is chased too far": build(OffByOne),
    "the sink is chased too late": with_changes(TINY, sink_gap_max=4),
    "another row is kept as summary": build(WrongRows),
    "a summary has stale values": build(KeysOnly),
}


@pytest.mark.parametrize("fault", FAULTS)
@torch.inference_mode()
def test_control_a_faulty_memory_is_found(tiny: Summaryformer, fault: str) -> None:
    steps = script(tiny, FRAMES, "recache")

    assert worst(stream(tiny, steps, make=FAULTS[fault]), dense(tiny, steps)) > RED


def summaries_without_level(tables: RopeTables) -> None:
    raw = tables.config.grid[0] * tables.config.grid[1]
    tables._fixed_cos[raw:, :2], tables._fixed_sin[raw:, :2] = 1.0, 0.0


def columns_before_rows(tables: RopeTables) -> None:
    for table in (tables._fixed_cos, tables._fixed_sin):
        level, row, column = table.split(
            (2, tables.config.spatial_planes, tables.config.spatial_planes), dim=1
        )
        table.copy_(torch.cat((level, column, row), dim=1))


def time_too_fast(tables: RopeTables) -> None:
    tables._time_cos[1:], tables._time_sin[1:] = tables._time_cos[:-1].clone(), tables._time_sin[:-1].clone()


@pytest.mark.parametrize("change", [summaries_without_level, columns_before_rows, time_too_fast])
@torch.inference_mode()
def test_control_faulty_positions_are_found(
    tiny: Summaryformer, change: Callable[[RopeTables], None]
) -> None:
    steps = script(tiny, 8, "recache")

    assert worst(stream(tiny, steps, change=change), dense(tiny, steps)) > RED


@torch.inference_mode()
def test_control_the_record_that_stays_matters(tiny: Summaryformer) -> None:
    clean = script(tiny, 8, "recache")
    noisy = [
        replace(s, last=s.last if i == 0 else i % 3 == 2) for i, s in enumerate(clean) if i == 0 or i % 3
    ]

    ours = stream(tiny, clean)

    assert worst([v for i, v in enumerate(ours) if i == 0 or i % 3], dense(tiny, noisy)) > RED


@torch.inference_mode()
def test_control_recency_is_not_nothing(tiny: Summaryformer) -> None:
    steps = script(tiny, 8, "recache")

    assert worst(stream(tiny, steps, recency=RECENCY), dense(tiny, steps)) > RED


class Shuffled(Memory):
    """Hands its rows out in another order."""

    def read(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        keys, values, bias = super().read(layer)
        order = torch.randperm(keys.shape[2], generator=torch.Generator().manual_seed(layer))
        return keys[:, :, order], values[:, :, order], None if bias is None else bias[order]


@torch.inference_mode()
def test_order_of_rows_does_not_matter(tiny: Summaryformer) -> None:
    steps = script(tiny, FRAMES, "recache")

    ours = stream(tiny, steps, recency=RECENCY, make=build(Shuffled))

    assert worst(ours, dense(tiny, steps, recency=RECENCY)) < BOUND


def last_with_other(
    model: Summaryformer, age: int, make: MemoryFactory = plain_memory
) -> tuple[bytes, bytes]:
    """Bytes of the last pass, as it is and with another latent `age` frames earlier."""
    steps = script(model, 16, "recache")
    commits = [i for i, step in enumerate(steps) if step.last]
    place = commits[len(commits) - 1 - age]
    other: list[Step] = list(steps)
    other[place] = replace(steps[place], latent=steps[place].latent + 1)
    first, second = (stream(model, which, make=make)[-1].numpy().tobytes() for which in (steps, other))
    return first, second


@torch.inference_mode()
def test_a_frame_cannot_read_what_left_the_window(tiny: Summaryformer) -> None:
    # The first block sees pixels of raw records only, age Y; the second sees what a summary of age W had seen.
    reach = TINY.raw_window_frames + (TINY.num_layers - 1) * TINY.summary_window_frames

    inside, changed = last_with_other(tiny, reach)
    outside, unchanged = last_with_other(tiny, reach + 1)

    assert inside != changed
    assert outside == unchanged


@torch.inference_mode()
def test_control_a_longer_window_is_read(tiny: Summaryformer) -> None:
    reach = TINY.raw_window_frames + (TINY.num_layers - 1) * TINY.summary_window_frames

    first, second = last_with_other(tiny, reach + 1, make=with_changes(TINY, summary_window_frames=6))

    assert first != second
