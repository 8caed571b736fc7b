"""Training data: walks as patch indices, pictures rendered on demand, and latents encoded once.

Shapes: E episodes, S steps an episode, N cells, C channels, B clips, T frames of a clip.

A simulated walk is kept as rows of the simulator's patch table, 240 bytes a latent frame. The encoder looks at one
cell at a time, so a walk is encoded by encoding each pair of (patch before, patch now) that occurs once. Owns both
forms and the drawing of clips, from these and from recorded episodes (`recorded`). Called by `autoencoder`,
`sources` and `evaluate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor

from worldloop.core.errors import InvalidInputError
from worldloop.models.autoencoder import GROUP, Autoencoder, LatentStats, normalise
from worldloop.simulators.meadow import VectorMeadow
from worldloop.simulators.patches import patch_table
from worldloop.trainer.walks import Walkers


@dataclass(frozen=True, kw_only=True, slots=True)
class Walks:
    """Walks through simulated worlds.

    Attributes:
        patches: int32 `[E, S + 1, rows, columns]` rows of the patch table; step 0 is the picture at rest.
        actions: float32 `[E, S + 1, 5]`; that of step 0 is zero.
    """

    patches: NDArray[np.int32]
    actions: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.patches)


def record_walks(seeds: range, steps: int, *, seed: int) -> Walks:
    """One walk of `steps` steps in each world of `seeds`; `seed` draws the players' choices."""
    rng = np.random.default_rng(seed)
    worlds = VectorMeadow(seeds)
    walkers = Walkers(len(seeds), rng)
    first = worlds.reset_indices()
    patches = np.empty((len(seeds), steps + 1, *first.shape[1:]), np.int32)
    actions = np.zeros((len(seeds), steps + 1, 5), np.float32)
    patches[:, 0] = first
    for step in range(1, steps + 1):
        before = worlds.positions()
        actions[:, step] = walkers.actions()
        patches[:, step] = worlds.step_indices(actions[:, step])
        walkers.moved((worlds.positions() != before).any(1))
    return Walks(patches=patches, actions=actions)


