"""From latents to bytes: latent statistics, the autoencoder's networks, packing into pictures, and 4:2:0 planes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldloop.codec.colour import PlaneWriter
from worldloop.models.autoencoder import (
    Autoencoder,
    AutoencoderConfig,
    Decoder,
    Encoder,
    LatentStats,
    normalise,
    to_bytes,
)

from ..arithmetic import Arithmetic, Array
from ..registry import Case, Entry, Truth, load, normals, uniforms

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
GRID = (3, 4)


# -- statistics ---------------------------------------------------------------------------------------------------
def stats(mean: Tensor, std: Tensor) -> LatentStats:
    return LatentStats(first_mean=-mean, first_std=std + 1, rest_mean=mean, rest_std=std)


def centred(arithmetic: Arithmetic, x: Array, mean: Array, std: Array) -> Truth:
    value = arithmetic.keep(arithmetic.keep(x - mean) / std)
    return Truth(value=value, inner=(np.abs(x) + np.abs(mean)) / std)


def restored(arithmetic: Arithmetic, x: Array, mean: Array, std: Array) -> Truth:
    value = arithmetic.keep(arithmetic.keep(x * std) + mean)
    return Truth(value=value, inner=np.abs(x * std) + np.abs(mean))


def statistics() -> list[Case]:
    x = normals(60, 48, seed=1) * torch.logspace(-3, 3, 60)[:, None]
    return [Case(name="48 channels", inputs=(x, normals(48, seed=2), uniforms(48, seed=3)))]


# -- pixels -------------------------------------------------------------------------------------------------------
def normal_truth(arithmetic: Arithmetic, rgb: Array) -> Truth:
    share = arithmetic.keep(rgb / 255)
    value = arithmetic.keep(arithmetic.keep(share - MEAN) / STD)
    return Truth(value=value, inner=(share + MEAN) / STD)


def bytes_truth(arithmetic: Arithmetic, rgb: Array) -> Truth:
    """The byte is within a half of the number, and within its error more where that is near a half."""
    keep = arithmetic.keep
    level = np.clip(keep(keep(keep(rgb * STD) + MEAN) * 255), 0, 255)
    return Truth(value=level, inner=255 * (np.abs(rgb * STD) + MEAN), whole=True)


def levels() -> list[Case]:
    """All 256 bytes, numbers between two, and what is out of range."""
    every = torch.arange(256.0)[:, None].expand(-1, 3)
    between = torch.cat((every, every + 0.5, every + 0.498, torch.tensor([[-300.0, 1e4, 256.0]])))
    mean, std = (torch.tensor(each, dtype=torch.float32) for each in (MEAN, STD))
    return [Case(name="bytes and halves", inputs=((between / 255 - mean) / std,))]


# -- packing ------------------------------------------------------------------------------------------------------
def packed(cells: Tensor) -> Tensor:
    """Cells `[B, N, 4 * 768]` to four pictures each, `[B, 4, H, W, 3]`."""
    return model(cells.device)._frames(cells).contiguous()


def packed_truth(arithmetic: Arithmetic, cells: Array) -> Truth:
    """One pixel at a time: a cell's numbers are frame, row, column, colour, each slower than the next."""
    value = np.zeros((len(cells), 4, 16 * GRID[0], 16 * GRID[1], 3))
    for row, column in np.ndindex(*value.shape[2:4]):
        cell = cells[:, row // 16 * GRID[1] + column // 16].reshape(-1, 4, 256, 3)
        value[:, :, row, column] = cell[:, :, row % 16 * 16 + column % 16]
    return Truth(value=arithmetic.keep(value), outer=0.0)


def split(rgb: Tensor) -> Tensor:
    """Pictures `[B, T, H, W, 3]` to cells `[B, T, N, 768]`."""
    return model(rgb.device)._cells(rgb).contiguous()


def split_truth(arithmetic: Arithmetic, rgb: Array) -> Truth:
    value = np.zeros((*rgb.shape[:2], GRID[0] * GRID[1], 768))
    for row, column in np.ndindex(*rgb.shape[2:4]):
        place = (row % 16 * 16 + column % 16) * 3
        value[:, :, row // 16 * GRID[1] + column // 16, place : place + 3] = rgb[:, :, row, column]
    return Truth(value=arithmetic.keep(value), outer=0.0)


def model(device: torch.device) -> Autoencoder:
    return Autoencoder(AutoencoderConfig(channels=8, latent_hw=GRID, encoder_hidden=8, decoder_hidden=8)).to(
        device
    )


# -- networks -----------------------------------------------------------------------------------------------------
def gelu(x: Array) -> Array:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def encoded(cells: Tensor, *weights: Tensor) -> Tensor:
    config = AutoencoderConfig(channels=weights[0].shape[0], encoder_hidden=weights[2].shape[0])
    return load(Encoder(config), weights)(cells)


def encoded_truth(
    arithmetic: Arithmetic, x: Array, w: Array, b: Array, hidden: Array, bias: Array, out: Array
) -> Truth:
    keep = arithmetic.keep
    before = keep(arithmetic.dot(x, hidden) + bias)
    size = np.abs(x) @ np.abs(hidden).T + np.abs(bias)
    after = keep(gelu(before))
    value = keep(keep(arithmetic.dot(x, w) + b) + arithmetic.dot(after, out))
    inner = np.abs(x) @ np.abs(w).T + np.abs(b) + (1.13 * size + np.abs(after)) @ np.abs(out).T
    return Truth(value=value, inner=inner)


def decoded(latent: Tensor, previous: Tensor, *weights: Tensor) -> Tensor:
    config = AutoencoderConfig(channels=latent.shape[-1], latent_hw=GRID, decoder_hidden=weights[3].shape[0])
    return load(Decoder(config), weights)(latent, previous)


def decoded_truth(
    arithmetic: Arithmetic, latent: Array, previous: Array, w: Array, b: Array, first: Array, first_bias: Array,
    second: Array, second_bias: Array, out: Array,
) -> Truth:  # fmt: skip
    """A convolution is a product with the 3 x 3 cells around, zeros beyond the edge."""
    keep = arithmetic.keep

    def around(x: Array) -> Array:
        grid = np.zeros((len(x), GRID[0] + 2, GRID[1] + 2, x.shape[-1]))
        grid[:, 1:-1, 1:-1] = x.reshape(len(x), *GRID, -1)
        parts = [grid[:, i : i + GRID[0], j : j + GRID[1]] for i in range(3) for j in range(3)]
        return np.concatenate(parts, -1).reshape(len(x), GRID[0] * GRID[1], -1)

    def flat(kernel: Array) -> Array:
        return kernel.transpose(0, 2, 3, 1).reshape(len(kernel), -1)

    both = np.concatenate((latent, previous), -1)
    one = keep(arithmetic.dot(around(both), flat(first)) + first_bias)
    one_size = around(np.abs(both)) @ np.abs(flat(first)).T + np.abs(first_bias)
    hidden = keep(gelu(one))
    hidden_size = 1.13 * one_size + np.abs(hidden)
    two = keep(arithmetic.dot(around(hidden), flat(second)) + second_bias)
    two_size = around(hidden_size) @ np.abs(flat(second)).T + np.abs(second_bias)
    last = keep(hidden + keep(gelu(two)))
    last_size = hidden_size + 1.13 * two_size + np.abs(last)
    value = keep(keep(arithmetic.dot(latent, w) + b) + arithmetic.dot(last, out))
    return Truth(value=value, inner=np.abs(latent) @ np.abs(w).T + np.abs(b) + last_size @ np.abs(out).T)


def encoder_cases() -> list[Case]:
    size = 5 * 768
    weights = (
        normals(48, size, seed=1) / 62, normals(48, seed=2), normals(64, size, seed=3) / 62, normals(64, seed=4),
        normals(48, 64, seed=5) / 8,
    )  # fmt: skip
    one_sign = (
        uniforms(8, size, seed=6),
        uniforms(8, seed=7),
        uniforms(4, size, seed=8) / 99,
        *normals(2, 4, seed=9),
    )
    return [
        Case(name="3840 to 48", inputs=(normals(12, size, seed=10), *weights)),
        Case(
            name="one sign",
            inputs=(uniforms(3, size, seed=11), *one_sign[:3], one_sign[3], normals(8, 4, seed=12)),
        ),
    ]


def decoder_cases() -> list[Case]:
    channels, width = 48, 64
    cells = GRID[0] * GRID[1]
    weights = (
        normals(3072, channels, seed=1) / 7, normals(3072, seed=2),
        normals(width, 2 * channels, 3, 3, seed=3) / 30, normals(width, seed=4),
        normals(width, width, 3, 3, seed=5) / 24, normals(width, seed=6), normals(3072, width, seed=7) / 8,
    )  # fmt: skip
    inputs = (normals(2, cells, channels, seed=8), normals(2, cells, channels, seed=9))
    return [Case(name="48 channels on 3 x 4 cells", inputs=(*inputs, *weights))]


# -- planes -------------------------------------------------------------------------------------------------------
def planes(pictures: Tensor) -> Tensor:
    """Pictures `[T, H, W, 3]` to their 4:2:0 bytes, `[T, 3 H / 2, W]`."""
    height, width = pictures.shape[1:3]
    writer = PlaneWriter(height=height, width=width)
    return torch.stack([torch.from_numpy(writer.write(each.numpy()).to_ndarray()) for each in pictures])


def planes_truth(arithmetic: Arithmetic, pictures: Array) -> Truth:
    """BT.601: luma 16 to 235; chroma 16 to 240, the mean of four pixels."""
    keep = arithmetic.keep
    red, green, blue = np.moveaxis(pictures / 255, -1, 0)
    luma = keep(0.299 * red + 0.587 * green + 0.114 * blue)
    levels = [(16 + 219 * luma).reshape(len(pictures), -1)]
    for colour, share in ((blue, 0.886), (red, 0.701)):
        chroma = keep(128 + 112 * (colour - luma) / share)
        count, height, width = chroma.shape
        blocks = chroma.reshape(count, height // 2, 2, width // 2, 2)
        levels.append(keep(blocks.mean((2, 4))).reshape(count, -1))
    value = np.concatenate(levels, -1).reshape(len(pictures), -1, pictures.shape[2])
    return Truth(value=value, slack=PLANES, whole=True)


PLANES = 2.0**-5
"""Levels that the library's whole numbers may be off: 3 coefficients of 15 bits times 255, 2 steps of 7 bits, twice."""


def plane_cases() -> list[Case]:
    """Noise, and flat colours at the ends of the range."""
    random = torch.randint(
        0, 256, (4, 32, 48, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    ends = torch.tensor([[a, b, c] for a in (0, 255) for b in (0, 255) for c in (0, 255)], dtype=torch.uint8)
    flat = ends[:, None, None].expand(-1, 16, 16, -1).contiguous()
    return [Case(name="noise", inputs=(random,)), Case(name="flat", inputs=(flat,))]


def stat_entry(name: str, run: Any, truth: Any, why: str) -> Entry:
    return Entry(
        name=f"latents/{name}", run=run, truth=truth, cases=statistics, rows=(True, False, False), inner_roundings=1,
        why=why,
    )  # fmt: skip


ENTRIES = [
    stat_entry(
        "gaussianise",
        lambda x, mean, std: stats(mean, std).gaussianise(x, first=False),
        centred,
        "the difference is rounded, then the quotient",
    ),
    stat_entry(
        "restore",
        lambda x, mean, std: stats(mean, std).restore(x, first=False),
        restored,
        "the product is rounded, then the sum",
    ),
    Entry(
        name="autoencoder/encoder",
        run=encoded,
        truth=encoded_truth,
        cases=encoder_cases,
        rows=(True, False, False, False, False, False),
        inner_roundings=8,
        why="three sums of products, 8 each of their own terms",
        alone="bound",
    ),
    Entry(
        name="autoencoder/decoder",
        run=decoded,
        truth=decoded_truth,
        cases=decoder_cases,
        rows=(True, True, *(False,) * 7),
        inner_roundings=8,
        why="four sums of products, 8 each of their own terms; a row is a latent",
        alone="bound",
    ),
    Entry(
        name="pixels/normalise",
        run=normalise,
        truth=normal_truth,
        cases=lambda: [
            Case(name="all bytes", inputs=(torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, 3),))
        ],
        rows=(True,),
        inner_roundings=3,
        why="share, constants and difference are rounded, then the quotient",
    ),
    Entry(
        name="pixels/to bytes",
        run=to_bytes,
        truth=bytes_truth,
        cases=levels,
        rows=(True,),
        inner_roundings=4,
        why="constants, product, sum and product are rounded, then the nearest whole number",
    ),
    Entry(
        name="pixels/pack",
        run=packed,
        truth=packed_truth,
        cases=lambda: [Case(name="3 x 4 cells", inputs=(normals(3, 12, 3072, seed=1),))],
        rows=(True,),
        why="numbers change places only: exact",
    ),
    Entry(
        name="pixels/split",
        run=split,
        truth=split_truth,
        cases=lambda: [Case(name="48 x 64 pixels", inputs=(normals(2, 3, 48, 64, 3, seed=1),))],
        rows=(True,),
        why="numbers change places only: exact",
    ),
    Entry(
        name="pixels/4:2:0 planes",
        run=planes,
        truth=planes_truth,
        cases=plane_cases,
        rows=(True,),
        why="the library computes in whole numbers; what they may be off is stated with them",
        host=True,
    ),
]
