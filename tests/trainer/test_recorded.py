"""Recorded data feeds both stages of training as simulated data does."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError, SettingsError
from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig
from worldloop.models.weights import read_config
from worldloop.simulators.gym import MeadowEnv
from worldloop.simulators.meadow import VectorMeadow
from worldloop.trainer.autoencoder import psnr
from worldloop.trainer.datasets import LatentWalks, Walks
from worldloop.trainer.recipes import DataRecipe, Recipe
from worldloop.trainer.recorded import RecordedSource, RecordedWalks
from worldloop.trainer.recorder import record
from worldloop.trainer.run import Run
from worldloop.trainer.sources import open_sources

CONFIG = AutoencoderConfig(channels=8, latent_hw=(6, 10), encoder_hidden=8, decoder_hidden=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "meadow"
    record("worldloop/Meadow-v0", folder, license="CC-BY-4.0", episodes=4, steps=12, seed=5)
    return folder


@pytest.fixture(scope="module")
def source(folder: Path) -> RecordedSource:
    return RecordedSource(RecordedWalks(folder), range(4), seed=0)


@pytest.fixture(scope="module")
def autoencoder(source: RecordedSource) -> Autoencoder:
    """Principal components only."""
    return source.initial_autoencoder(CONFIG).requires_grad_(False)


@pytest.fixture
def recipe(folder: Path) -> Recipe:
    """`tiny` on the recording, with two steps a stage."""
    tiny = Recipe.load("tiny")
    return replace(
        tiny,
        data=DataRecipe(simulator=str(folder), held_out=1),
        autoencoder=replace(tiny.autoencoder, steps=2),
        world=replace(tiny.world, steps=2),
    )


def test_clips_hold_the_latents_and_actions_of_their_frames(
    folder: Path, source: RecordedSource, autoencoder: Autoencoder
) -> None:
    walks = RecordedWalks(folder)
    data = source.latents(autoencoder)

    clips = data.clips(6, 9, np.random.default_rng(3), sink_gap_max=50)

    assert clips.latents.shape == (6, 9, 60, 8) and clips.actions.shape == (6, 9, 5)
    with torch.no_grad():
        truth = [
            data.stats.gaussianise(
                autoencoder.encode(torch.from_numpy(walks.frames(e))[None])[0], first=False
            )
            for e in range(4)
        ]
    for latents, actions, weights in zip(clips.latents, clips.actions, clips.weights, strict=True):
        places = [
            (episode, first)
            for episode in range(4)
            for first in range(1, 6)
            if torch.allclose(truth[episode][first : first + 8], latents[1:], atol=0.01)
        ]
        assert any(np.array_equal(actions[1:], walks.actions(e)[first : first + 8]) for e, first in places)
        assert not actions[0].any() and weights[0] == 0
    assert {float(weight) for weight in clips.weights[:, 1]} <= {0.0, 1.0}


def test_they_are_what_the_simulator_path_makes_of_the_same_walks(
    folder: Path, source: RecordedSource, autoencoder: Autoencoder
) -> None:
    seeds = [MeadowEnv().reset(seed=5 + episode)[1]["world"] for episode in range(4)]
    stats = source.stats(autoencoder)
    data = source.latents(autoencoder, stats)
    recorded = RecordedWalks(folder)
    worlds = [replayed(seed, recorded.actions(episode)) for episode, seed in enumerate(seeds)]

    for episode, walks in enumerate(worlds):
        simulated = LatentWalks(walks, autoencoder, stats)
        assert np.allclose(data.body(episode, 1, 12), simulated.body(0, 1, 12), atol=0.01)
        assert np.allclose(data.start(episode, 7), simulated.start(0, 7), atol=0.01)
        assert not np.allclose(data.start(episode, 7), simulated.start(0, 0), atol=0.5)


def replayed(seed: int, actions: NDArray[np.float32]) -> Walks:
    world = VectorMeadow([seed])
    patches = [world.reset_indices(), *(world.step_indices(action[None]) for action in actions[1:])]
    return Walks(patches=np.stack(patches, axis=1), actions=actions[None])


def test_principal_components_explain_more_than_the_mean_picture_and_random_directions(
    source: RecordedSource, autoencoder: Autoencoder
) -> None:
    check = next(source.batches(Recipe.load("tiny").autoencoder, np.random.default_rng(0)))
    mean, directions = copy.deepcopy(autoencoder), copy.deepcopy(autoencoder)
    torch.nn.init.zeros_(mean.dec.linear.weight)
    basis, _ = torch.linalg.qr(torch.randn(4 * 768, 8, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        directions.dec.linear.weight.copy_(basis)
        directions.enc.linear.weight[:, -4 * 768 :] = basis.T
        directions.enc.linear.bias.copy_(-(basis.T @ directions.dec.linear.bias))

    explained = psnr(autoencoder, check)

    assert check.shape == (2, 9, 96, 160, 3)
    assert explained > psnr(mean, check) + 3
    assert explained > psnr(directions, check) + 3


def test_batches_are_frames_that_follow_each_other(
    folder: Path, source: RecordedSource, recipe: Recipe
) -> None:
    walks = RecordedWalks(folder)
    frames = [walks.frames(episode) for episode in range(4)]

    batch = next(source.batches(replace(recipe.autoencoder, batch=5), np.random.default_rng(0))).numpy()

    for clip in batch:
        assert any(
            np.array_equal(clip, frames[episode][start : start + 9])
            for episode in range(4)
            for start in range(0, 41, 4)
        )


def test_gaussianised_latents_have_mean_0_and_deviation_1(
    source: RecordedSource, autoencoder: Autoencoder
) -> None:
    data = source.latents(autoencoder)

    latents = np.concatenate([data.body(episode, 1, 12) for episode in range(4)]).reshape(-1, 8)

    assert np.abs(latents.mean(0)).max() < 0.15
    assert np.abs(latents.std(0) - 1).max() < 0.15


def test_both_stages_train_on_a_recording_and_say_so(recipe: Recipe, tmp_path: Path) -> None:
    run = Run(recipe, tmp_path / "run", compile_blocks=False)

    checkpoint = run.train()

    curves = [row.split(",") for row in (tmp_path / "run" / "world.csv").read_text().splitlines()[1:]]
    losses = [float(value) for _, _, name, value in curves if name == "loss"]
    assert len(losses) == 2 and np.isfinite(losses).all() and max(losses) < 10
    saved = read_config(checkpoint).saved
    assert saved["trained_on"] == "worldloop/Meadow-v0 (CC-BY-4.0)"
    assert saved["license"] == "CC-BY-4.0"


def test_a_recipes_own_words_are_kept(recipe: Recipe, tmp_path: Path) -> None:
    own = replace(recipe, trained_on="my walks", license="CC0-1.0")

    run = Run(own, tmp_path / "run", compile_blocks=False)

    assert (run.recipe.trained_on, run.recipe.license) == ("my walks", "CC0-1.0")


def test_the_last_episodes_are_held_out(recipe: Recipe, folder: Path, autoencoder: Autoencoder) -> None:
    data, held_out = open_sources(recipe)

    last = held_out.latents(autoencoder, data.stats(autoencoder))

    assert len(data.latents(autoencoder).at_least(1)) == 3 and len(last.at_least(1)) == 1
    assert np.array_equal(last.held(0, 1, 12), RecordedWalks(folder).actions(3)[1:])


def test_a_recording_that_does_not_fit_the_recipe_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    def refused(message: str, **changes: Any) -> None:
        with pytest.raises(SettingsError, match=message):
            open_sources(replace(recipe, **changes))

    refused("held_out is 4, but the recording has 4 episodes", data=replace(recipe.data, held_out=4))
    refused("must be 'meadow' or the folder of a recording", data=DataRecipe(simulator="moon"))
    refused(
        r"latent_hw of encoder and model to \[6, 10\]", encoder=replace(recipe.encoder, latent_hw=(4, 10))
    )
    refused("has 12 frames a second; encode_fps is 35", encode_fps=35)


def test_clips_longer_than_every_episode_are_refused(
    source: RecordedSource, autoencoder: Autoencoder
) -> None:
    data = source.latents(autoencoder)

    assert data.clips(2, 13, np.random.default_rng(0), sink_gap_max=9).latents.shape[1] == 13
    with pytest.raises(InvalidInputError, match="no episode has the 13 steps"):
        data.clips(2, 14, np.random.default_rng(0), sink_gap_max=9)


def test_training_on_the_simulator_needs_neither_pyarrow_nor_gymnasium() -> None:
    code = (
        "import sys, worldloop.trainer.run, worldloop.trainer.recorder;"
        "print(sorted({'pyarrow', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