def patch_values(rows: NDArray[np.int64], frames: slice = slice(None)) -> Tensor:
    """Normalised values of table rows `[K]`, float32 `[K, frames, 768]`."""
    pictures = torch.from_numpy(patch_table()[rows][:, frames])
    return rearrange(normalise(pictures), "k t p q c -> k t (p q c)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Clips:
    """A batch of gaussianised clips; frame 0 is the start picture.

    Attributes:
        latents: float32 `[B, T, N, C]`.
        actions: float32 `[B, T, 5]`.
        weights: float32 `[B, T]`, 0 where the loss does not count.
        sink_gap: int64 `[B]`, frames from the start picture to frame 1 as memory holds it.
    """

    latents: Tensor
    actions: Tensor
    weights: Tensor
    sink_gap: Tensor


class LatentClips(ABC):
    """Episodes as gaussianised latents that clips are drawn from. Steps count from 1; step 0 is the first picture.

    Attributes:
        stats: of the latents, as they were gaussianised.
    """

    stats: LatentStats

    @abstractmethod
    def at_least(self, steps: int) -> NDArray[np.int64]:
        """The episodes that have `steps` steps or more, ascending."""

    @abstractmethod
    def steps(self, episode: int) -> int:
        """How many steps an episode has."""

    @abstractmethod
    def start(self, episode: int, step: int) -> NDArray[np.float32]:
        """The picture after `step` steps as a start picture, `[N, C]`."""

    @abstractmethod
    def body(self, episode: int, first: int, last: int) -> NDArray[np.float32]:
        """Frames of steps `first` to `last`, both included, `[last - first + 1, N, C]`."""

    @abstractmethod
    def held(self, episode: int, first: int, last: int) -> NDArray[np.float32]:
        """Actions of steps `first` to `last`, both included, `[last - first + 1, 5]`."""

    def clips(
        self, batch: int, frames: int, rng: np.random.Generator, *, sink_gap_max: int, old: float = 0.5
    ) -> Clips:
        """Random clips. A share `old` of them has a start picture from up to 40 steps before frame 1.

        Raises:
            InvalidInputError: no episode is as long as a clip.
        """
        long_enough = self.at_least(frames - 1)
        if not len(long_enough):
            raise InvalidInputError(
                f"no episode has the {frames - 1} steps that a clip of {frames} frames needs"
            )
        latents = np.empty((batch, frames, *self.start(0, 0).shape), np.float32)
        actions = np.zeros((batch, frames, 5), np.float32)
        weights = np.ones((batch, frames), np.float32)
        weights[:, 0] = 0
        gaps = np.ones(batch, np.int64)
        for b in range(batch):
            episode = int(long_enough[rng.integers(len(long_enough))])
            first = int(rng.integers(1, self.steps(episode) - frames + 3))
            start = first - 1
            if rng.random() < old and first > 1:
                start = int(rng.integers(max(0, first - 40), first))
            if start < first - 1:
                weights[b, 1] = 0
                gaps[b] = rng.integers(1, sink_gap_max)
            latents[b, 0] = self.start(episode, start)
            latents[b, 1:] = self.body(episode, first, first + frames - 2)
            actions[b, 1:] = self.held(episode, first, first + frames - 2)
        return Clips(
            latents=torch.from_numpy(latents),
            actions=torch.from_numpy(actions),
            weights=torch.from_numpy(weights),
            sink_gap=torch.from_numpy(gaps),
        )


class LatentWalks(LatentClips):
    """Walks as gaussianised latents, stored as codes of patch pairs.

    Args:
        walks: what to encode.
        autoencoder: in float32.
        stats: of latents, or None to measure them on these walks.
    """

    def __init__(self, walks: Walks, autoencoder: Autoencoder, stats: LatentStats | None = None) -> None:
        table = len(patch_table())
        patches = walks.patches.reshape(*walks.patches.shape[:2], -1).astype(np.int64)
        pairs = patches[:, :-1] * table + patches[:, 1:]
        unique, self._body, counts = _index(pairs, table * table)
        stills, self._still, _ = _index(patches, table)
        self.actions = walks.actions
        body_codes = _encode_pairs(autoencoder, unique // table, unique % table)
        still_codes = encode_stills(autoencoder, stills)
        self.stats = stats or _measure(body_codes, counts)
        self.body_codes = self.stats.gaussianise(body_codes, first=False).numpy()
        self.still_codes = self.stats.gaussianise(still_codes, first=True).numpy()

    def __len__(self) -> int:
        return len(self._still)

    def at_least(self, steps: int) -> NDArray[np.int64]:
        return np.arange(len(self) if self._body.shape[1] >= steps else 0)

    def steps(self, episode: int) -> int:
        return len(self._body[episode])

    def start(self, episode: int, step: int) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self.still_codes[self._still[episode, step]]
        return result

    def body(self, episode: int, first: int, last: int) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self.body_codes[self._body[episode, first - 1 : last]]
        return result

    def held(self, episode: int, first: int, last: int) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self.actions[episode, first : last + 1]
        return result


def _index(
    values: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """(sorted unique values, index of each value into them, counts) without sorting the whole array."""
    counts = np.bincount(values.ravel(), minlength=limit)
    unique = np.flatnonzero(counts)
    place = np.zeros(limit, np.int32)
    place[unique] = np.arange(len(unique), dtype=np.int32)
    return unique, place[values], counts[unique]


@torch.no_grad()
def _encode_pairs(autoencoder: Autoencoder, before: NDArray[np.int64], now: NDArray[np.int64]) -> Tensor:
    parts = []
    for start in range(0, len(now), 4096):
        chunk = slice(start, start + 4096)
        five = torch.cat((patch_values(before[chunk], slice(-1, None)), patch_values(now[chunk])), dim=1)
        parts.append(autoencoder.enc(five.flatten(1)))
    return torch.cat(parts)


@torch.no_grad()
def encode_stills(autoencoder: Autoencoder, rows: NDArray[np.int64]) -> Tensor:
    """Latents of table rows `[K]` as pictures at rest, `[K, C]`."""
    parts = []
    for start in range(0, len(rows), 4096):
        frame = patch_values(rows[start : start + 4096], slice(-1, None))
        parts.append(autoencoder.enc(frame.expand(-1, GROUP + 1, -1).flatten(1)))
    return torch.cat(parts)


def _measure(codes: Tensor, counts: NDArray[np.int64]) -> LatentStats:
    """One pair of statistics for both kinds of latent: equal pictures then have equal codes."""
    share = torch.from_numpy(counts / counts.sum()).double()[:, None]
    mean = (codes.double() * share).sum(0)
    std = ((codes.double() - mean).square() * share).sum(0).sqrt()
    pair = (mean.float(), std.float())
    return LatentStats(first_mean=pair[0], first_std=pair[1], rest_mean=pair[0], rest_std=pair[1])
