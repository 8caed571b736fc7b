"""Walks, and latents of walks: what is stored compactly is what the pictures give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig
from worldloop.simulators.patches import render
from worldloop.trainer.autoencoder import AutoencoderRecipe, batches, initial_autoencoder, psnr
from worldloop.trainer.datasets import LatentWalks, Walks, record_walks
from worldloop.trainer.walks import Habits, Walkers

CONFIG = AutoencoderConfig(channels=12, latent_hw=(6, 10), encoder_hidden=8, decoder_hidden=8)


@pytest.fixture(scope="module")
def walks() -> Walks:
    return record_walks(range(5, 9), 30, seed=3)


@pytest.fixture(scope="module")
def autoencoder(walks: Walks) -> Autoencoder:
    torch.manual_seed(0)
    model = initial_autoencoder(CONFIG, walks)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    return model.requires_grad_(False)


def test_walks_are_a_function_of_their_seed() -> None:
    first, same, other = (record_walks(range(2), 12, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.patches, same.patches)
    assert not np.array_equal(first.actions, other.actions)


def test_latents_of_a_walk_are_those_of_its_pictures(walks: Walks, autoencoder: Autoencoder) -> None:
    data = LatentWalks(walks, autoencoder)
    pictures = render(walks.patches[1])
    clip = np.concatenate((pictures[0, -1:], pictures[1:].reshape(-1, *pictures.shape[2:])))
    latents = autoencoder.encode(torch.from_numpy(clip)[None])[0]
    torch.testing.assert_close(
        torch.from_numpy(data.start(1, 0)),
        data.stats.gaussianise(latents[0], first=True),
        atol=1e-4,
        rtol=1e-4,
    )
    torch.testing.assert_close(
        torch.from_numpy(data.body(1, 1, 30)),
        data.stats.gaussianise(latents[1:], first=False),
        atol=1e-4,
        rtol=1e-4,
    )


def test_latents_are_gaussianised(walks: Walks, autoencoder: Autoencoder) -> None:
    data = LatentWalks(walks, autoencoder)
    values = np.stack([data.body(episode, 1, 30) for episode in range(len(walks))]).reshape(
        -1, CONFIG.channels
    )
    assert np.abs(values.mean(0)).max() < 1e-3
    assert np.abs(values.std(0) - 1).max() < 1e-3


def test_clips_line_up_with_actions(walks: Walks, autoencoder: Autoencoder) -> None:
    data = LatentWalks(walks, autoencoder)
    clips = data.clips(16, 8, np.random.default_rng(0), sink_gap_max=4, old=0.5)
    assert clips.latents.shape == (16, 8, 60, CONFIG.channels)
    assert (clips.actions[:, 0] == 0).all()
    assert (clips.weights[:, 0] == 0).all()
    old = clips.weights[:, 1] == 0
    assert 0 < int(old.sum()) < 16
    assert (clips.sink_gap[~old] == 1).all()
    assert int(clips.sink_gap.max()) <= 3
    found = 0
    for b in range(16):
        for episode in range(len(walks)):
            for first in range(1, 25):
                if np.array_equal(clips.latents[b, 1:].numpy(), data.body(episode, first, first + 6)):
                    assert np.array_equal(
                        clips.actions[b, 1:].numpy(), walks.actions[episode, first : first + 7]
                    )
                    found += 1
    assert found >= 16


def test_principal_components_beat_few_of_them(walks: Walks) -> None:
    clip = next(batches(walks, AutoencoderRecipe(batch=4), np.random.default_rng(0)))
    few = initial_autoencoder(AutoencoderConfig(channels=2, latent_hw=(6, 10)), walks)
    many = initial_autoencoder(AutoencoderConfig(channels=48, latent_hw=(6, 10)), walks)
    assert psnr(many, clip) > psnr(few, clip) + 8


def test_walkers_push_retrace_and_rest() -> None:
    walkers = Walkers(200, np.random.default_rng(0), Habits(idle=0.2, back=0.2, push=0.0))
    seen = []
    for _ in range(40):
        seen.append(walkers.actions()[:, :2])
        walkers.moved((seen[-1] != 0).any(1))
    actions = np.stack(seen)
    assert ((actions != 0).sum(2) <= 1).all(), "one axis at a time"
    assert 0.05 < (actions == 0).all(2).mean() < 0.5
    held = (actions[1:] == actions[:-1]).all(2).mean()
    assert held > 0.5, "keys are held, not tapped"
    opposite = ((actions[1:] == -actions[:-1]) & (actions[1:] != 0)).any(2).mean()
    assert opposite > 0.01, "some turn back"
