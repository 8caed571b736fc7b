"""Dreamed worlds as Gymnasium environments: one, or several that are at work at once.

    env = gymnasium.make("worldloop/Dream-v0", world="meadow", reward="east")       after `import worldloop`

Owns the spaces, episodes, their seeds, and rewards that are read from pictures. Does not own the dream (`api`) or the
reading of meadow pictures (`simulators.measure`). Needs the `env` extra.

A dream has no hidden state to be rewarded for. A reward is a function of the pictures alone, so it is as right as the
dream is: an agent may learn what the real world would not give. Try what it has learned in the real one too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from worldloop.api import PictureLike, Session, World, load_world
from worldloop.core.errors import InvalidInputError, NotReadyError
from worldloop.core.types import KEYS, Controls
from worldloop.engine.contract import Frames
from worldloop.loops.snapshot import Snapshot
from worldloop.session.picture_host import Picture
from worldloop.simulators.meadow import FRAME_SIZE
from worldloop.simulators.measure import motion

FRAMES_PER_STEP: Final = 4
SURE_MARGIN: Final = 3.0
"""A step of a tile counts as seen when the next best explanation is worse by this, in RMSE units 0..255."""

Judge = Callable[[Frames, Frames], float]
"""Reward of one step, from the last picture before it and the last picture of it, uint8 `[H, W, 3]` each."""
Ending = Callable[[Frames, Frames], bool]
"""Whether the episode has reached its end, from the same two pictures."""


def _moved(before: Frames, after: Frames) -> int:
    """0 none or not sure, 1 north, 2 south, 3 west, 4 east."""
    seen = motion(before, after)
    return int(seen.direction) if seen.margin >= SURE_MARGIN else 0


REWARDS: Final[dict[str, Judge]] = {
    "none": lambda _before, _after: 0.0,
    "walked": lambda before, after: float(_moved(before, after) > 0),
    "east": lambda before, after: (0.0, 0.0, 0.0, -1.0, 1.0)[_moved(before, after)],
}
"""By name: nothing; tiles walked, whichever way; tiles walked east, less those walked west. The last two read
pictures of the meadow."""


class DreamEnv(gymnasium.Env[NDArray[np.uint8], Any]):
    """One dream at a time; a step holds an action for one latent frame, which is 4 pictures.

    `info` of `reset` and `step` has `frames`, uint8 `[4, H, W, 3]`: the pictures of the step, or the start picture
    four times; `latents`, how many steps the episode has; and `dream_seed`. An episode is never over by itself: it is
    truncated after `max_latents`, or ends where `terminated` says so.

    Args:
        world: a shipped world's name or a path, loaded here; or a loaded world, which stays open afterwards.
        picture: where episodes start: one, or several of which each episode draws one; None is all that ship with
            the world. For several arrays or byte strings give a list.
        nfe, nfe_mode: see `loops.world.WorldRequest`.
        max_latents: length of an episode, in steps.
        reward: one of `REWARDS`, or a function (`Judge`).
        terminated: when the goal is reached; None is never.
        observation: "last" is the last picture, uint8 `[H, W, 3]`; "all" are all of the step, uint8 `[4, H, W, 3]`.
        actions: "discrete" is nothing or one of `keys`, by number; "multi" is a 0 or 1 for each of `keys`.
        keys: the keys that an agent may hold, in order.
        fps: the frame rate that the model is told.
        render_mode: None or "rgb_array".
        loading: choices of `load_world`, such as `{"threads": 1}`.

    Raises:
        InvalidInputError: names the choice that is wrong and what would be right.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 (the base class declares it)

    def __init__(
        self,
        world: World | str | Path = "meadow",
        picture: PictureLike | Sequence[PictureLike] | None = None,
        *,
        nfe: int | None = None,
        nfe_mode: str = "repeat",
        max_latents: int = 64,
        reward: str | Judge = "none",
        terminated: Ending | None = None,
        observation: str = "last",
        actions: str = "discrete",
        keys: Sequence[str] = ("w", "a", "s", "d"),
        fps: float | None = 12.0,
        render_mode: str | None = None,
        loading: Mapping[str, Any] | None = None,
    ) -> None:
        self._session: Session | None = None
        self._answer: Callable[[], Frames] | None = None
        _one_of("render_mode", render_mode, (None, "rgb_array"))
        _one_of("observation", observation, ("last", "all"))
        _one_of("actions", actions, ("discrete", "multi"))
        if isinstance(reward, str):
            _one_of("reward", reward, tuple(REWARDS))
        elif not callable(reward):
            raise InvalidInputError(f"reward={reward!r} must be one of {list(REWARDS)}, or a function")
        if isinstance(max_latents, bool) or not isinstance(max_latents, int) or max_latents < 1:
            raise InvalidInputError(f"max_latents={max_latents!r} must be an integer, 1 or above")
        if not keys or set(keys) - set(KEYS) or len(set(keys)) < len(keys):
            raise InvalidInputError(f"keys={list(keys)} must be different ones of {list(KEYS)}")
        if terminated is not None and not callable(terminated):
            raise InvalidInputError(f"terminated={terminated!r} must be a function of two pictures")
        Controls(fps=fps)
        self._world, self._owned = _open(world, loading)
        try:
            self._judge = self._judge_of(reward)
            self._pictures = self._starts(picture)
        except InvalidInputError:
            self.close()
            raise
        self.render_mode = render_mode
        self._start: dict[str, Any] = {"nfe": nfe, "nfe_mode": nfe_mode, "fps": fps}
        self._max_latents, self._terminated = max_latents, terminated
        self._whole, self._multi, self._keys = observation == "all", actions == "multi", tuple(keys)
        height, width = self._world.picture_size
        shape = (FRAMES_PER_STEP, height, width, 3) if self._whole else (height, width, 3)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = (
            gymnasium.spaces.MultiBinary(len(keys))
            if self._multi
            else gymnasium.spaces.Discrete(1 + len(keys))
        )
        self._frames = np.zeros((FRAMES_PER_STEP, height, width, 3), np.uint8)
        self._latents = 0
        self._dream_seed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin another dream. The same seed gives the same picture and, under the same actions, the same bytes.

        Args:
            seed: of the environment's generator, which draws the start picture and the dream's seed.
            options: `picture` and `seed` (of the dream) instead of drawn ones; or `snapshot`, of a session of the same
                world, to go on from there under the snapshot's own seed and choices.

        Raises:
            InvalidInputError: an unknown option, or one that does not fit.
            SnapshotError: the snapshot is another world's.
        """
        super().reset(seed=seed)
        chosen = self._options(options or {})
        place, drawn = int(self.np_random.integers(len(self._pictures))), int(self.np_random.integers(2**32))
        self._end()
        if "snapshot" in chosen:
            snapshot: Snapshot = chosen["snapshot"]
            self._session = self._world.restore(snapshot, fps=self._start["fps"])
            self._dream_seed = snapshot.request.seed
            newest = self._session.pictures()
        else:
            self._dream_seed = int(chosen.get("seed", drawn))
            picture = chosen.get("picture", self._pictures[place])
            self._session = self._world.start(picture, seed=self._dream_seed, **self._start)
            newest = self._session.first
        self._frames = np.resize(newest, self._frames.shape)
        self._latents = 0
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Hold the keys of `action` for one latent frame.

        Raises:
            NotReadyError: the environment was not reset.
            InvalidInputError: an action outside of the action space.
            SessionEndedError, EngineError: the dream has ended; `reset` begins another.
        """
        if self._answer is None:
            self.submit(self.held(action))
        assert self._answer is not None
        answer, self._answer = self._answer, None
        before, self._frames = self._frames[-1], answer()
        after = self._frames[-1]
        self._latents += 1
        reward = float(self._judge(before, after))
        ended = self._terminated is not None and bool(self._terminated(before, after))
        return self._observation(), reward, ended, self._latents >= self._max_latents, self._info()

    def held(self, action: Any) -> list[str]:
        """The keys of an action.

        Raises:
            InvalidInputError: an action outside of the action space.
        """
        if not self.action_space.contains(action):
            raise InvalidInputError(f"action {action!r} is not in {self.action_space}")
        if self._multi:
            return [key for key, down in zip(self._keys, action, strict=True) if down]
        return [self._keys[int(action) - 1]] if int(action) else []

    def submit(self, keys: Iterable[str]) -> None:
        """Begin a step without waiting for it. The `step` that follows waits; its own action does not count."""
        if self._session is None:
            raise NotReadyError("reset the environment first")
        self._answer = self._session.submit(keys)

    def render(self) -> NDArray[np.uint8] | None:
        """The last picture, uint8 `[H, W, 3]`, or None without a render mode."""
        return self._frames[-1].copy() if self.render_mode == "rgb_array" else None

    def snapshot(self) -> Snapshot:
        """The dream as it stands, for `options={"snapshot": ...}` of any environment on the same world."""
        if self._session is None:
            raise NotReadyError("reset the environment first")
        return self._session.snapshot()

    def close(self) -> None:
        """End the dream, and the world if it was loaded here. May be called twice."""
        self._end()
        if self._owned is not None:
            self._owned.close()

    def _end(self) -> None:
        session, self._session, self._answer = self._session, None, None
        if session is not None:
            session.close()

    def _observation(self) -> NDArray[np.uint8]:
        return self._frames.copy() if self._whole else self._frames[-1].copy()

    def _info(self) -> dict[str, Any]:
        return {"frames": self._frames.copy(), "latents": self._latents, "dream_seed": self._dream_seed}

    def _judge_of(self, reward: str | Judge) -> Judge:
        if not isinstance(reward, str):
            return reward
        if reward != "none" and self._world.picture_size != FRAME_SIZE:
            height, width = self._world.picture_size
            raise InvalidInputError(
                f"reward {reward!r} reads pictures of the meadow, {FRAME_SIZE[0]}x{FRAME_SIZE[1]}; "
                f"these are {height}x{width}: give a function"
            )
        return REWARDS[reward]

    def _starts(self, picture: PictureLike | Sequence[PictureLike] | None) -> list[PictureLike]:
        if picture is None:
            starts: list[PictureLike] = list(self._world.pictures())
        elif isinstance(picture, str | Path | bytes | np.ndarray | Picture):
            starts = [picture]
        else:
            starts = list(picture)
        if not starts:
            raise InvalidInputError("no start picture: none ship with this world, so give `picture`")
        return starts

    @staticmethod
    def _options(options: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(options) - {"picture", "seed", "snapshot"}:
            raise InvalidInputError(
                f"unknown options {sorted(unknown)}; have ['picture', 'seed', 'snapshot']"
            )
        if "snapshot" in options and len(options) > 1:
            raise InvalidInputError("a snapshot has its own picture and seed: give it alone")
        return options


class DreamVectorEnv(SyncVectorEnv):
    """Several dreams of one loaded world. A step asks for all frames, then waits for them, so the engine may batch.

    Environment `i` gives what one `DreamEnv` with the same arguments and seed gives: the same bytes, unless the world
    is run in a mode that batches to a tolerance. One that ends is reset in the same step; its last observation is in
    `info["final_obs"]`, as Gymnasium's `AutoresetMode.SAME_STEP` has it. `reset(seed=s)` seeds environment `i` with
    `s + i`; a list seeds each.

    Args:
        num_envs: how many.
        world, loading, choices: as of `DreamEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        world: World | str | Path = "meadow",
        *,
        loading: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> None:
        if num_envs < 1:
            raise InvalidInputError(f"num_envs={num_envs!r} must be 1 or above")
        self._world, self._owned = _open(world, loading)
        try:
            make = partial(DreamEnv, self._world, **choices)
            super().__init__([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        except BaseException:
            if self._owned is not None:
                self._owned.close()
            raise

    def step(self, actions: Any) -> Any:
        """One step of each; see Gymnasium's `SyncVectorEnv.step`.

        Raises:
            InvalidInputError: too few or too many actions, or one outside of its space; no dream has moved then.
        """
        envs: list[Any] = self.envs
        each = list(iterate(self.action_space, actions))
        if len(each) != len(envs):
            raise InvalidInputError(f"{len(envs)} environments need {len(envs)} actions; got {len(each)}")
        pairs = zip(envs, each, strict=True)
        asked = [(env, env.held(action)) for env, action in pairs]  # all are checked before any begins
        for env, keys in asked:
            env.submit(keys)
        return super().step(actions)

    def close_extras(self, **_: Any) -> None:
        """End the dreams, and the world if it was loaded here."""
        super().close_extras()
        if self._owned is not None:
            self._owned.close()


def _open(world: World | str | Path, loading: Mapping[str, Any] | None) -> tuple[World, World | None]:
    """(the world, itself again if it was loaded here and is to be closed)."""
    if not isinstance(world, World):
        loaded = load_world(world, **(loading or {}))
        return loaded, loaded
    if loading:
        raise InvalidInputError(f"loading={dict(loading)} is for a world that is not loaded yet")
    return world, None


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(f"{name}={value!r} must be one of {list(allowed)}")
