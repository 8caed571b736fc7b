"""Noise against a counter generator in whole numbers, golden hashes, and what it does and doesn't depend on."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.models.noise import check_seed, normal

from .reference import philox

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "noise.json").read_text())


def golden(case: dict[str, Any]) -> Tensor:
    return normal(tuple(case["shape"]), seed=case["seed"], frame=case["frame"], step=case["step"])


def digest(noise: Tensor) -> str:
    return hashlib.sha256(noise.numpy().astype("<f4").tobytes()).hexdigest()


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: f"seed{c['seed']}-frame{c['frame']}-step{c['step']}")
def test_noise_has_the_golden_bytes(case: dict[str, Any]) -> None:
    noise = golden(case)

    assert digest(noise) == case["sha256"]
    assert noise.dtype == torch.float32
    assert tuple(noise.shape) == tuple(case["shape"])
    flipped = noise.clone()
    flipped.view(-1).view(torch.int32)[-1] ^= 1
    assert digest(flipped) != case["sha256"]  # control: the last bit of the last number


@pytest.mark.parametrize(("seed", "frame", "step"), [(0, 0, 0), (7, 3, 2), (2**32 - 1, 10_000, 33)])
def test_noise_is_philox_and_box_muller(seed: int, frame: int, step: int) -> None:
    words = philox(seed, [0, 0, step, frame], 8)
    radius = [math.sqrt(-2 * math.log(((w >> 32) + 1) / 2**32)) for w in words]
    angle = [2 * math.pi * (w & 0xFFFFFFFF) / 2**32 for w in words]
    expected = [r * math.cos(a) for r, a in zip(radius, angle, strict=True)]
    expected += [r * math.sin(a) for r, a in zip(radius, angle, strict=True)]

    noise = normal((16,), seed=seed, frame=frame, step=step)

    assert noise.tolist() == pytest.approx(expected, abs=1e-6)
    assert (
        philox(seed, [0, 0, frame + 1, step], 1) != words[:1]
    )  # control: frame and step in each other's place


def test_it_is_a_pure_function() -> None:
    first = normal((3, 5), seed=1, frame=2, step=3)
    torch.manual_seed(0)
    np.random.seed(0)
    normal((9,), seed=4, frame=2, step=3)

    assert torch.equal(normal((3, 5), seed=1, frame=2, step=3), first)
    assert torch.equal(normal((15,), seed=1, frame=2, step=3).view(3, 5), first)


def test_every_argument_makes_other_noise() -> None:
    grid = itertools.product((0, 1, 2), (0, 1, 2), (0, 1, 2))
    seen = {digest(normal((64,), seed=s, frame=f, step=k)) for s, f, k in grid}

    assert len(seen) == 27


def test_neighbours_do_not_correlate() -> None:
    count = 20_000
    base = normal((count,), seed=5, frame=5, step=1)
    for changes in ({"seed": 6}, {"frame": 6}, {"step": 2}):
        other = normal((count,), **{"seed": 5, "frame": 5, "step": 1, **changes})
        assert abs(float((base * other).mean())) < 5 / math.sqrt(count)
    assert float((base * base).mean()) > 0.9  # control


def test_moments_are_those_of_a_standard_normal() -> None:
    count = 400_000
    x = normal((count,), seed=3, frame=1, step=0).double()
    bound = 5 / math.sqrt(count)

    assert abs(float(x.mean())) < bound
    assert abs(float(x.var()) - 1) < bound * math.sqrt(2)
    assert abs(float((x**3).mean())) < bound * math.sqrt(15)
    assert abs(float((x**4).mean()) - 3) < bound * math.sqrt(96)
    assert abs(float((x.abs() < 1).double().mean()) - math.erf(1 / math.sqrt(2))) < bound
    uniform = (
        torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    ) * 12**0.5
    assert abs(float((uniform**4).mean()) - 3) > bound * math.sqrt(96)  # control


def test_an_odd_count_is_whole() -> None:
    assert torch.isfinite(normal((7,), seed=0, frame=0, step=0)).all()
    assert normal((0,), seed=0, frame=0, step=0).shape == (0,)


@pytest.mark.parametrize("seed", [-1, 2**32, True, 1.0, "1", None])
def test_seeds_out_of_range_are_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"must be an integer in \[0, 4294967296\)"):
        check_seed(seed)
    with pytest.raises(ValueError, match="seed="):
        normal((1,), seed=seed, frame=0, step=0)


def test_seeds_at_the_ends_are_allowed() -> None:
    assert (check_seed(0), check_seed(2**32 - 1)) == (0, 2**32 - 1)
