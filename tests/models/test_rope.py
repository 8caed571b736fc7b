"""Rotary tables against angles from the specification; the level axis and what refuses it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from worldloop.models.rope import RopeConfig, RopeTables, rotate
from worldloop.models.summaryformer import SummaryformerConfig

from .driving import ODD, TINY, geometry
from .reference import angles, turn

BOUND = 1e-7
"""Tables are made in float64 and kept in float32: half a unit in the last place of 1."""


def published(**changes: int) -> RopeConfig:
    values = {"head_dim": 64, "grid": (24, 42), "summary_tokens": 96, **changes}
    return RopeConfig(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd"])
@pytest.mark.parametrize("frame", [0, 1, 17, 1023, 4095])
def test_tables_equal_the_reference(config: SummaryformerConfig, frame: int) -> None:
    cos, sin = RopeTables(config.rope).record(frame)

    expected = angles(geometry(config), frame)

    assert np.abs(cos.numpy() - np.cos(expected)).max() < BOUND
    assert np.abs(sin.numpy() - np.sin(expected)).max() < BOUND
    assert np.abs(cos.numpy() - np.cos(angles(geometry(config), frame + 1))).max() > 0.01  # control


def test_rotation_equals_complex_numbers() -> None:
    x = torch.randn(2, 7, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    angle = torch.randn(7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    turned = rotate(x, angle.cos(), angle.sin())

    assert np.abs(turned.numpy() - turn(x.numpy(), angle.numpy())).max() < 1e-12
    assert np.abs(turned.numpy() - turn(x.numpy(), -angle.numpy())).max() > 1  # control


def test_the_published_head_splits_24_20_20() -> None:
    config = published()

    assert (2 * config.time_planes, 2 * config.spatial_planes, config.planes) == (24, 20, 32)
    assert config.moving_planes == 10


def test_the_published_idle_planes_turn_048_and_022() -> None:
    turns = 1024 * published().time_frequencies[-2:]

    assert [round(t, 2) for t in turns.tolist()] == [0.48, 0.22]
    assert turns.tolist() == pytest.approx(
        [1024 / 10_000 ** (10 / 12), 1024 / 10_000 ** (11 / 12)], rel=1e-12
    )


def test_planes_that_are_not_idle_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"two slowest of 6 time planes at base 10000 turn 2\.21 and 0\.48 rad"
    ) as error:
        published(head_dim=32)

    assert "1024 frames" in str(error.value)
    assert "larger head_dim or base" in str(error.value)
    assert published(head_dim=32, base=1_000_000).moving_planes == 4


@pytest.mark.parametrize("head_dim", [0, 16, 48, 80, 60])
def test_a_head_that_does_not_split_is_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match=f"head_dim={head_dim} "):
        published(head_dim=head_dim, base=10**9)


@pytest.mark.parametrize("frame", [0, 5, 1000])
def test_summaries_stand_a_quarter_turn_away_and_nowhere_on_the_grid(frame: int) -> None:
    config = published()
    cos, sin = RopeTables(config).record(frame)
    level = slice(config.moving_planes, config.time_planes)
    raw = 24 * 42

    assert torch.equal(sin[raw:, level], torch.ones(96, 2))
    assert cos[raw:, level].abs().max() < 1e-16
    assert torch.equal(cos[:raw, level], torch.ones(raw, 2))
    assert torch.equal(sin[:raw, level], torch.zeros(raw, 2))
    assert torch.equal(cos[raw:, config.time_planes :], torch.ones(96, 20))
    assert torch.equal(sin[raw:, config.time_planes :], torch.zeros(96, 20))


def test_a_quarter_turn_twice_is_minus_one() -> None:
    cos, sin = (table[-1] for table in RopeTables(published()).record(0))
    x = torch.zeros(64)
    x[10:12] = 1

    assert torch.allclose(rotate(rotate(x, cos, sin), cos, sin), -x, atol=1e-7)


def test_moving_a_key_forward_is_the_same_as_writing_it_later() -> None:
    tables = RopeTables(TINY.rope)
    key = torch.randn(TINY.record, 64, generator=torch.Generator().manual_seed(0))

    moved = rotate(rotate(key, *tables.record(3)), *tables.forward_in_time(38))

    assert (moved - rotate(key, *tables.record(41))).abs().max() < 2e-6
    assert (moved - rotate(key, *tables.record(40))).abs().max() > 0.1  # control


def test_only_distances_count() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, TINY.record, 64, dtype=torch.float64, generator=generator)
    tables = RopeTables(TINY.rope)

    near, far, other = (
        rotate(q, *tables.record(a)) @ rotate(k, *tables.record(b)).T
        for a, b in ((9, 4), (3009, 3004), (9, 5))
    )

    assert (near - far).abs().max() < 1e-5
    assert (near - other).abs().max() > 0.1  # control


def test_many_records_are_the_records_one_by_one() -> None:
    tables = RopeTables(ODD.rope)

    cos, sin = tables.records(torch.tensor([4, 0, 9]))

    singles = [tables.record(i) for i in (4, 0, 9)]
    assert torch.equal(cos, torch.cat([c for c, _ in singles]))
    assert torch.equal(sin, torch.cat([s for _, s in singles]))


def test_past_the_end_of_the_table_is_an_error() -> None:
    tables = RopeTables(RopeConfig(head_dim=64, grid=(1, 1), summary_tokens=1, table_len=8))

    tables.record(7)
    with pytest.raises(IndexError):
        tables.record(8)


def test_angles_are_made_in_float64() -> None:
    config = published()
    cos, _ = RopeTables(config).record(4095)

    # Control: the fastest plane's angle, made in float32, is off by more than the bound.
    single = torch.cos(torch.tensor(4095.0) * config.time_frequencies.float()[1])
    exact = math.cos(4095 * 10_000 ** (-1 / 12))
    assert abs(float(cos[0, 1]) - exact) < BOUND < abs(float(single) - exact)
