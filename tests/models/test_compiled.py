"""The pass in fixed shapes equals the pass as it is written, through fill, chase, recency and reset; and its faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from worldloop.core.errors import InvalidInputError
from worldloop.models.compiled import Compile, WholeBuffer, keep_in_place, static_pass
from worldloop.models.memory import Memory, Recency
from worldloop.models.summaryformer import Summaryformer, attend, attend_flex

from .driving import ODD, TINY, Step, plain_memory, random_model, script, stream

BOUND = 5e-6
"""Queries and keys are normed and turned in float32; everything else is float64. v is near 1."""
RED = 1000 * BOUND
FRAMES = 22
"""More than two windows, and five chases at `tiny`."""
RECENCY = Recency(flat_until=2, decay_end=5, beta=6.0, gamma=2.0)
CPU = torch.device("cpu")
Fault = Callable[[Memory], None]


@pytest.fixture(scope="module", params=[TINY, ODD], ids=["tiny", "odd"])
def model(request: pytest.FixtureRequest) -> Summaryformer:
    return random_model(request.param)


@pytest.fixture(scope="module")
def tiny() -> Summaryformer:
    return random_model(TINY)


def run(
    model: Summaryformer, memory: Memory, steps: Sequence[Step], fault: Fault | None = None
) -> list[Tensor]:
    """v of every pass, body frames in the static form; `fault` spoils the buffers before each of them."""
    result = []
    for step in steps:
        if memory.frame == 0:
            v = model.pass_record(step.latent, step.film, memory.rope, memory, focus_N=step.focus)
        else:
            if fault is not None:
                fault(memory)
            b, film = memory.buffers, step.film
            v = static_pass(
                model, step.latent, film.blocks, film.head, b.cos, b.sin, *b.layers, b.rows, b.bias
            )
        result.append(v[0])
        if step.last:
            memory.advance()
    return result


def apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Largest difference; NaN if there is one."""
    return float((torch.stack(list(ours)) - torch.stack(list(theirs))).abs().max())


def empty(model: Summaryformer, recency: Recency | None = None) -> Memory:
    return plain_memory(model.config, model.tables(), recency)


@pytest.mark.parametrize("recency", [None, RECENCY], ids=["flat", "recency"])
@pytest.mark.parametrize("cache_mode", ["recache", "last_step_writes"])
@torch.inference_mode()
def test_fixed_shapes_equal_the_filled_prefix(
    model: Summaryformer, cache_mode: str, recency: Recency | None
) -> None:
    steps = script(model, FRAMES, cache_mode)
    memory = empty(model, recency)

    ours = run(model, memory, steps)

    assert memory.chases >= 3
    assert apart(ours, stream(model, steps, recency=recency)) < BOUND


def another_slot(memory: Memory) -> None:
    memory.buffers.rows.copy_(torch.arange(memory.config.record))


def every_row_counts(memory: Memory) -> None:
    memory.bias.nan_to_num_(neginf=0.0)


def no_recency(memory: Memory) -> None:
    memory.bias[: memory.end] = 0.0


def stands_still(memory: Memory) -> None:
    memory._tables.place(1, *memory.rope)


@pytest.mark.parametrize("fault", [another_slot, every_row_counts, no_recency, stands_still])
@torch.inference_mode()
def test_control_a_fault_in_the_buffers_is_found(tiny: Summaryformer, fault: Fault) -> None:
    steps = script(tiny, FRAMES, "recache")

    ours = run(tiny, empty(tiny, RECENCY), steps, fault)

    assert apart(ours, stream(tiny, steps, recency=RECENCY)) > RED


class Unclean(Memory):
    """Leaves in its buffers what was there."""

    def _clear(self) -> None:
        pass


