from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from worldloop.core.errors import PictureError
from worldloop.simulators.meadow import VectorMeadow, heading
from worldloop.simulators.measure import LEGAL_RMSE, legal, motion, tile_kinds, walker_facing
from worldloop.simulators.tiles import KINDS, SOLID, TILES


def walks(steps: int = 12, worlds: int = 24) -> tuple[VectorMeadow, list[np.ndarray], list[np.ndarray]]:
    world, rng = VectorMeadow(range(worlds)), np.random.default_rng(3)
    pictures, actions = [world.reset()], []
    for _ in range(steps):
        action = np.zeros((worlds, 5))
        action[:, :2] = rng.integers(-1, 2, (worlds, 2))
        actions.append(action)
        pictures.append(world.step(action)[:, -1])
    return world, pictures, actions


def noisy(pictures: np.ndarray, deviation: float) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, deviation, pictures.shape)
    return np.clip(np.rint(pictures + noise), 0, 255).astype(np.uint8)


def between_kinds() -> np.ndarray:
    tiles = TILES.reshape(len(TILES), -1).astype(np.float64)
    rmse = np.sqrt(((tiles[:, None] - tiles) ** 2).mean(-1))
    return rmse[~np.eye(len(TILES), dtype=bool)]


def test_kinds_are_far_apart_and_textured_beyond_the_legal_bound() -> None:
    assert between_kinds().min() >= 14
    assert between_kinds().min() / 2 > LEGAL_RMSE
    texture = TILES - TILES.mean((1, 2), keepdims=True)
    assert np.sqrt((texture**2).mean((1, 2, 3))).min() > LEGAL_RMSE


@pytest.mark.parametrize("deviation", [0.0, 6.0])
def test_reads_kinds_and_facings_off_pictures(deviation: float) -> None:
    world, pictures, _ = walks()
    seen = noisy(pictures[-1], deviation)
    kinds, rmse = tile_kinds(seen)
    np.testing.assert_array_equal(kinds, world.windows())
    np.testing.assert_array_equal(walker_facing(seen), world.facings())
    assert rmse.max() <= deviation * 1.1
    assert legal(seen).all()


def test_one_picture_reads_like_a_batch() -> None:
    _, pictures, _ = walks(1, 2)
    np.testing.assert_array_equal(tile_kinds(pictures[1][1])[0], tile_kinds(pictures[1])[0][1])
    assert walker_facing(pictures[1][1]).shape == ()


def test_blurred_pictures_are_not_legal() -> None:
    _, pictures, _ = walks(1)
    blurred = [Image.fromarray(p).filter(ImageFilter.GaussianBlur(2)) for p in pictures[0]]
    assert legal(np.stack([np.asarray(p) for p in blurred])).mean() < 0.01


def test_pictures_shifted_by_a_quarter_tile_are_not_legal() -> None:
    _, pictures, _ = walks(1)
    for axis in (1, 2):
        assert legal(np.roll(pictures[0], 4, axis)).mean() < 0.01


def test_the_average_of_two_tiles_is_not_legal() -> None:
    _, pictures, _ = walks(1)
    picture = pictures[0][0]
    for one in range(len(KINDS)):
        for other in range(one):
            average = (TILES[one].astype(int) + TILES[other]) // 2
            planted = picture.copy()
            planted[:16, :16] = average
            assert not legal(planted)[0, 0], (KINDS[one], KINDS[other])


def test_a_missing_walker_is_not_legal() -> None:
    _, pictures, _ = walks(1)
    for tile in TILES:
        planted = pictures[0].copy()
        planted[:, 48:64, 80:96] = tile
        assert not legal(planted)[:, 3, 5].any()


@pytest.mark.parametrize("deviation", [0.0, 6.0])
def test_motion_is_read_off_two_pictures(deviation: float) -> None:
    world, pictures, actions = walks(steps=0, worlds=24)
    rng, clear = np.random.default_rng(5), 0
    for _ in range(12):
        before, start = pictures[-1], world.positions()
        actions = np.zeros((24, 5))
        actions[:, :2] = rng.integers(-1, 2, (24, 2))
        pictures.append(world.step(actions)[:, -1])
        moved = (world.positions() != start).any(1)
        expected = np.where(moved, heading(actions), 0)
        found = motion(noisy(before, deviation), noisy(pictures[-1], deviation))
        sure = found.margin > 2
        np.testing.assert_array_equal(found.direction[sure], expected[sure])
        clear += int(sure.sum())
    assert clear > 0.95 * 12 * 24


def test_motion_over_one_kind_everywhere_has_no_margin() -> None:
    meadow = np.tile(TILES[2], (6, 10, 1))
    assert not SOLID[2]
    assert motion(meadow, meadow).margin == 0


def test_other_pictures_are_refused() -> None:
    with pytest.raises(PictureError, match=r"uint8 \[..., 96, 160, 3\] is needed"):
        legal(np.zeros((96, 96, 3), np.uint8))
    with pytest.raises(PictureError, match="float64"):
        tile_kinds(np.zeros((96, 160, 3)))
    with pytest.raises(PictureError, match="equal ones are needed"):
        motion(np.zeros((2, 96, 160, 3), np.uint8), np.zeros((96, 160, 3), np.uint8))
