"""Episodes played in a Gymnasium environment with pictures.

A step holds one action for 4 frames. An environment whose `info["frames"]` has the 4 frames of a step gives them
itself; any other is stepped 4 times with the same action. Gymnasium is loaded on use.

Owns the way from observations to pictures and from the five numbers to an environment's own actions. Does not own the
policies (`players`). Called by `recorder`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.still import cover_crop
from worldloop.core.errors import InvalidInputError, SettingsError
from worldloop.trainer.episodes import FRAMES_PER_STEP, NOTHING, Step, check_fps, check_size
from worldloop.trainer.players import Player

EPISODES_PER_SHARD = 8
PICTURE_KEYS = ("screen", "rgb", "image", "pixels")
"""Names under which a dictionary of observations holds its picture, when it has several."""
MOVED = 0.02
"""Share of pixels that change when a player moves."""


class EnvironmentEpisodes:
    """Episodes of a registered environment; episode e has seed `seed + e`.

    Args:
        env_id: as `gymnasium.make` takes it, "module:Name-v0" too.
        episodes, steps: how many, how long at most; an environment may end one earlier.
        seed: of the worlds and of the player's choices.
        policy: one of `players.POLICIES`.
        actions: float32 `[K, 5]`, the meaning of each of K discrete actions; None for an environment whose actions
            are the five numbers themselves.
        size: (height, width) that pictures are scaled and cut to; None keeps theirs.
        fps: frames a second; None takes the environment's `render_fps`.

    Raises:
        InvalidInputError: no such environment, no pictures, or actions whose meaning is not known.
        SettingsError: gymnasium is missing.
    """

    def __init__(
        self,
        env_id: str,
        *,
        episodes: int,
        steps: int,
        seed: int,
        policy: str,
        actions: NDArray[np.float32] | None = None,
        size: tuple[int, int] | None = None,
        fps: float | None = None,
    ) -> None:
        if episodes < 1 or steps < 1 or seed < 0:
            raise InvalidInputError(
                f"episodes {episodes}, steps {steps}, seed {seed}: at least 1, 1 and 0 are needed"
            )
        Player(policy, np.random.default_rng(0), None)
        self.name = env_id
        self._episodes, self._steps, self._seed, self._policy = episodes, steps, seed, policy
        self._env, self._key = _make(env_id)
        self._table = _checked(actions, self._env.action_space, env_id)
        self.fps = check_fps(self._env.metadata.get("render_fps") if fps is None else fps, what=env_id)
        self._size = size
        first = self._picture(self._env.reset(seed=seed)[0])
        self.picture = check_size(*first.shape[:2])
        self.settings = {
            "policy": policy, "steps": steps, "seed": seed, "actions": None if actions is None else actions.tolist(),
        }  # fmt: skip
        starts = range(0, episodes, EPISODES_PER_SHARD)
        self.keys = [f"episodes {s} to {min(s + EPISODES_PER_SHARD, episodes) - 1}" for s in starts]

    def group(self, index: int) -> Iterator[Iterator[Step]]:
        first = index * EPISODES_PER_SHARD
        for episode in range(first, min(first + EPISODES_PER_SHARD, self._episodes)):
            yield self._play(episode)

    def close(self) -> None:
        self._env.close()

    def _play(self, episode: int) -> Iterator[Step]:
        player = Player(self._policy, np.random.default_rng((self._seed, episode)), self._table)
        before = self._picture(self._env.reset(seed=self._seed + episode)[0])
        ended = False
        for step in range(1, self._steps + 1):
            action, row = player.action()
            frames, ended = self._hold(self._native(action, row))
            if len(frames) < FRAMES_PER_STEP:
                if step == 1:
                    raise InvalidInputError(
                        f"{self.name} ended episode {episode} before its first {FRAMES_PER_STEP} frames"
                    )
                return
            if step == 1:
                yield Step(time=0.0, action=NOTHING, frames=before[None])
            yield Step(
                time=(FRAMES_PER_STEP * (step - 1) + 1) / self.fps, action=action, frames=np.stack(frames)
            )
            player.moved(float((frames[-1] != before).any(-1).mean()) > MOVED)
            before = frames[-1]
            if ended:
                return

    def _hold(self, action: Any) -> tuple[list[NDArray[np.uint8]], bool]:
        """(frames made under `action`, fewer than 4 when the episode ended, whether it ended)."""
        frames: list[NDArray[np.uint8]] = []
        while len(frames) < FRAMES_PER_STEP:
            observation, _, terminated, truncated, info = self._env.step(action)
            if "frames" in info:
                given = [self._fit(np.asarray(frame)) for frame in info["frames"]]
                if len(given) != FRAMES_PER_STEP:
                    raise InvalidInputError(
                        f'info["frames"] of {self.name} has {len(given)} frames; must have 4'
                    )
                return given, bool(terminated or truncated)
            frames.append(self._picture(observation))
            if terminated or truncated:
                return frames, True
        return frames, False

    def _native(self, action: tuple[float, ...], row: int | None) -> Any:
        space = self._env.action_space
        return np.array(action, space.dtype) if row is None else int(space.start) + row

    def _picture(self, observation: Any) -> NDArray[np.uint8]:
        """The picture of an observation, or the rendered one when observations have none."""
        if self._key is None:
            return self._fit(np.asarray(self._env.render()))
        return self._fit(np.asarray(observation[self._key] if self._key else observation))

    def _fit(self, picture: NDArray[Any]) -> NDArray[np.uint8]:
        if picture.ndim == 2:
            picture = picture[..., None]
        if picture.shape[-1] not in (1, 3):
            picture = np.moveaxis(picture, 0, -1)
        rgb = np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
        height, width = self._size or (rgb.shape[0], rgb.shape[1])
        return cover_crop(rgb, height=height, width=width)


def _make(env_id: str) -> tuple[Any, str | None]:
    """(environment, key of the picture in its observations: "" is the observation itself, None is `render()`)."""
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as error:
        raise SettingsError(
            "recording an environment needs gymnasium; pip install 'worldloop[train]'"
        ) from error
    if env_id.startswith("worldloop/"):
        importlib.import_module("worldloop.simulators.gym").register()
    try:
        env = gymnasium.make(env_id, disable_env_checker=True)
        key = _picture_key(env.observation_space)
        if key is None:
            env.close()
            env = gymnasium.make(env_id, disable_env_checker=True, render_mode="rgb_array")
    except (gymnasium.error.Error, ImportError) as error:
        raise InvalidInputError(f"environment {env_id!r} cannot be made: {error}") from error
    return env, key


def _picture_key(space: Any) -> str | None:
    if _is_picture(space):
        return ""
    parts = getattr(space, "spaces", None)
    if not isinstance(parts, Mapping):
        return None
    found = [str(key) for key, part in parts.items() if _is_picture(part)]
    return next((key for key in (*PICTURE_KEYS, *found) if key in found), None)


def _is_picture(space: Any) -> bool:
    shape: tuple[int, ...] = getattr(space, "shape", None) or ()
    if getattr(space, "dtype", None) != np.uint8:
        return False
    return len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] in (1, 3)))


def _checked(actions: NDArray[np.float32] | None, space: Any, env_id: str) -> NDArray[np.float32] | None:
    count = getattr(space, "n", None)
    if count is not None and not space.shape:
        if actions is None:
            raise InvalidInputError(
                f"{env_id} has {count} discrete actions; give a table of actions: {count} rows, in their order, of "
                "forward, right, jump, sprint, yaw"
            )
        if actions.shape != (count, 5) or not (np.abs(actions) <= 1).all():
            raise InvalidInputError(
                f"the table of actions is {list(actions.shape)}; must be [{count}, 5], in [-1, 1]"
            )
        return actions
    five = (
        space.shape == (5,) and hasattr(space, "low") and (space.low == -1).all() and (space.high == 1).all()
    )
    if not five:
        raise InvalidInputError(
            f"{env_id} has actions {space}; five numbers in [-1, 1] or a discrete space is needed; wrap the environment"
        )
    if actions is not None:
        raise InvalidInputError(f"{env_id} takes the five numbers themselves; it needs no table of actions")
    return None
