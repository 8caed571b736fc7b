"""Dreamed worlds as Gymnasium environments: the checker's rules, seeds, rewards from pictures, several at once."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import worldloop
from worldloop.environment import REWARDS, DreamEnv, DreamVectorEnv
from worldloop.registration import DREAM_ID
from worldloop.simulators.meadow import Meadow
from worldloop.testing import tiny_world

PICTURES = list(np.random.default_rng(3).integers(0, 256, (3, 48, 64, 3), dtype=np.uint8))
LOADING = {"dtype": "fp32", "threads": 1}
WALK = [1, 4, 0, 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_world(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[worldloop.World]:
    with worldloop.load_world(folder, **LOADING) as world:
        yield world


def env_of(world: worldloop.World, **choices: Any) -> DreamEnv:
    return DreamEnv(world, PICTURES, **choices)


def played(env: DreamEnv, seed: int | None, walk: list[Any] = WALK) -> list[np.ndarray]:
    return [env.reset(seed=seed)[0], *(env.step(action)[0] for action in walk)]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def brightness(before: np.ndarray, after: np.ndarray) -> float:
    return float(after.mean() - before.mean())


@pytest.mark.parametrize("choices", [{}, {"observation": "all", "actions": "multi"}], ids=["plain", "whole"])
def test_passes_gymnasium_own_checks(folder: Path, choices: dict[str, Any]) -> None:
    env = gymnasium.make(
        DREAM_ID, world=str(folder), picture=PICTURES, loading=LOADING, render_mode="rgb_array", **choices
    )

    check_env(env.unwrapped)
    env.close()
    env.close()


@pytest.mark.parametrize("first", ["worldloop", "gymnasium"])
def test_the_id_is_known_whichever_package_comes_first(first: str) -> None:
    second = {"worldloop": "gymnasium", "gymnasium": "worldloop"}[first]
    code = (
        f"import {first}, {second}, gymnasium, sys;"
        f"print({DREAM_ID!r} in gymnasium.registry, 'torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "False"]


def test_the_same_seed_gives_the_same_bytes(world: worldloop.World) -> None:
    env, other = env_of(world), env_of(world)

    once = played(env, 5)

    assert same(once, played(env, 5))
    assert same(once, played(other, 5))
    assert not same(once, played(env, 6))
    assert not same(once[1:], played(env, 5, [2, 2, 2, 2])[1:])


def test_an_environment_gives_what_the_session_gives(world: worldloop.World) -> None:
    env = env_of(world, observation="all", actions="multi", keys=("w", "d", "left"))
    first, info = env.reset(options={"picture": PICTURES[1], "seed": 9})
    shown = [env.step(np.array(action, np.int8)) for action in ([1, 1, 0], [0, 0, 0], [0, 0, 1])]

    with world.start(PICTURES[1], seed=9) as session:
        wanted = [session.step(keys) for keys in ({"w", "d"}, (), {"left"})]
        assert np.array_equal(first, np.repeat(session.first, 4, 0))

    assert same([each[0] for each in shown], wanted)
    assert same([each[4]["frames"] for each in shown], wanted)
    assert info["dream_seed"] == 9
    assert [each[4]["latents"] for each in shown] == [1, 2, 3]


def test_episodes_draw_their_start_picture_and_seed(world: worldloop.World) -> None:
    env = env_of(world)
    env.reset(seed=1)
    firsts = [env.reset() for _ in range(12)]

    assert len({first.tobytes() for first, _ in firsts}) == len(PICTURES)
    assert len({info["dream_seed"] for _, info in firsts}) == len(firsts)


def test_an_episode_is_cut_at_its_length_and_ends_where_it_is_told(world: worldloop.World) -> None:
    env = env_of(world, max_latents=3, reward=brightness)
    before, _ = env.reset(seed=2)
    steps = [env.step(1) for _ in range(3)]
    at_once = env_of(world, terminated=lambda before, after: not np.array_equal(before, after))
    at_once.reset(seed=2)

    assert [(each[2], each[3]) for each in steps] == [(False, False), (False, False), (False, True)]
    pictures = [before, *(each[0] for each in steps)]
    assert [each[1] for each in steps] == [brightness(a, b) for a, b in itertools.pairwise(pictures)]
    assert at_once.step(1)[2:4] == (True, False)


def test_named_rewards_read_how_a_meadow_moved() -> None:
    meadow = Meadow(4)
    before = meadow.reset()
    walked, east, directions = [], [], []
    for action in [(0, 1), (0, 1), (0, 1), (0, -1), (0, -1), (1, 0), (-1, 0), (0, 0)]:
        at = meadow.y, meadow.x
        after = meadow.step([*action, 0, 0, 0])[-1]
        directions.append((meadow.y - at[0], meadow.x - at[1]))
        walked.append(REWARDS["walked"](before, after))
        east.append(REWARDS["east"](before, after))
        before = after

    assert walked == [float(moved != (0, 0)) for moved in directions]
    assert east == [float(right) for _, right in directions]
    assert {-1.0, 0.0, 1.0} == set(east)
    flat = np.full_like(before, 90)
    assert REWARDS["walked"](flat, flat) == 0.0


def test_several_at_once_give_the_bytes_of_each_alone(world: worldloop.World) -> None:
    seeds = [7, 3, 7, 5]
    walks = np.array([[1, 4, 0], [2, 2, 1], [3, 0, 0], [0, 0, 4]])
    several = DreamVectorEnv(4, world, picture=PICTURES, reward=brightness)

    several.reset(seed=seeds)
    steps = [several.step(walks[:, n]) for n in range(3)]
    alone = []
    for seed, walk in zip(seeds, walks, strict=True):
        env = env_of(world, reward=brightness)
        env.reset(seed=seed)
        alone.append([env.step(int(action))[:2] for action in walk])

    shown = [[steps[n][0][i] for n in range(3)] for i in range(4)]
    assert all(same(shown[i], [each[0] for each in alone[i]]) for i in range(4))
    assert [list(steps[n][1]) for n in range(3)] == [[alone[i][n][1] for i in range(4)] for n in range(3)]
    # The control: seeds at other places are other dreams.
    swapped = DreamVectorEnv(4, world, picture=PICTURES)
    swapped.reset(seed=[3, 7, 5, 7])
    assert not np.array_equal(steps[0][0], swapped.step(walks[:, 0])[0])
    several.close()
    swapped.close()


def test_all_frames_are_asked_for_before_any_is_waited_for(
    world: worldloop.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    submit, step = DreamEnv.submit, DreamEnv.step
    monkeypatch.setattr(DreamEnv, "submit", lambda self, keys: (order.append("ask"), submit(self, keys))[1])
    monkeypatch.setattr(DreamEnv, "step", lambda self, action: (order.append("wait"), step(self, action))[1])
    several = DreamVectorEnv(3, world, picture=PICTURES)
    several.reset(seed=1)

    several.step(np.array([1, 2, 3]))

    assert order == ["ask"] * 3 + ["wait"] * 3
    several.close()


def test_one_that_ends_is_reset_in_the_same_step(world: worldloop.World) -> None:
    several = DreamVectorEnv(2, world, picture=PICTURES, max_latents=2)
    several.reset(seed=[4, 8])
    several.step(np.array([1, 1]))
    several.reset(seed=[11, 0], options={"reset_mask": np.array([True, False])})
    seen, _, _, truncated, info = several.step(np.array([2, 2]))
    following = several.step(np.array([3, 3]))

    env = env_of(world)
    last = played(env, 8, [1, 2])[-1]
    after = env.reset()[0]
    then = env.step(3)[0]
    assert list(truncated) == [False, True]
    assert np.array_equal(info["final_obs"][1], last)
    assert np.array_equal(seen[1], after)
    assert not np.array_equal(last, after)
    assert np.array_equal(following[0][1], then)
    assert np.array_equal(seen[0], played(env, 11, [2])[-1])
    several.close()


def test_make_vec_gives_the_batched_environment(folder: Path) -> None:
    several = gymnasium.make_vec(DREAM_ID, num_envs=2, world=str(folder), picture=PICTURES, loading=LOADING)

    seen, info = several.reset(seed=0)
    assert isinstance(several, DreamVectorEnv)
    assert several.step(several.action_space.sample())[0].shape == seen.shape == (2, 48, 64, 3)
    assert info["frames"].shape == (2, 4, 48, 64, 3)
    assert several.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
    several.close()


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_snapshot_is_where_an_episode_begins(world: worldloop.World, steps: int) -> None:
    env, other = env_of(world), env_of(world)
    newest = played(env, 5, [1] * steps)[-1]
    snapshot = env.snapshot()
    wanted = [env.step(action)[0] for action in WALK]

    first, info = other.reset(seed=77, options={"snapshot": snapshot})
    found = [other.step(action)[0] for action in WALK]

    assert np.array_equal(first, newest)
    assert same(found, wanted)
    assert info["latents"] == 0
    assert info["dream_seed"] == env._dream_seed
    # The control: the same actions from the start picture are another dream.
    assert steps == 0 or not same(found, played(other, 5, WALK)[1:])


def test_several_begin_at_one_snapshot_and_part_by_their_actions(world: worldloop.World) -> None:
    env = env_of(world)
    played(env, 5)
    several = DreamVectorEnv(3, world, picture=PICTURES)

    first, _ = several.reset(options={"snapshot": env.snapshot()})
    seen = several.step(np.array([1, 1, 2]))[0]

    assert np.array_equal(first[0], first[2])
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])
    several.close()


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"reward": "west"}, r"reward='west' must be one of \['none', 'walked', 'east'\]"),
        ({"reward": "east"}, r"reads pictures of the meadow, 96x160; these are 48x64"),
        ({"max_latents": 0}, "max_latents=0 must be an integer, 1 or above"),
        ({"observation": "first"}, "observation='first' must be one of"),
        ({"actions": "box"}, "actions='box' must be one of"),
        ({"keys": ("w", "q")}, r"keys=\['w', 'q'\] must be different ones of"),
        ({"keys": ("w", "w")}, "must be different ones"),
        ({"render_mode": "human"}, "render_mode='human' must be one of"),
        ({"reward": 1.0}, "reward=1.0 must be one of .* or a function"),
        ({"terminated": True}, "terminated=True must be a function"),
        ({"fps": 0}, "fps=0 must be a number in"),
        ({"loading": {"threads": 2}}, "is for a world that is not loaded yet"),
    ],
)
def test_a_wrong_choice_is_refused(world: worldloop.World, choices: dict[str, Any], says: str) -> None:
    with pytest.raises(worldloop.InvalidInputError, match=says):
        env_of(world, **choices)


def test_a_world_without_pictures_needs_one(world: worldloop.World) -> None:
    with pytest.raises(worldloop.InvalidInputError, match="none ship with this world"):
        DreamEnv(world)


def test_wrong_use_is_refused_and_does_no_harm(world: worldloop.World) -> None:
    env = env_of(world)
    with pytest.raises(worldloop.NotReadyError, match="reset the environment first"):
        env.step(0)
    with pytest.raises(worldloop.NotReadyError, match="reset the environment first"):
        env.snapshot()
    env.reset(seed=5)
    for options, says in [
        ({"sed": 1}, r"unknown options \['sed'\]; have \['picture', 'seed', 'snapshot'\]"),
        ({"snapshot": None, "seed": 1}, "give it alone"),
    ]:
        with pytest.raises(worldloop.InvalidInputError, match=says):
            env.reset(options=options)
    with pytest.raises(worldloop.InvalidInputError, match=r"action 5 is not in Discrete\(5\)"):
        env.step(5)
    several = DreamVectorEnv(2, world, picture=PICTURES)
    several.reset(seed=5)
    with pytest.raises(worldloop.InvalidInputError, match="action"):
        several.step(np.array([1, 9]))
    with pytest.raises(worldloop.InvalidInputError, match="2 environments need 2 actions; got 3"):
        several.step(np.array([1, 1, 1]))

    wanted = played(env_of(world), 5, [1])[-1]
    assert np.array_equal(several.step(np.array([1, 1]))[0][0], wanted)
    several.close()


def test_gymnasium_makes_environments_of_a_world_that_is_loaded(world: worldloop.World) -> None:
    env = gymnasium.make("worldloop/Dream-v0", world=world, picture=PICTURES)

    assert env.spec is not None
    assert env.reset(seed=1)[0].shape == (48, 64, 3)
    env.close()


def test_a_world_that_was_loaded_elsewhere_stays_open(world: worldloop.World, folder: Path) -> None:
    env, several = env_of(world), DreamVectorEnv(2, world, picture=PICTURES)
    env.reset(seed=1)
    several.reset(seed=1)
    env.close()
    several.close()
    owner = DreamEnv(folder, PICTURES, loading=LOADING)
    owner.reset(seed=1)
    owner.close()

    assert len(played(env_of(world), 1)) == 5
    with pytest.raises(worldloop.SessionEndedError):
        owner.reset()
