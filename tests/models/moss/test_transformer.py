"""The transformer against float64: rope, activation, the whole network, planted mistakes, formats and bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.models.moss import transformer
from worldloop.models.moss.config import TransformerConfig
from worldloop.models.moss.files import load_transformer, read_checkpoint
from worldloop.models.moss.transformer import MossTransformer, rope, squashed
from worldloop.testing_moss import TINY, random_transformer

from . import reference
from .live_bytes import peak_bytes

GRID, TEXT, TIME = (3, 4), 7, 630
BOUND = 5e-6
"""Of a float32 network whose outputs are of order 1; measured 1.1e-6."""


@pytest.fixture(scope="module")
def network(checkpoint: Path, one_thread: None) -> MossTransformer:
    return load_transformer(read_checkpoint(checkpoint), dtype=torch.float32)


@pytest.fixture(scope="module")
def weights(checkpoint: Path) -> dict[str, reference.Array]:
    return reference.weights_of(checkpoint)


@pytest.fixture(scope="module")
def exact(weights: dict[str, reference.Array]) -> Callable[..., reference.Network]:
    def make(fault: str = "") -> reference.Network:
        return reference.Network(
            w=weights, heads=TINY.heads, layers=TINY.layers, text_layers=TINY.text_layers, axes=TINY.rope_axes,
            base=TINY.rope_base, eps=TINY.eps, time_dim=TINY.time_dim, fault=fault,
        )  # fmt: skip

    return make


def inputs(text: int = TEXT) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    rows = torch.randn(GRID[0] * GRID[1], TINY.channels, generator=draw)
    return rows, torch.randn(64, TINY.text_dim, generator=draw)[:text]


def error(network: MossTransformer, exact: reference.Network, skipped: tuple[int, ...] = ()) -> float:
    x, text = inputs()
    with torch.inference_mode():
        made = network(x, TIME, network.condition(text, GRID), frozenset(skipped))
    wanted = exact.velocity(x.double().numpy(), TIME, text.double().numpy(), GRID, skipped)
    return float(np.abs(made.double().numpy() - wanted).max())


# -- parts ------------------------------------------------------------------------------------------------------------
PUBLISHED = dataclasses.replace(TINY, head_dim=128, rope_axes=(32, 32, 32, 32))


@pytest.mark.parametrize("fault", ["", "text_len", "corner", "base"])
def test_phases(fault: str) -> None:
    """Float32 bands move a phase by at most 6e-8 of its angle, and no row is further than 4,096 from the origin."""
    made = rope(PUBLISHED, 4000, (5, 6))
    wanted = reference.phases(4000, (5, 6), PUBLISHED.rope_axes, PUBLISHED.rope_base, fault)

    off = np.abs(made.cos.double().numpy() + 1j * made.sin.double().numpy() - wanted).max()

    assert made.cos.shape == (5 * 6 + 4000, 64)
    assert (off < 2.5e-4) == (fault == "")


def test_the_two_branches_turn_differently() -> None:
    a, b = (rope(TINY, length, GRID)[: GRID[0] * GRID[1]] for length in (7, 20))

    assert not torch.equal(a.cos, b.cos)


def test_a_change_of_format_leaves_phases_alone(network: MossTransformer) -> None:
    other = random_transformer().to_serving(torch.bfloat16)

    tables = [each.condition(inputs()[1], GRID).rope for each in (network, other)]

    assert torch.equal(tables[0].cos, tables[1].cos)
    assert tables[1].cos.dtype == torch.float32


@pytest.mark.parametrize("fault", ["", "cap", "silu"])
def test_activation(fault: str) -> None:
    h, g = torch.meshgrid(torch.linspace(-90, 90, 61), torch.linspace(-30, 30, 61), indexing="ij")
    wanted = reference.activation(h.double().numpy(), g.double().numpy(), fault)

    off = np.abs(squashed(h, g).double().numpy() - wanted).max()

    assert (off < 2e-5) == (fault == "")
    assert squashed(h.bfloat16(), g.bfloat16()).dtype == torch.bfloat16
    assert squashed(torch.tensor(1e30), torch.tensor(1e30)) == 100


# -- the whole network ------------------------------------------------------------------------------------------------
def test_the_network(network: MossTransformer, exact: Callable[..., reference.Network]) -> None:
    assert error(network, exact()) < BOUND
    assert error(network, exact(), skipped=(1,)) < BOUND


@pytest.mark.parametrize("fault", reference.FAULTS)
def test_every_planted_mistake_shows(
    fault: str, network: MossTransformer, exact: Callable[..., reference.Network]
) -> None:
    assert error(network, exact(fault)) > 20 * BOUND


def test_in_float64_only_the_bands_differ(checkpoint: Path, exact: Callable[..., reference.Network]) -> None:
    network = load_transformer(read_checkpoint(checkpoint), dtype=torch.float64)

    assert error(network, exact()) < 2e-7


def test_bfloat16_keeps_its_islands_and_stays_near(
    checkpoint: Path, exact: Callable[..., reference.Network]
) -> None:
    network = load_transformer(read_checkpoint(checkpoint), dtype=torch.bfloat16)
    x, text = inputs()

    made = network(x, TIME, network.condition(text, GRID))

    kinds = {name: next(part.parameters()).dtype for name, part in network.named_children()}
    assert {name for name, kind in kinds.items() if kind == torch.float32} == set(transformer.ISLANDS)
    assert made.dtype == torch.float32
    assert error(network, exact()) < 0.1
    assert error(network, exact("gates")) > 0.2


def test_a_pass_reads_its_time_and_its_text(network: MossTransformer) -> None:
    x, text = inputs()
    condition = network.condition(text, GRID)

    first = network(x, TIME, condition)

    assert torch.equal(network(x, TIME, condition), first)  # a pass changes nothing
    assert not torch.allclose(network(x, TIME + 1, condition), first, atol=1e-4)
    assert not torch.allclose(network(x, TIME, network.condition(text[:-1], GRID)), first, atol=1e-4)


# -- bytes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_needs_no_more_than_its_scratch(dtype: torch.dtype) -> None:
    config = TransformerConfig(
        layers=2, text_layers=1, heads=4, head_dim=32, ffn_dim=344, channels=16, text_dim=64, time_dim=16,
        rope_axes=(8, 8, 8, 8), rope_base=1e4, eps=1e-6, bias=False,
    )  # fmt: skip
    network = random_transformer(config).to_serving(dtype)
    grid, text = (16, 24), 96
    x, words = torch.randn(16 * 24, 16), torch.randn(text, 64, dtype=dtype)
    with torch.inference_mode():
        condition, reading = peak_bytes(lambda: network.condition(words, grid))
        _, passing = peak_bytes(lambda: network(x, TIME, condition))

    scratch = transformer.scratch_bytes(config, 16 * 24 + text, dtype)
    held = transformer.condition_bytes(config, text, 16 * 24, dtype)

    assert 0.5 * scratch < passing <= scratch
    assert reading <= held + scratch
    assert condition.text.nbytes + condition.rope.cos.nbytes + condition.rope.sin.nbytes == held
