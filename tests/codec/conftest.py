"""Pictures that the codec tests share, and how far two are apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

Picture = NDArray[np.uint8]


@pytest.fixture(scope="session")
def colours() -> Picture:
    """Eight flat fields of 48x40 pixels, saturated ones among them: uint8 [96, 160, 3]."""
    field = np.array(
        [
            [(200, 30, 60), (30, 200, 60), (20, 40, 220), (255, 255, 255)],
            [(0, 0, 0), (128, 128, 128), (96, 168, 72), (250, 220, 90)],
        ],
        np.uint8,
    )
    return field.repeat(48, 0).repeat(40, 1)


@pytest.fixture(scope="session")
def gradient() -> Picture:
    """Grey from black at the left to white at the right: uint8 [96, 160, 3]."""
    return np.broadcast_to(np.linspace(0, 255, 160).astype(np.uint8)[None, :, None], (96, 160, 3)).copy()


@pytest.fixture(scope="session")
def tile_art() -> Picture:
    """Outdoor tiles of 16 pixels with red flowers of one pixel, hard for 4:2:0: uint8 [96, 160, 3]."""
    rng = np.random.default_rng(0)
    ground = np.array(
        [(58, 120, 200), (226, 204, 140), (96, 168, 72), (34, 104, 52), (150, 118, 82)], np.uint8
    )
    picture = ground[rng.integers(0, len(ground), (6, 10))].repeat(16, 0).repeat(16, 1)
    speckles = rng.random((96, 160)) < 0.03
    picture[speckles] = (240, 90, 110)
    return picture


@pytest.fixture(scope="session")
def psnr() -> Callable[[Picture, Picture], float]:
    """Peak signal-to-noise ratio in dB over all channels."""

    def measure(one: Picture, other: Picture) -> float:
        error = np.mean((one.astype(np.float64) - other.astype(np.float64)) ** 2)
        return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))

    return measure
