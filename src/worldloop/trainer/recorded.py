"""Recorded episodes as training data: frames and actions, and latents encoded once.

Shapes: S steps of an episode, F = 1 + 4 S frames, N cells, C channels, B clips.

Owns reading. Does not own the files (`card`, `table`, `shards`) or how clips are drawn (`datasets`). Called by
`sources`, and by whoever wants to look at a recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor

from worldloop.core.errors import InvalidInputError, NotReadyError
from worldloop.models.autoencoder import GROUP, PATCH, Autoencoder, AutoencoderConfig, LatentStats, normalise
from worldloop.trainer.autoencoder import AutoencoderRecipe, principal_autoencoder
from worldloop.trainer.card import Card
from worldloop.trainer.datasets import LatentClips
from worldloop.trainer.shards import read_frames
from worldloop.trainer.table import TABLE, read_table

CLIP = 2 * GROUP + 1
"""Frames of a clip that the autoencoder is trained on: one, then two groups."""
POOL_BYTES = 2**30
"""Memory of the sample that the autoencoder is trained on, at most."""
POOL_CLIPS = 4096
"""Clips of that sample, at most."""
PRINCIPAL_PATCHES = 16_384
"""Patches that the principal components are taken from, at most."""
CHUNK_STEPS = 16
"""Steps that are encoded together."""


class RecordedWalks:
    """A recording, read.

    Attributes:
        card: what it says about itself.

    Raises:
        InvalidInputError: not a recording, or its table does not match its card.
        NotReadyError: the recording is not finished.
    """

    def __init__(self, folder: Path) -> None:
        self.card = Card.read(folder)
        if not self.card.complete:
            raise NotReadyError(f"recording {folder.name!r} is not finished; record again to go on")
        self._folder = folder
        actions: dict[int, list[tuple[float, ...]]] = {}
        self._place: dict[int, tuple[int, int]] = {}
        for row in read_table(folder / TABLE):
            self._place.setdefault(row.episode, (row.shard, row.frame))
            actions.setdefault(row.episode, []).append(row.action)
        self._actions = [
            np.array(actions.get(episode, []), np.float32) for episode in range(self.card.episodes)
        ]
        if len(actions) != self.card.episodes or not all(len(held) > 1 for held in self._actions):
            raise InvalidInputError(f"{TABLE} of {folder.name!r} does not match its card; record again")

    def __len__(self) -> int:
        return len(self._actions)

    def steps(self, episode: int) -> int:
        """S of an episode."""
        return len(self._actions[episode]) - 1

    def actions(self, episode: int) -> NDArray[np.float32]:
        """float32 `[S + 1, 5]`; that of step 0 is zero."""
        return self._actions[episode]

    def frames(self, episode: int, first: int = 0, last: int | None = None) -> NDArray[np.uint8]:
        """Frames of steps `first` to `last` (the episode's last when None), uint8 `[K, H, W, 3]`.

        Step 0 is one frame; every further step is 4.

        Raises:
            InvalidInputError: no such steps.
            PictureError: the shard is missing or damaged.
        """
        steps = self.steps(episode)
        last = steps if last is None else last
        if not 0 <= first <= last <= steps:
            raise InvalidInputError(f"steps {first} to {last} of episode {episode}; it has 0 to {steps}")
        start = 0 if first == 0 else GROUP * (first - 1) + 1
        count = GROUP * last + 1 - start
        shard, offset = self._place[episode]
        pictures = list(
            islice(read_frames(self._folder / self.card.shards[shard].file, offset + start), count)
        )
        if len(pictures) < count:
            raise InvalidInputError(f"shard {self.card.shards[shard].file!r} is shorter than {TABLE} says")
        return np.stack(pictures)


class RecordedLatents(LatentClips):
    """Episodes as latents in memory, in half precision: 4 S N C bytes an episode.

    Args:
        walks: the recording.
        episodes: which of them.
        autoencoder: in float32.
        stats: of latents.
    """

    def __init__(
        self, walks: RecordedWalks, episodes: Sequence[int], autoencoder: Autoencoder, stats: LatentStats
    ) -> None:
        self.stats = stats
        self._actions = [walks.actions(episode) for episode in episodes]
        self._lengths = np.array([walks.steps(episode) for episode in episodes], np.int64)
        self._body: list[NDArray[np.float16]] = []
        self._still: list[NDArray[np.float16]] = []
        for episode in episodes:
            body, still = _encode(autoencoder, walks.frames(episode))
            self._body.append(stats.gaussianise(body, first=False).numpy().astype(np.float16))
            self._still.append(stats.gaussianise(still, first=True).numpy().astype(np.float16))

    def __len__(self) -> int:
        return len(self._lengths)

    def at_least(self, steps: int) -> NDArray[np.int64]:
        return np.flatnonzero(self._lengths >= steps)

    def steps(self, episode: int) -> int:
        return int(self._lengths[episode])

    def start(self, episode: int, step: int) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self._still[episode][step].astype(np.float32)
        return result

    def body(self, episode: int, first: int, last: int) -> NDArray[np.float32]:
        return self._body[episode][first - 1 : last].astype(np.float32)

    def held(self, episode: int, first: int, last: int) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self._actions[episode][first : last + 1]
        return result


class RecordedSource:
    """Episodes of a recording, as a run asks for them.

    Args:
        walks: the recording.
        episodes: which of them.
        seed: draws the sample of clips that the autoencoder sees.
        most_clips: of that sample.
    """

    def __init__(
        self, walks: RecordedWalks, episodes: Sequence[int], *, seed: int, most_clips: int = POOL_CLIPS
    ) -> None:
        self._walks, self._episodes, self._seed, self._most_clips = walks, episodes, seed, most_clips
        self._sample: Tensor | None = None

    def initial_autoencoder(self, config: AutoencoderConfig) -> Autoencoder:
        """An autoencoder whose linear paths are the principal components of sampled patches."""
        rng = np.random.default_rng(self._seed)
        pool = self._pool()
        per_clip = 2 * (pool.shape[2] // PATCH) * (pool.shape[3] // PATCH)
        clips = pool[torch.from_numpy(rng.permutation(len(pool))[: max(1, PRINCIPAL_PATCHES // per_clip)])]
        patches = rearrange(
            clips[:, 1:], "b (t g) (h p) (w q) c -> (b t h w) (g p q c)", g=GROUP, p=PATCH, q=PATCH
        )
        keep = torch.from_numpy(rng.permutation(len(patches))[:PRINCIPAL_PATCHES])
        values = normalise(patches[keep].unflatten(1, (-1, 3))).flatten(1)
        return principal_autoencoder(config, values, torch.full((len(values), 1), 1 / len(values)))

    def batches(self, recipe: AutoencoderRecipe, rng: np.random.Generator) -> Iterator[Tensor]:
        """Clips of one frame and two groups, uint8 `[B, 9, H, W, 3]`, without end."""
        pool = self._pool()
        while True:
            yield pool[torch.from_numpy(rng.integers(len(pool), size=recipe.batch))]

    @torch.no_grad()
    def stats(self, autoencoder: Autoencoder) -> LatentStats:
        """Statistics of the sample's latents: one pair for both kinds, so that equal pictures have equal codes."""
        chunks = [autoencoder.encode(clips)[:, 1:].flatten(0, 2) for clips in self._pool().split(CHUNK_STEPS)]
        codes = torch.cat(chunks).double()
        mean, std = codes.mean(0), codes.std(0, correction=0).clamp_min(1e-6)
        return LatentStats(
            first_mean=mean.float(), first_std=std.float(), rest_mean=mean.float(), rest_std=std.float()
        )

    def latents(self, autoencoder: Autoencoder, stats: LatentStats | None = None) -> LatentClips:
        """The episodes as latents, gaussianised with `stats` or with those of the sample."""
        return RecordedLatents(self._walks, self._episodes, autoencoder, stats or self.stats(autoencoder))

    def _pool(self) -> Tensor:
        """A sample of clips, uint8 `[K, 9, H, W, 3]`, drawn once; every place in the episodes is as likely."""
        if self._sample is None:
            places = [
                (episode, step) for episode in self._episodes for step in range(1, self._walks.steps(episode))
            ]
            if not places:
                raise InvalidInputError("no episode of the recording has the 2 steps that training needs")
            height, width = self._walks.card.picture
            size = min(len(places), self._most_clips, max(1, POOL_BYTES // (CLIP * height * width * 3)))
            chosen = np.sort(np.random.default_rng(self._seed).permutation(len(places))[:size])
            sample = np.empty((size, CLIP, height, width, 3), np.uint8)
            for episode, group in groupby(
                enumerate(places[place] for place in chosen), key=lambda item: item[1][0]
            ):
                rows, steps = zip(*((row, step) for row, (_, step) in group), strict=True)
                # One read an episode: opening and seeking for each clip would decode most frames many times.
                frames = self._walks.frames(episode, steps[0] - 1, steps[-1] + 1)
                end = len(frames) - GROUP * (steps[-1] + 1)
                for row, step in zip(rows, steps, strict=True):
                    stop = end + GROUP * (step + 1)
                    sample[row] = frames[stop - CLIP : stop]
            self._sample = torch.from_numpy(sample)
        return self._sample


@torch.no_grad()
def _encode(autoencoder: Autoencoder, frames: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """Frames `[F, H, W, 3]` to (latents of steps 1 to S `[S, N, C]`, pictures 0 to S as starts `[S + 1, N, C]`)."""
    ends = torch.from_numpy(frames[::GROUP])
    stills = [autoencoder.encode_first(chunk)[0] for chunk in ends.split(CHUNK_STEPS)]
    body = []
    for start in range(0, len(frames) - 1, GROUP * CHUNK_STEPS):
        clip = torch.from_numpy(frames[start : start + GROUP * CHUNK_STEPS + 1])
        body.append(autoencoder.encode(clip[None])[0, 1:])
    return torch.cat(body), torch.cat(stills)
