"""Portable noise against golden hashes, PyTorch's own on processors with AVX2, and exact arithmetic."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.models import portable_noise
from worldloop.models.portable_noise import portable_normal, portable_rows

PICTURE = "378421c7668808cc31d7fddf649f127072d08c14d117f4d2e15338a2c3bc0f3a"
"""Seed 42 at 1024 x 1024: 64 x 64 rows of 128 channels."""
GOLDEN = {
    (0, 16): "7648137a31024642604465428f1598d06f595259ac993612918498d7cde9b70c",
    (1, 17): "9e976497df1a5075f4c5b44202da15cf3e2b518883881af8a93fe23e525271d4",
    (7, 1000): "4b1786693e247183aa6805eda7226207ca2fdca77c968b6aeec55afad3ae95ad",
    (2**32 - 1, 5 * 33_000 + 3): "22f78827e42edd77bdc7bb7549289be761d72fad16d984fb0de58c6f2bcb7a15",
}
"""(seed, count) to sha256 of the float32 bytes."""
HAS_AVX2 = torch.backends.cpu.get_cpu_capability() in {"AVX2", "AVX512"}


def digest(noise: Tensor) -> str:
    return hashlib.sha256(noise.contiguous().numpy().astype("<f4").tobytes()).hexdigest()


def test_a_picture_has_the_published_bytes() -> None:
    rows = portable_rows((64, 64), 128, seed=42)

    assert rows.dtype == torch.float32
    assert tuple(rows.shape) == (4096, 128)
    assert rows.is_contiguous()
    assert digest(rows) == PICTURE
    assert digest(portable_normal((4096, 128), seed=42)) != PICTURE  # control: drawn row by row
    flipped = rows.clone()
    flipped.view(-1).view(torch.int32)[-1] ^= 1
    assert digest(flipped) != PICTURE  # control: the last bit of the last number


@pytest.mark.parametrize(("seed", "count"), GOLDEN)
def test_noise_has_the_golden_bytes(seed: int, count: int) -> None:
    assert digest(portable_normal((count,), seed=seed)) == GOLDEN[seed, count]


@pytest.mark.skipif(not HAS_AVX2, reason="PyTorch draws these numbers on x86 with AVX2 only")
@pytest.mark.parametrize("seed", [0, 1, 42, 123_456_789, 2**32 - 1])
@pytest.mark.parametrize("count", [16, 17, 31, 32, 33, 1000, 200_003])
def test_it_is_what_pytorch_draws_with_avx2(seed: int, count: int) -> None:
    expected = torch.randn(count, generator=torch.Generator().manual_seed(seed))

    found = portable_normal((count,), seed=seed)

    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))  # zeros with their sign too


def test_a_last_group_that_is_not_whole_is_drawn_anew() -> None:
    assert torch.equal(portable_normal((40,), seed=3)[:24], portable_normal((48,), seed=3)[:24])
    assert not torch.equal(portable_normal((40,), seed=3)[24:], portable_normal((48,), seed=3)[24:40])


def test_it_is_a_pure_function_of_seed_and_shape() -> None:
    first = portable_normal((6, 8), seed=1)
    torch.manual_seed(0)
    np.random.seed(0)
    portable_normal((64,), seed=2)

    assert torch.equal(portable_normal((48,), seed=1).view(6, 8), first)
    assert not torch.equal(portable_normal((6, 8), seed=2), first)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = portable_normal((4096,), seed=9)
    monkeypatch.setattr(portable_noise, "BLOCK", 64)

    assert torch.equal(portable_normal((4096,), seed=9), whole)


def nearest(value: Fraction) -> np.float32:
    """The float32 next to an exact number, ties to even."""
    start = np.float32(float(value))
    near = [np.nextafter(start, np.float32(side)) for side in (-np.inf, np.inf)] + [start]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - value), int(np.float32(x).view(np.int32)) & 1))


def test_a_fused_product_and_sum_are_rounded_once() -> None:
    # 2**-24 is half a step at 1. These products are just above and just below it, by less than float64 holds beside 1.
    above = (2.0**-24 * (1 + 2.0**-11), 1 - 2.0**-11 + 2.0**-22, 1.0)
    below = (2.0**-24 * (1 + 2.0**-18), 1 - 2.0**-18, 1 + 2.0**-23)
    hard = np.array([above, below], np.float64)
    generator = np.random.default_rng(0)
    easy = generator.normal(size=(400, 3)) * 2.0 ** generator.integers(-30, 9, (400, 1))
    a, b, c = np.concatenate((hard, hard * [-1, 1, -1], easy)).T.astype(np.float32)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in np.stack((a, b, c), 1).tolist()]
    expected = [float(nearest(value)) for value in exact]

    assert portable_noise._fused(a, b, c).tolist() == expected
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert twice.tolist() != expected  # control: rounded to float64 first
    assert (a * b + c).tolist() != expected  # control: the product rounded too


def test_numbers_are_those_of_box_muller_in_float64() -> None:
    words = np.random.RandomState(5).randint(0, 2**32, 16_000, np.uint32)
    uniform = ((words & 0xFFFFFF) / 2**24).reshape(-1, 2, 8)
    radius, angle = np.sqrt(-2 * np.log(1 - uniform[:, 0])), 2 * math.pi * uniform[:, 1]
    expected = np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1).ravel()

    found = portable_normal((16_000,), seed=5).numpy()

    assert np.abs(found - expected).max() < 4e-6
    assert (
        np.abs(found - np.stack((radius * np.sin(angle), radius * np.cos(angle)), 1).ravel()).max() > 1
    )  # control


@pytest.mark.parametrize("shape", [(), (0,), (15,), (3, 5)])
def test_fewer_than_16_numbers_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 16"):
        portable_normal(shape, seed=0)


@pytest.mark.parametrize("seed", [-1, 2**32, True, 1.0, "1", None])
def test_seeds_out_of_range_are_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"must be an integer in \[0, 4294967296\)"):
        portable_normal((16,), seed=seed)
