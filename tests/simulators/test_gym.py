from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from worldloop.simulators.gym import MazeEnv, MeadowEnv, register


@pytest.mark.parametrize(("name", "kind"), [("Meadow", MeadowEnv), ("Maze", MazeEnv)])
def test_passes_gymnasium_own_checks(name: str, kind: type) -> None:
    register()
    env = gymnasium.make(f"worldloop/{name}-v0", render_mode="rgb_array").unwrapped
    assert type(env) is kind
    check_env(env)


@pytest.mark.parametrize("name", ["worldloop/Meadow-v0", "worldloop/Maze-v0"])
def test_registered_ids_make_seeded_environments(name: str) -> None:
    register()
    register()
    env = gymnasium.make(name, render_mode="rgb_array")
    first, info = env.reset(seed=4)
    again, info_again = env.reset(seed=4)
    other, _ = env.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    assert info["world"] == info_again["world"]
    assert not np.array_equal(first, other)
    picture, reward, terminated, truncated, info = env.step(np.array([1, 0, 0, 0, 0], np.float32))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["frames"].shape == (4, 96, 160, 3)
    np.testing.assert_array_equal(picture, info["frames"][-1])
    np.testing.assert_array_equal(env.render(), picture)
    env.close()


def test_options_choose_the_world() -> None:
    env = MeadowEnv()
    _, info = env.reset(seed=1, options={"world": 77})
    assert info["world"] == 77
    assert env.render() is None


def test_unknown_render_mode_is_refused() -> None:
    with pytest.raises(gymnasium.error.Error, match="'human'"):
        MeadowEnv(render_mode="human")


def test_simulators_need_neither_gymnasium_nor_pillow_nor_torch() -> None:
    code = (
        "import sys, worldloop.simulators.meadow, worldloop.simulators.maze, worldloop.simulators.measure;"
        "print(sorted({'gymnasium', 'PIL', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
