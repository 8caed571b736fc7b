"""Both noise generators: Philox and the Mersenne Twister in Python's integers, then Box-Muller."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from worldloop.models.noise import normal
from worldloop.models.portable_noise import portable_normal

from ..arithmetic import Arithmetic, Array
from ..registry import Case, Entry, Truth


# -- by a counter -------------------------------------------------------------------------------------------------
def philox(seed: int, frame: int, step: int, words: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011): the counter is (block, 0, step, frame), the first block is 1."""
    mask, result = 2**64 - 1, []
    for block in range(1, words // 4 + 2):
        c, key = [block, 0, step, frame], [seed, 0]
        for _ in range(10):
            low, high = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
            c = [(high >> 64) ^ c[1] ^ key[0], high & mask, (low >> 64) ^ c[3] ^ key[1], low & mask]
            key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
        result += c
    return result[:words]


def counted(keys: Tensor, *, count: int) -> Tensor:
    """Noise of every (seed, frame, step), `[T, count]`."""
    return torch.stack([normal((count,), seed=s, frame=f, step=k) for s, f, k in keys.tolist()])


def counted_truth(arithmetic: Arithmetic, keys: Array, *, count: int) -> Truth:
    """All cosines, then all sines."""
    keep, result = arithmetic.keep, []
    for seed, frame, step in keys.tolist():
        words = np.array(philox(seed, frame, step, (count + 1) // 2), dtype=object)
        radius = keep(np.sqrt(-2 * keep(np.log(((words >> 32) + 1).astype(float) / 2**32))))
        angle = keep(2 * math.pi * (words & 0xFFFFFFFF).astype(float) / 2**32)
        result.append(np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count])
    return Truth(value=np.stack(result), inner=7.0 * 7.0)


# -- as PyTorch with AVX2 -----------------------------------------------------------------------------------------
def twister(seed: int) -> Iterator[int]:
    """MT19937 (Matsumoto & Nishimura 1998), seeded by one word."""
    state = [seed]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) & 0xFFFFFFFF)
    while True:
        for i in range(624):
            y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7FFFFFFF)
            state[i] = state[(i + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
        for y in state:
            y ^= y >> 11
            y ^= (y << 7) & 0x9D2C5680
            y ^= (y << 15) & 0xEFC60000
            yield y ^ (y >> 18)


def portable(seeds: Tensor, *, count: int) -> Tensor:
    """Noise of every seed, `[T, count]`."""
    return torch.stack([portable_normal((count,), seed=seed) for seed in seeds.tolist()])


def portable_truth(arithmetic: Arithmetic, seeds: Array, *, count: int) -> Truth:
    """Groups of 8 radii and 8 angles; the last 16 numbers are drawn again when they are no whole group."""
    keep, values, sizes = arithmetic.keep, [], []
    for seed in seeds.tolist():
        drawn = np.array([word & 0xFFFFFF for word in islice(twister(seed), count + 16)]) / 2**24
        value, size = np.zeros(count), np.zeros(count)
        starts = [*range(0, count - 15, 16)] + ([count - 16] if count % 16 else [])
        for number, start in enumerate(starts):
            source = count if count % 16 and number == len(starts) - 1 else start
            log = keep(np.log(1 - drawn[source : source + 8]))
            radius = keep(np.sqrt(-2 * log))
            angle = keep(2 * math.pi * drawn[source + 8 : source + 16])
            value[start : start + 8] = radius * np.cos(angle)
            value[start + 8 : start + 16] = radius * np.sin(angle)
            size[start : start + 16] = np.tile(radius * (1 + angle), 2)
        values.append(value)
        sizes.append(size)
    return Truth(value=np.stack(values), inner=np.stack(sizes))


ENTRIES = [
    Entry(
        name="noise/counter",
        run=counted,
        truth=counted_truth,
        cases=lambda: [
            Case(
                name=f"{count} numbers",
                inputs=(torch.tensor([[0, 0, 0], [7, 3, 2], [7, 2, 3], [2**32 - 1, 10_000, 31]]),),
                options={"count": count},
            )
            for count in (96, 7)
        ],
        rows=(True,),
        inner=torch.float64,
        inner_roundings=2,
        why="float64 of numbers below 7 at angles below 7, then one rounding to float32",
        host=True,
    ),
    Entry(
        name="noise/portable",
        run=portable,
        truth=portable_truth,
        cases=lambda: [
            Case(
                name=f"{count} numbers", inputs=(torch.tensor([0, 42, 2**32 - 1]),), options={"count": count}
            )
            for count in (16, 2048, 2059)
        ],
        rows=(True,),
        inner_roundings=2,
        why="angle, cosine, logarithm, root and product; polynomials to 1 each",
        host=True,
    ),
]
