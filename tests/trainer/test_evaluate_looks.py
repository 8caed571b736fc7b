from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from worldloop.simulators.meadow import Meadow
from worldloop.trainer.measures.fidelity import psnr, square_error
from worldloop.trainer.measures.looks import looks, segments, shift_of_kinds
from worldloop.trainer.rollouts import place, wander


def pictures() -> np.ndarray:
    world, first = place(3)
    return wander(world, first, 70, np.random.default_rng(0)).pictures


def blurred(stack: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(Image.fromarray(p).filter(ImageFilter.GaussianBlur(2))) for p in stack])


def test_drawings_are_legal_and_blurred_ones_are_not() -> None:
    drawn, soft = looks(pictures()), looks(blurred(pictures()))

    assert drawn.legal.min() == 1
    assert soft.legal.max() < 0.05
    assert (soft.sharpness < drawn.sharpness / 4).all()
    assert (soft.contrast < drawn.contrast).all()


def test_kinds_and_colours_are_those_of_the_world() -> None:
    world = Meadow(5)
    seen = looks(world.reset()[None])

    np.testing.assert_allclose(seen.kinds[0] * 60, np.bincount(world.window().ravel(), minlength=10))
    np.testing.assert_allclose(seen.colour[0], world.reset().reshape(-1, 3).mean(0), rtol=1e-5)


def test_sharpness_of_a_slope_is_none_and_of_a_chequerboard_is_full() -> None:
    slope = np.broadcast_to(np.arange(160, dtype=np.uint8)[None, None, :, None], (1, 96, 160, 3))
    chequers = np.broadcast_to((np.indices((96, 160)).sum(0) % 2)[None, ..., None], (1, 96, 160, 3)).astype(
        np.uint8
    )

    assert looks(slope).sharpness == 0
    assert looks(chequers).sharpness == pytest.approx(4)


def test_segments_are_means_from_one_edge_up_to_the_next() -> None:
    series = np.array([[0.0, 2.0, 4.0, 6.0], [2.0, 4.0, 6.0, 8.0]])

    assert segments(series, [0, 2, 4]) == [2, 6]
    assert shift_of_kinds(np.array([1.0, 0.0]), np.array([0.25, 0.75])) == 0.75


def test_psnr_of_known_errors() -> None:
    black, grey = np.zeros((2, 4, 4, 3), np.uint8), np.full((2, 4, 4, 3), 16, np.uint8)

    assert square_error(grey, black) == square_error(black, grey) == 256
    assert psnr([256.0]) == pytest.approx(24.048, abs=1e-3)
    assert psnr([0.0]) == 99
    assert psnr([]) is None