@pytest.mark.parametrize(("kind", "finite"), [(Memory, True), (Unclean, False)])
@torch.inference_mode()
def test_a_memory_that_begins_again_holds_numbers(
    tiny: Summaryformer, kind: type[Memory], finite: bool
) -> None:
    steps = script(tiny, 3, "recache")
    memory = kind(tiny.config.memory, tiny.tables(), dtype=torch.float64)
    memory.keys.fill_(torch.nan)
    memory.values.fill_(torch.nan)
    again = kind(tiny.config.memory, tiny.tables(), dtype=torch.float64, buffers=memory.buffers)
    memory.reset()

    for used in (memory, again):
        ours = run(tiny, used, steps)
        assert all(bool(v.isfinite().all()) for v in ours) == finite
        assert (apart(ours, stream(tiny, steps)) < BOUND) == finite
        used.keys.fill_(torch.nan)
        used.values.fill_(torch.nan)
        used.reset()


def test_used_buffers_are_taken_over(tiny: Summaryformer) -> None:
    first = empty(tiny, RECENCY)
    for _ in range(9):
        first.advance()
    second = Memory(tiny.config.memory, tiny.tables(), dtype=torch.float64, buffers=first.buffers)
    fresh = empty(tiny)

    assert second.keys.data_ptr() == first.keys.data_ptr()
    for ours, theirs in zip(second.buffers.tensors, fresh.buffers.tensors, strict=True):
        assert torch.equal(ours, theirs)


@torch.inference_mode()
def test_addresses_stay(tiny: Summaryformer) -> None:
    memory = empty(tiny, RECENCY)
    keep_in_place(memory.buffers)
    places = [t.data_ptr() for t in memory.buffers.tensors]
    run(tiny, memory, script(tiny, 12, "recache"))
    memory.reset()

    assert places == [t.data_ptr() for t in memory.buffers.tensors]
    assert [t.data_ptr() for t in memory.buffers.layers[1]] == [t.data_ptr() for t in memory.values]


# The unfused form says that it is slow.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_the_generated_kernel_is_the_same_attention(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, rows, 64, generator=generator).to(dtype) for rows in (16, 76, 76))
    bias = torch.zeros(76)
    bias[40:] = -1.5
    bias[60:] = -torch.inf

    ours, theirs = attend_flex(q, k, v, bias), attend(q, k, v, bias)

    bound = 8 * torch.finfo(dtype).eps
    assert float((ours - theirs).abs().max()) < bound
    assert float((ours - attend(q, k, v, torch.zeros(76))).abs().max()) > 2 * bound  # control


def test_rows_past_the_bias_are_not_read() -> None:
    memory = WholeBuffer(
        (torch.zeros(1, 1, 4, 2),), (torch.zeros(1, 1, 4, 2),), torch.tensor([2, 3]), torch.zeros(4)
    )
    memory.write(0, torch.ones(1, 1, 2, 2, dtype=torch.float64), torch.full((1, 1, 2, 2), 2.0))
    keys, values, _ = memory.read(0)

    assert keys[0, 0, :, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert values[0, 0, :, 0].tolist() == [0.0, 0.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        (
            {"network": "fast"},
            "compile='fast' must be off, default, max-autotune-no-cudagraphs or max-autotune",
        ),
        (
            {"decoder": "max-autotune+cudagraphs"},
            "compile_decoder='max-autotune.cudagraphs' must be off, default or",
        ),
        ({"recompile_limit": 0}, "recompile_limit=0 must be at least 1"),
    ],
)
def test_a_mode_that_does_not_exist_is_refused(choices: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        Compile(**choices)  # type: ignore[arg-type]


def test_a_cpu_cannot_record_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = Compile(network="max-autotune+cudagraphs")

    with pytest.raises(
        InvalidInputError, match=r"compile=max-autotune\+cudagraphs needs a CUDA device; this is a CPU"
    ):
        graphs.check(CPU)
    graphs.check(torch.device("cuda"))


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Compile(network="default"), "compile=default needs a C"),
        (
            Compile(decoder="max-autotune-no-cudagraphs"),
            "compile_decoder=max-autotune-no-cudagraphs needs a C",
        ),
    ],
)
def test_a_cpu_without_a_compiler_is_refused(
    choice: Compile, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(InvalidInputError, match=says):
        choice.check(CPU)
    Compile().check(CPU)
    choice.check(torch.device("cuda"))
