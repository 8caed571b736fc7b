"""Teach a small agent to walk east in dreams, then see what it does in the world that was dreamed of.

python examples/agent.py curve.png --minutes 3

The agent sees pictures only and learns in the dream only (PPO, a network of 5,062 weights). Its reward is read from
the dream's pictures. The test at the end counts tiles walked east by it, by a random agent and by one that always
presses "d": in dreams from pictures it has not seen, by the pictures; and in the simulator, by the walker's true
position.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import worldloop
from worldloop.environment import DreamVectorEnv
from worldloop.simulators.meadow import WALKER_CELL, Meadow, VectorMeadow
from worldloop.simulators.tiles import TILE_SIZE
from worldloop.trainer.charts import Curve, panel

KEYS = np.array(
    [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (0, -1, 0, 0, 0), (-1, 0, 0, 0, 0), (0, 1, 0, 0, 0)], np.float32
)
"""What the environment's actions (none, w, a, s, d) are to the simulator."""
NEAR = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1, 2) if (dy, dx) != (0, 0)]
"""The tiles around the walker that the agent looks at: (rows down, columns right)."""
TRAIN_WORLDS, TEST_WORLDS = 1000, 2000
"""First seeds of the simulator's worlds whose first pictures dreams start from."""
DISCOUNT, SMOOTHING, CLIP, ENTROPY, EPOCHS = 0.9, 0.9, 0.2, 0.01, 8


class Worlds(Protocol):
    """N worlds that are walked together: pictures uint8 `[N, 96, 160, 3]`, rewards `[N]`."""

    def reset(self, seed: int) -> NDArray[np.uint8]: ...

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]: ...


class Dreams:
    """Dreams from first pictures of the simulator's worlds `first` to `first + pictures`."""

    def __init__(self, world: worldloop.World, count: int, *, length: int, first: int, pictures: int) -> None:
        starts = [Meadow(seed).reset() for seed in range(first, first + pictures)]
        # One step longer than it is played, so that no dream begins again before `reset` asks for it.
        self._env = DreamVectorEnv(count, world, picture=starts, reward="east", max_latents=length + 1)

    def reset(self, seed: int) -> NDArray[np.uint8]:
        return self._env.reset(seed=seed)[0]

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        pictures, rewards, *_ = self._env.step(actions)
        return pictures, rewards

    def close(self) -> None:
        self._env.close()


class Real:
    """The simulator, in worlds `first` to `first + worlds`; rewards are true steps east."""

    def __init__(self, count: int, *, first: int, worlds: int) -> None:
        self._count, self._first, self._worlds = count, first, worlds

    def reset(self, seed: int) -> NDArray[np.uint8]:
        drawn = self._first + np.random.default_rng(seed).integers(self._worlds, size=self._count)
        self._meadows = VectorMeadow([int(world) for world in drawn])
        return self._meadows.reset()

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        before = self._meadows.positions()[:, 1]
        pictures = self._meadows.step(KEYS[actions])[:, -1]
        return pictures, (self._meadows.positions()[:, 1] - before).astype(np.float64)


