"""One training run of a model that reads text, in one folder: resuming, curves, progress.

    runs/meadow-picture/
      recipe.json                what is being made
      autoencoder.safetensors    the world's
      <start>.safetensors        of a video model: the picture model that draws its first frames
      text.state                 to go on from (tensors and numbers only)
      text.csv                   curves
      <name>.safetensors         the checkpoint, moving average of the weights
      card-picture.md            what it is; card-video.md for a video model
Owns files. Does not own the data (`text_data`) or a step (`flow`). Called by the command line.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from worldloop.core.errors import SettingsError
from worldloop.core.files import file_hash, replacing
from worldloop.models.causal import CausalTransformer
from worldloop.models.causal_weights import VideoConfig, load_video_weights, save_video
from worldloop.models.registry import AUTOENCODER, find_world, is_picture
from worldloop.models.weights import load_autoencoder
from worldloop.simulators.captions import motions
from worldloop.trainer.curve_file import CurveFile
from worldloop.trainer.flow import FlowTrainer
from worldloop.trainer.model_card import text_card
from worldloop.trainer.text_data import text_data
from worldloop.trainer.text_recipes import TextRecipe

SAVE_EVERY = 50
VALIDATE_EVERY = 100


class TextRun:
    """A folder that a recipe is trained in; going on where it stopped is the only mode.

    Args:
        recipe: what to make.
        folder: made when missing.
        compile_blocks: torch.compile the trunk's blocks while training.
    """

    def __init__(self, recipe: TextRecipe, folder: Path, *, compile_blocks: bool = True) -> None:
        self.recipe = recipe
        self.folder = folder
        self.compile_blocks = compile_blocks
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.json").write_text(json.dumps(recipe.to_dict(), indent=1) + "\n")

    @property
    def checkpoint(self) -> Path:
        """Where the finished model is written."""
        return self.folder / f"{self.recipe.name}.safetensors"

    def config(self, step: int) -> VideoConfig:
        """The checkpoint's facts after `step` steps."""
        recipe, autoencoder = self.recipe, self.folder / AUTOENCODER
        return VideoConfig(
            model=recipe.model,
            latent_hw=recipe.grids[0],
            chunk_frames=1,
            window_frames=recipe.window_frames,
            sink_frames=recipe.sink_frames,
            steps=recipe.sampler_steps,
            shift=recipe.sampler_shift,
            solver=recipe.solver,
            guidance=recipe.guidance,
            fps=recipe.fps,
            step=step,
            facts={
                "autoencoder": {"file": AUTOENCODER, "sha256": file_hash(autoencoder)},
                "license": recipe.license,
                "trained_on": recipe.trained_on,
                **({"grids": [list(grid) for grid in recipe.grids]} if recipe.kind == "picture" else {}),
                **({"picture": {"file": self.picture.name, "unread": motions()}} if self.picture else {}),
            },
        )

    @property
    def picture(self) -> Path | None:
        """The picture model that a video model begins with draws its first frames, too."""
        start = Path(self.recipe.start)
        return self.folder / start.name if self.recipe.kind == "video" and is_picture(start) else None

    def train(self) -> Path:
        """Train from where it stopped; returns the checkpoint's path."""
        recipe = self.recipe
        if not (self.folder / AUTOENCODER).exists():
            shutil.copyfile(find_world(recipe.world) / AUTOENCODER, self.folder / AUTOENCODER)
        autoencoder, stats = load_autoencoder(self.folder / AUTOENCODER)
        torch.manual_seed(recipe.seed)
        network = CausalTransformer(recipe.model)
        if recipe.start:
            load_video_weights(self._start(), network)
        if self.picture is not None and not self.picture.exists():
            shutil.copyfile(self._start(), self.picture)
        trainer = FlowTrainer(
            network, recipe.flow, stats.rest_std, memory=self.config(0).memory, seed=recipe.seed,
            compile_blocks=self.compile_blocks,
        )  # fmt: skip
        state = self.folder / "text.state"
        if state.exists():
            trainer.restore(torch.load(state, weights_only=True))
        data = text_data(recipe, autoencoder, stats)
        check = data.check()
        steps = recipe.flow.steps
        with CurveFile(self.folder / "text.csv", recipe.name, steps, done=trainer.weights.steps) as curve:
            while (step := trainer.weights.steps) < steps:
                rng = np.random.default_rng((recipe.seed, step))
                values = {"loss": trainer.step(*data.batch(rng))}
                last = step + 1 == steps
                if (step + 1) % VALIDATE_EVERY == 0 or last:
                    values |= trainer.validate(*check)
                if (step + 1) % SAVE_EVERY == 0 or last:
                    self._save(state, trainer)
                curve.add(step + 1, values)
        return self.checkpoint

    def _save(self, state: Path, trainer: FlowTrainer) -> None:
        with replacing(state) as fresh:
            torch.save(trainer.state(), fresh)
        network, step = trainer.weights.average, trainer.weights.steps
        save_video(self.checkpoint, network, self.config(step))
        card = text_card(self.recipe, network, step, [self.checkpoint, self.folder / AUTOENCODER])
        (self.folder / f"card-{self.recipe.kind}.md").write_text(card)

    def _start(self) -> Path:
        """The checkpoint that training begins with; SettingsError when there is none."""
        start = Path(self.recipe.start)
        places = [start, find_world(self.recipe.world) / start.name] if len(start.parts) == 1 else [start]
        for place in places:
            if place.is_file():
                return place
        raise SettingsError(
            f"start {self.recipe.start!r} must be a checkpoint, or one's name beside {self.recipe.world!r}"
        )
