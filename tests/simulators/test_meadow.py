from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest

from worldloop.core.errors import InvalidInputError
from worldloop.core.types import NO_ACTION
from worldloop.simulators import terrain
from worldloop.simulators.meadow import Meadow, VectorMeadow, heading, patch_table, render
from worldloop.simulators.tiles import BRIDGE, GRASS, SOLID, TILES

KEY = {"w": (1, 0, 0, 0, 0), "s": (-1, 0, 0, 0, 0), "a": (0, -1, 0, 0, 0), "d": (0, 1, 0, 0, 0)}
REST = (0.0,) * 5


def random_actions(rng: np.random.Generator, steps: int, worlds: int) -> np.ndarray:
    actions = np.zeros((steps, worlds, 5))
    actions[..., :2] = rng.integers(-1, 2, (steps, worlds, 2))
    return actions


def test_vector_meadow_shows_what_plain_meadows_show() -> None:
    seeds = [0, 1, 2, 9_000_000_001]
    plain, vector = [Meadow(seed) for seed in seeds], VectorMeadow(seeds)
    np.testing.assert_array_equal(vector.reset(), [world.reset() for world in plain])
    for actions in random_actions(np.random.default_rng(1), 60, len(seeds)):
        np.testing.assert_array_equal(
            vector.step(actions), [world.step(action) for world, action in zip(plain, actions, strict=True)]
        )
        np.testing.assert_array_equal(vector.windows(), [world.window() for world in plain])
        assert vector.positions().tolist() == [[world.y, world.x] for world in plain]
        assert ["nswe"[facing] for facing in vector.facings()] == [world.facing for world in plain]


def test_step_is_render_of_step_indices() -> None:
    pictures, indices = VectorMeadow([5, 6]), VectorMeadow([5, 6])
    for actions in random_actions(np.random.default_rng(2), 10, 2):
        np.testing.assert_array_equal(pictures.step(actions), render(indices.step_indices(actions)))


def test_render_keeps_leading_axes() -> None:
    world = VectorMeadow([1, 2])
    clip = np.stack([world.reset_indices(), world.step_indices(np.array([KEY["d"], KEY["w"]]))], 1)
    assert render(clip).shape == (2, 2, 4, 96, 160, 3)
    np.testing.assert_array_equal(render(clip)[1, 0], render(clip[1, 0]))


def test_patch_table_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        patch_table()[0] = 0


@pytest.mark.parametrize(("key", "dy", "dx"), [("w", -1, 0), ("s", 1, 0), ("a", 0, -1), ("d", 0, 1)])
def test_a_step_walks_one_tile_or_turns_at_a_solid_one(key: str, dy: int, dx: int) -> None:
    world = VectorMeadow(range(40))
    blocked = 0
    for _ in range(12):
        before, place = world.windows(), world.positions()
        solid = SOLID[before[:, 3 + dy, 5 + dx]]
        world.step_indices(np.array([KEY[key]] * 40))
        np.testing.assert_array_equal(world.positions() - place, np.outer(~solid, (dy, dx)))
        np.testing.assert_array_equal(world.windows()[solid], before[solid])
        assert {"nswe"[facing] for facing in world.facings()} == {
            {"w": "n", "s": "s", "a": "w", "d": "e"}[key]
        }
        assert not SOLID[world.windows()[:, 3, 5]].any()
        blocked += int(solid.sum())
    assert 20 < blocked < 460


def test_walkers_spawn_with_room_and_variety_around() -> None:
    views = VectorMeadow(range(60)).windows()
    assert min(len(np.unique(view)) for view in views) >= 5
    assert (~SOLID[views]).sum((1, 2)).min() >= 16