class Agent(nn.Module):
    """Mean and deviation of colour of the tiles around the walker, and the last action, to actions and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6 * len(NEAR) + len(KEYS) + 1, 64), nn.Tanh())
        self.policy, self.value = nn.Linear(64, len(KEYS)), nn.Linear(64, 1)
        nn.init.zeros_(self.policy.weight)
        nn.init.zeros_(self.policy.bias)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """`[N, F]` to (logarithms of the actions' chances `[N, 5]`, values `[N]`)."""
        hidden = self.body(seen)
        return self.policy(hidden).log_softmax(-1), self.value(hidden)[..., 0]


class Blind(Agent):
    """Actions of fixed chances, whatever is seen."""

    def __init__(self, chances: list[float]) -> None:
        super().__init__()
        self._log_chances = torch.tensor(chances).log()

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        return self._log_chances.expand(*seen.shape[:-1], -1), torch.zeros(seen.shape[:-1])


def look(pictures: NDArray[np.uint8], before: NDArray[np.uint8], actions: NDArray[np.int64]) -> Tensor:
    """What the agent sees, `[N, F]`: tiles near the walker, its last action, and whether anything moved."""
    y, x = WALKER_CELL
    tiles = [
        pictures[:, (y + dy) * TILE_SIZE :, (x + dx) * TILE_SIZE :][:, :TILE_SIZE, :TILE_SIZE] / 255
        for dy, dx in NEAR
    ]
    colours = [part for tile in tiles for part in (tile.mean((1, 2)) - 0.5, 4 * tile.std((1, 2)))]
    moved = np.abs(pictures.astype(np.int16) - before).mean((1, 2, 3)) > 4
    seen = np.concatenate([*colours, np.eye(len(KEYS))[actions], moved[:, None]], -1)
    return torch.from_numpy(seen.astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class Walk:
    """One episode of N worlds, T steps: `seen [T + 1, N, F]`, `actions`, `rewards`, `log_chances`: `[T, N]`."""

    seen: Tensor
    actions: Tensor
    rewards: Tensor
    log_chances: Tensor


@torch.no_grad()
def walk(worlds: Worlds, agent: Agent, length: int, *, seed: int, draw: torch.Generator) -> Walk:
    """Let the agent play an episode."""
    pictures = worlds.reset(seed)
    seen = [look(pictures, pictures, np.zeros(len(pictures), np.int64))]
    actions, rewards, log_chances = [], [], []
    for _ in range(length):
        chances, _ = agent(seen[-1])
        action = torch.multinomial(chances.exp(), 1, generator=draw)
        before, (pictures, reward) = pictures, worlds.step(action[:, 0].numpy())
        seen.append(look(pictures, before, action[:, 0].numpy()))
        actions.append(action[:, 0])
        rewards.append(torch.from_numpy(reward).float())
        log_chances.append(chances.gather(1, action)[:, 0])
    return Walk(
        seen=torch.stack(seen),
        actions=torch.stack(actions),
        rewards=torch.stack(rewards),
        log_chances=torch.stack(log_chances),
    )


def improve(agent: Agent, optimiser: torch.optim.Optimizer, played: Walk) -> None:
    """PPO (Schulman et al. 2017, arXiv:1707.06347) on one episode of all worlds."""
    with torch.no_grad():
        values = agent(played.seen)[1]
    gain, gains = torch.zeros_like(played.rewards[0]), []
    last = len(played.rewards) - 1
    for step in range(last, -1, -1):
        # At the end of the episode the dream would have gone on: its value stands for the rest.
        ahead = values[min(step + 1, last)]
        gain = played.rewards[step] + DISCOUNT * ahead - values[step] + DISCOUNT * SMOOTHING * gain
        gains.append(gain)
    gains_TN = torch.stack(gains[::-1])
    wanted = gains_TN + values[:-1]
    better = (gains_TN - gains_TN.mean()) / (gains_TN.std() + 1e-6)
    for _ in range(EPOCHS):
        chances, value = agent(played.seen[:-1])
        ratio = (chances.gather(-1, played.actions[..., None])[..., 0] - played.log_chances).exp()
        clipped = torch.minimum(ratio * better, ratio.clamp(1 - CLIP, 1 + CLIP) * better)
        spread = -(chances.exp() * chances).sum(-1)
        loss = -clipped.mean() + 0.5 * (value - wanted).square().mean() - ENTROPY * spread.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def train(
    worlds: Worlds, agent: Agent, *, length: int, minutes: float, batches: int, seed: int
) -> list[float]:
    """Play and improve until the time or the batches are over; returns the mean return of each batch of episodes."""
    draw = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(agent.parameters(), lr=5e-3)
    returns: list[float] = []
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and len(returns) < batches:
        played = walk(worlds, agent, length, seed=seed + 100 * len(returns), draw=draw)
        improve(agent, optimiser, played)
        returns.append(float(played.rewards.sum(0).mean()))
        print(f"batch {len(returns)}: {returns[-1]:+.2f} tiles east an episode", flush=True)
    return returns


def tiles_east(worlds: Worlds, agent: Agent, length: int) -> float:
    """Mean over the worlds."""
    played = walk(worlds, agent, length, seed=1, draw=torch.Generator().manual_seed(1))
    return float(played.rewards.sum(0).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("curve", type=Path, help="PNG file to write")
    parser.add_argument("--world", default="meadow")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training at most")
    parser.add_argument("--batches", type=int, default=10_000, help="of episodes to train on at most")
    parser.add_argument("--dreams", type=int, default=8, help="dreams at once")
    parser.add_argument("--length", type=int, default=24, help="steps of an episode")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    agent, length, count = Agent(), options.length, options.dreams
    with worldloop.load_world(options.world, threads=options.threads) as world:
        dreams = Dreams(world, count, length=length, first=TRAIN_WORLDS, pictures=64)
        returns = train(
            dreams, agent, length=length, minutes=options.minutes, batches=options.batches, seed=options.seed
        )
        dreams.close()
        unseen = Dreams(world, 2 * count, length=length, first=TEST_WORLDS, pictures=64)
        tests: list[tuple[str, Worlds]] = [
            ("unseen dreams", unseen),
            ("the simulator", Real(16 * count, first=TEST_WORLDS, worlds=64)),
        ]
        players = {
            "random agent": Blind([0.2] * 5),
            "always east": Blind([0.0, 0.0, 0.0, 0.0, 1.0]),
            "trained agent": agent,
        }
        for (place, worlds), (name, player) in itertools.product(tests, players.items()):
            print(
                f"{name} in {place}: {tiles_east(worlds, player, length):+.2f} tiles east in {length} steps"
            )
        unseen.close()
    chart = Curve(
        title="An agent learns in the dream to walk east",
        x_label="episodes",
        y_label=f"tiles east in {length} steps",
        x=[float(count * (batch + 1)) for batch in range(len(returns))],
        series={f"mean of {count} dreams": list(returns)},
    )
    panel(chart).save(options.curve)
    print(f"wrote {options.curve}")


if __name__ == "__main__":
    main()
