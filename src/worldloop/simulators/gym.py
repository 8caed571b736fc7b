"""The simulators as Gymnasium environments.

Owns the wrapping and the ids "worldloop/Meadow-v0" and "worldloop/Maze-v0". Needs the `env` extra; the
simulators themselves don't. Called by users who record or train, after `register()`.

There is no task: rewards are 0 and episodes end only where the caller cuts them.
"""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.maze import Maze
from worldloop.simulators.meadow import Meadow

_SEEDS = 2**31


class _Simulator(Protocol):
    seed: int

    def reset(self, seed: int | None = None) -> NDArray[np.uint8]: ...

    def step(self, action: list[float], /) -> NDArray[np.uint8]: ...


class _SimulatorEnv(gymnasium.Env[NDArray[np.uint8], NDArray[np.float32]]):
    """One simulator; an observation is the last of the 4 frames of a step, all 4 are in `info["frames"]`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 (the base class declares it)

    def __init__(self, simulator: _Simulator, render_mode: str | None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise gymnasium.error.Error(f"render_mode is {render_mode!r}; None or 'rgb_array' is needed")
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (96, 160, 3), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)
        self._simulator = simulator
        self._frames = self._still(simulator.reset())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start a new world: the one of `seed`, or one drawn from the environment's own generator.

        `options["world"]` names the simulator's seed itself and wins over both.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(_SEEDS))
        world = int((options or {}).get("world", drawn))
        self._frames = self._still(self._simulator.reset(world))
        return self._frames[-1], self._info()

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Hold `action`, `[forward - back, right - left, jump, sprint, yaw]`, for 4 frames."""
        self._frames = self._simulator.step([float(value) for value in action])
        return self._frames[-1], 0.0, False, False, self._info()

    def render(self) -> NDArray[np.uint8] | None:
        """The last frame, uint8 [96, 160, 3], or None without a render mode."""
        return self._frames[-1].copy() if self.render_mode == "rgb_array" else None

    def _info(self) -> dict[str, Any]:
        return {"frames": self._frames, "world": self._simulator.seed}

    @staticmethod
    def _still(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.repeat(picture[None], 4, 0)


class MeadowEnv(_SimulatorEnv):
    """The meadow; a step walks one tile. Observations uint8 [96, 160, 3], actions in [-1, 1]^5."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(Meadow(0), render_mode)


class MazeEnv(_SimulatorEnv):
    """The maze, first person. Observations uint8 [96, 160, 3], actions in [-1, 1]^5."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(Maze(0), render_mode)


def register() -> None:
    """Make the ids known to `gymnasium.make`; calling it again changes nothing."""
    for name in ("Meadow", "Maze"):
        world = f"worldloop/{name}-v0"
        if world not in gymnasium.registry:
            gymnasium.register(id=world, entry_point=f"{__name__}:{name}Env")