def test_pictures_and_places_are_those_that_shipped_weights_were_trained_on() -> None:
    tops, lefts = np.arange(200) * 97 - 9000, np.arange(200) * -31
    kinds = terrain.windows(np.arange(200), tops, lefts, (12, 20))
    assert sha256(patch_table().tobytes()).hexdigest()[:16] == "bdb80b973b3dadbf"
    assert sha256(kinds.tobytes()).hexdigest()[:16] == "83bf8d6da99f4564"
    assert sha256(VectorMeadow(range(20)).positions().tobytes()).hexdigest()[:16] == "09f17cb5775a6fb6"


def test_frames_of_a_step_scroll_four_pixels_each() -> None:
    world = next(w for w in map(Meadow, range(50)) if not SOLID[w.window()[3, 6]])
    before = world.reset()
    frames = world.step(KEY["d"])
    for n in range(1, 5):
        np.testing.assert_array_equal(frames[n - 1, :48, : 160 - 4 * n], before[:48, 4 * n :])
    np.testing.assert_array_equal(frames[3], world.step(REST)[0])


def test_standing_repeats_one_picture() -> None:
    world = Meadow(3)
    first = world.reset()
    for frame in world.step(REST):
        np.testing.assert_array_equal(frame, first)


def test_heading_of_axes_and_of_no_action() -> None:
    actions = np.array(
        [
            *(KEY["w"], KEY["s"], KEY["a"], KEY["d"], REST),
            *((1, 1, 0, 0, 0), (-1, -1, 0, 0, 0), (0.2, -0.7, 0, 0, 0), (0, 0, 1, 1, 1), (NO_ACTION,) * 5),
        ]
    )
    assert heading(actions).tolist() == [1, 2, 3, 4, 0, 1, 2, 3, 0, 0]


def test_worlds_follow_their_seeds_and_share_nothing() -> None:
    np.testing.assert_array_equal(Meadow(7).reset(), Meadow(7).reset())
    assert not np.array_equal(Meadow(7).reset(), Meadow(8).reset())
    world, twin = Meadow(7), Meadow(7)
    for key in "wasd":
        world.step(KEY[key])
    assert (twin.facing, world.facing) == ("s", "e")
    np.testing.assert_array_equal(twin.step(REST)[0], Meadow(7).reset())


def test_wrong_action_shapes_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"shape \(4,\); \(5,\) is needed"):
        Meadow(0).step((0, 0, 0, 0))
    with pytest.raises(InvalidInputError, match=r"shape \(1, 5\); \(2, 5\) is needed"):
        VectorMeadow([0, 1]).step(np.zeros((1, 5)))


def test_windows_agree_where_they_overlap_at_negative_coordinates_too() -> None:
    large = terrain.windows(np.array([4]), np.array([-9]), np.array([-13]), (18, 26))[0]
    small = terrain.windows(np.array([4]), np.array([-3]), np.array([-4]), (6, 10))[0]
    np.testing.assert_array_equal(large[6:12, 9:19], small)


def test_every_kind_occurs_and_grass_is_common() -> None:
    kinds = terrain.windows(np.arange(40), np.arange(40) * 64, np.arange(40) * -64, (40, 40))
    share = np.bincount(kinds.ravel(), minlength=len(TILES)) / kinds.size
    assert (share > 0.01).all()
    assert share[GRASS] > 0.2


def test_bridges_have_water_and_paths_around_them() -> None:
    kinds = terrain.windows(np.arange(30), np.zeros(30, int), np.zeros(30, int), (40, 40))
    world, y, x = (kinds[:, 1:-1, 1:-1] == BRIDGE).nonzero()
    near = np.stack(
        [kinds[world, y + 1 + dy, x + 1 + dx] for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1))], 1
    )
    walkable = ~SOLID[near]
    assert len(world) > 50
    assert (walkable.sum(1) >= 1).all()


def test_captions_name_what_is_in_view() -> None:
    captions = [Meadow(seed).caption() for seed in range(40)]
    assert any("a lake" in caption for caption in captions)
    assert any("forest" in caption for caption in captions)
    assert len(set(captions)) > 30
