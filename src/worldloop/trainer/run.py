"""One training run in one folder: stages, resuming, curves, progress.

    runs/meadow/
      recipe.json                what is being made
      autoencoder.safetensors    stage 1
      world.state                stage 2, to go on from (tensors and numbers only)
      autoencoder.csv world.csv  curves
      <name>-<K>r.safetensors    the checkpoint (-<K>nr in mode last_step_writes), moving average of the weights
      card.md                    what the checkpoint is
Owns files and the order of stages. Called by the command line.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from worldloop.core.files import replacing
from worldloop.models.autoencoder import Autoencoder, LatentStats
from worldloop.models.config import recipe_token
from worldloop.models.registry import AUTOENCODER, find_checkpoint, find_world
from worldloop.models.summaryformer import Summaryformer
from worldloop.models.weights import load_autoencoder, load_weights, save_autoencoder, save_checkpoint
from worldloop.trainer import autoencoder as autoencoder_stage
from worldloop.trainer.curve_file import CurveFile
from worldloop.trainer.datasets import LatentClips
from worldloop.trainer.model_card import model_card
from worldloop.trainer.recipes import Recipe
from worldloop.trainer.sources import Source, described, open_sources
from worldloop.trainer.world import WorldTrainer

SAVE_EVERY = 25
VALIDATE_EVERY = 50
"""A save takes a second, a validation the time of two steps."""


class Run:
    """A folder that a recipe is trained in; going on where it stopped is the only mode.

    Args:
        recipe: what to make.
        folder: made when missing.
        compile_blocks: torch.compile the trunk's blocks while training.
    """

    def __init__(self, recipe: Recipe, folder: Path, *, compile_blocks: bool = True) -> None:
        self.recipe = recipe = described(recipe)
        self.folder = folder
        self.compile_blocks = compile_blocks
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.json").write_text(json.dumps(recipe.to_dict(), indent=1) + "\n")

    @property
    def checkpoint(self) -> Path:
        """Where the finished world is written."""
        world = self.recipe.world
        token = recipe_token(len(world.timesteps), world.cache_mode)
        return self.folder / f"{self.recipe.name}-{token}.safetensors"

    @property
    def autoencoder_file(self) -> Path:
        return self.folder / AUTOENCODER

    def train(self) -> Path:
        """Both stages; returns the checkpoint's path."""
        data, held_out = open_sources(self.recipe)
        model, stats = self.train_autoencoder(data, held_out)
        return self.train_world(data.latents(model, stats), held_out, model)

    def train_autoencoder(self, data: Source, held_out: Source) -> tuple[Autoencoder, LatentStats]:
        """Stage 1, or its result when it is there: the autoencoder and the statistics of its latents."""
        if not self.autoencoder_file.exists() and self.recipe.start:
            shutil.copyfile(find_world(self.recipe.start) / AUTOENCODER, self.autoencoder_file)
        if not self.autoencoder_file.exists():
            self._make_autoencoder(data, held_out)
        # Always as it is in the file, rounded: stage 2 then sees what is served, stopped or not.
        return load_autoencoder(self.autoencoder_file)

    def _make_autoencoder(self, data: Source, held_out: Source) -> None:
        recipe = self.recipe.autoencoder
        torch.manual_seed(self.recipe.data.seed)
        rng = np.random.default_rng(self.recipe.data.seed)
        generator = torch.Generator().manual_seed(self.recipe.data.seed)
        model = data.initial_autoencoder(self.recipe.encoder)
        optimiser = autoencoder_stage.optimiser(model, recipe)
        batches = data.batches(recipe, rng)
        check = next(held_out.batches(recipe, np.random.default_rng(0)))
        with CurveFile(self.folder / "autoencoder.csv", "autoencoder", recipe.steps) as curve:
            for step in range(recipe.steps):
                rise, fall = min(1.0, (step + 1) / 100), min(1.0, 2.0 * (1 - step / recipe.steps))
                for group in optimiser.param_groups:
                    group["lr"] = recipe.rate * group["scale"] * rise * fall
                loss = autoencoder_stage.loss(model, next(batches), recipe.noise, generator)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                values = {"loss": float(loss.detach())}
                if step % 100 == 99 or step == recipe.steps - 1:
                    values["psnr"] = autoencoder_stage.psnr(model, check)
                curve.add(step + 1, values)
        model.requires_grad_(False)
        save_autoencoder(
            self.autoencoder_file,
            model,
            data.stats(model),
            {"name": self.recipe.name, "license": self.recipe.license},
        )

    def train_world(self, data: LatentClips, held_out: Source, autoencoder: Autoencoder) -> Path:
        """Stage 2 from where it stopped; returns the checkpoint's path."""
        recipe = self.recipe.world
        torch.manual_seed(self.recipe.data.seed)
        model = Summaryformer(self.recipe.model)
        if self.recipe.start:
            load_weights(find_checkpoint(self.recipe.start), model)
        trainer = WorldTrainer(
            model, recipe, data.stats.rest_std,
            seed=self.recipe.data.seed, compile_blocks=self.compile_blocks,
        )  # fmt: skip
        state_file = self.folder / "world.state"
        if state_file.exists():
            trainer.restore(torch.load(state_file, weights_only=True))
        gap = self.recipe.model.sink_gap_max
        check = held_out.latents(autoencoder, data.stats).clips(
            8, recipe.frames, np.random.default_rng(0), sink_gap_max=gap
        )
        with CurveFile(self.folder / "world.csv", "world", recipe.steps, done=trainer.weights.steps) as curve:
            while trainer.weights.steps < recipe.steps:
                rng = np.random.default_rng((self.recipe.data.seed, trainer.weights.steps))
                values = {
                    "loss": trainer.step(data.clips(recipe.batch, recipe.frames, rng, sink_gap_max=gap))
                }
                last = trainer.weights.steps == recipe.steps
                if trainer.weights.steps % VALIDATE_EVERY == 0 or last:
                    values |= trainer.validate(check, trainer.weights.average)
                if trainer.weights.steps % SAVE_EVERY == 0 or last:
                    self._save(state_file, trainer)
                curve.add(trainer.weights.steps, values)
        return self.checkpoint

    def _save(self, state_file: Path, trainer: WorldTrainer) -> None:
        with replacing(state_file) as fresh:
            torch.save(trainer.state(), fresh)
        recipe = self.recipe
        save_checkpoint(
            self.checkpoint,
            trainer.weights.average,
            timesteps=recipe.world.timesteps,
            timestep_shift=recipe.timestep_shift,
            cache_mode=recipe.world.cache_mode,
            profile=recipe.profile,
            jump_sprint=recipe.jump_sprint,
            yaw=recipe.yaw,
            step=trainer.weights.steps,
            autoencoder=self.autoencoder_file,
            encode_fps=recipe.encode_fps,
            license=recipe.license,
            trained_on=recipe.trained_on,
        )
        files = [self.checkpoint, self.autoencoder_file]
        card = model_card(recipe, trainer.weights.average, trainer.weights.steps, files)
        (self.folder / "card.md").write_text(card)
