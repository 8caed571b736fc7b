"""Rows to pixels against float64: statistics, unpacking, the decoder in pieces, bytes, and what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.loops.moss_pictures import MossPictures
from worldloop.models.moss import decode
from worldloop.models.moss.decode import Decoder, to_bytes, unpack

from . import reference
from .live_bytes import peak_bytes

GRID = (3, 4)


@pytest.fixture(scope="module")
def decoder(pictures: MossPictures) -> Decoder:
    return pictures.decoder


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return torch.randn(GRID[0] * GRID[1], 16, generator=torch.Generator().manual_seed(9))


@pytest.fixture(scope="module")
def exact(checkpoint: Path, one_thread: None) -> Any:
    """diffusers' whole autoencoder in float64."""
    from diffusers import AutoencoderKLFlux2

    return AutoencoderKLFlux2.from_pretrained(
        checkpoint / "vae", torch_dtype=torch.float64, local_files_only=True, low_cpu_mem_usage=False
    ).eval()


def decoded(exact: Any, rows: Tensor, *, fault: str = "") -> np.ndarray[Any, Any]:
    """The picture as float64 numbers in [0, 255], not rounded."""
    var = exact.bn.running_var.numpy() + (1e-2 if fault == "eps" else 1e-4)
    mean = exact.bn.running_mean.numpy()
    packed = rows.double().numpy()
    if fault == "unpack_first":  # statistics of the packed channels put on unpacked ones
        latent = reference.unpacked(packed, GRID, 4) * np.sqrt(var[:4, None, None]) + mean[:4, None, None]
    elif fault == "normalise":
        latent = reference.unpacked((packed - mean) / np.sqrt(var), GRID, 4)
    else:
        latent = reference.unpacked(packed * np.sqrt(var) + mean, GRID, 4, fault)
    with torch.inference_mode():
        picture = exact.decode(torch.from_numpy(latent)[None]).sample[0].permute(1, 2, 0).numpy()
    return np.clip(picture / 2 + 0.5, 0, 1) * 255


def in_pieces(decoder: Decoder, rows: Tensor) -> list[Tensor]:
    values = [rows]
    for index in range(decoder.pieces):
        values.append(decoder.piece(values[-1], index, GRID))
    return values


@pytest.mark.parametrize("fault", ["", "pixel_major", "columns_first"])
def test_unpacking(fault: str, rows: Tensor) -> None:
    made = unpack(rows, GRID, (2, 2))[0].double().numpy()

    assert np.array_equal(made, reference.unpacked(rows.double().numpy(), GRID, 4, fault)) == (fault == "")


@pytest.mark.parametrize("fault", ["", "pixel_major", "columns_first", "unpack_first", "normalise", "eps"])
def test_pixels(fault: str, decoder: Decoder, exact: Any, rows: Tensor) -> None:
    """Float32 moves no value by more than 1e-3 of 255, so a byte is off by one at most, and only at a tie."""
    wanted = decoded(exact, rows, fault=fault)

    pixels = in_pieces(decoder, rows)[-1]

    off = np.abs(pixels.double().numpy() - wanted).max()
    assert pixels.shape == (48, 64, 3)
    assert pixels.dtype == torch.uint8
    assert (off < 0.5 + 1e-3) == (fault == "")


def test_pieces_are_the_decoder_itself(decoder: Decoder, rows: Tensor) -> None:
    with torch.inference_mode():
        whole = decoder.vae.decode(unpack(decoder.restored(rows), GRID, (2, 2))).sample[0]

    values = in_pieces(decoder, rows)

    assert decoder.pieces == 6
    assert torch.equal(values[-1], to_bytes(whole))
    assert [tuple(value.shape[-2:]) for value in values[1:-1]] == [
        (6, 8),
        (12, 16),
        (24, 32),
        (48, 64),
        (48, 64),
    ]


def test_a_piece_changes_nothing(decoder: Decoder, rows: Tensor) -> None:
    before = rows.clone()

    first, again = (decoder.piece(rows, 0, GRID) for _ in range(2))

    assert torch.equal(first, again)
    assert torch.equal(rows, before)


def test_bytes_are_rounded_and_clipped() -> None:
    numbers = torch.tensor([-5.0, -1.0, 0.0, 1.0, 7.0, 2 * 100.4 / 255 - 1, 2 * 100.6 / 255 - 1])

    made = to_bytes(numbers.expand(3, 1, 7))

    assert made[0, :, 0].tolist() == [0, 0, 128, 255, 255, 100, 101]


@pytest.mark.parametrize("size", [(96, 128), (192, 64)])
def test_a_decode_needs_no_more_than_its_scratch(decoder: Decoder, size: tuple[int, int]) -> None:
    grid = size[0] // 16, size[1] // 16
    value, most = torch.randn(grid[0] * grid[1], 16), 0
    for index in range(decoder.pieces):
        held = value.nbytes
        value, peak = peak_bytes(lambda index=index, value=value: decoder.piece(value, index, grid))  # type: ignore[misc]
        most = max(most, held + peak)

    scratch = decode.scratch_bytes(decoder.config, size)

    assert 0.5 * scratch < most <= scratch
