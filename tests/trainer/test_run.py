"""A training run: both stages, going on after a stop, and what it leaves in its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from worldloop.core.errors import SettingsError
from worldloop.core.files import file_hash
from worldloop.models.registry import AUTOENCODER, scan
from worldloop.trainer import run as run_module
from worldloop.trainer.recipes import RECIPES, Recipe
from worldloop.trainer.run import Run
from worldloop.trainer.world import WorldTrainer

TINY = RECIPES["tiny"]


class StoppedError(Exception):
    pass


def test_a_run_leaves_a_world_that_can_be_served(tmp_path: Path) -> None:
    path = Run(TINY, tmp_path, compile_blocks=False).train()
    registry = scan(tmp_path)
    assert path == registry.entries["tiny-3r"].path
    assert registry.entries["tiny-3r"].config.step == TINY.world.steps
    card = (tmp_path / "card.md").read_text()
    assert file_hash(path) in card
    assert "Apache-2.0" in card
    curve = (tmp_path / "world.csv").read_text().splitlines()
    assert curve[0] == "step,time,name,value"
    assert sum(",loss," in row for row in curve) == TINY.world.steps


def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Run(TINY, tmp_path / "whole", compile_blocks=False).train()
    monkeypatch.setattr(run_module, "SAVE_EVERY", 1)
    step = WorldTrainer.step

    def step_or_stop(self: WorldTrainer, clips: Any) -> float:
        if self.weights.steps == 2:
            raise StoppedError
        return step(self, clips)

    monkeypatch.setattr(WorldTrainer, "step", step_or_stop)
    with pytest.raises(StoppedError):
        Run(TINY, tmp_path / "stopped", compile_blocks=False).train()
    monkeypatch.setattr(WorldTrainer, "step", step)
    after = Run(TINY, tmp_path / "stopped", compile_blocks=False).train()
    assert file_hash(after) == file_hash(whole)
    other = replace(TINY, data=replace(TINY.data, seed=9))
    assert file_hash(Run(other, tmp_path / "other", compile_blocks=False).train()) != file_hash(whole)


def test_a_variant_begins_with_the_weights_and_the_autoencoder_of_another_world(tmp_path: Path) -> None:
    first = Run(TINY, tmp_path / "first", compile_blocks=False).train()
    still = replace(TINY.world, cache_mode="last_step_writes", steps=1, muon_rate=0.0, adam_rate=0.0)
    variant = replace(TINY, start=str(first), world=still)
    path = Run(variant, tmp_path / "variant", compile_blocks=False).train()

    entry = scan(tmp_path / "variant").entries["tiny-3nr"]
    assert entry.config.cache_mode == "last_step_writes"
    assert file_hash(tmp_path / "variant" / AUTOENCODER) == file_hash(tmp_path / "first" / AUTOENCODER)
    # At a learning rate of zero the weights are those it began with; without a start they are others.
    ours, theirs = (load_file(each)["blocks.0.visual_feed_forward.out.weight"] for each in (path, first))
    assert torch.equal(ours, theirs)
    alone = Run(replace(variant, start=""), tmp_path / "alone", compile_blocks=False).train()
    assert not torch.equal(load_file(alone)["blocks.0.visual_feed_forward.out.weight"], theirs)


def test_recipes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text('base = "tiny"\nname = "short"\n[world]\nsteps = 3\n')
    recipe = Recipe.load(str(file))
    assert (recipe.name, recipe.world.steps, recipe.world.batch) == ("short", 3, TINY.world.batch)


@pytest.mark.parametrize(
    ("text", "says"),
    [("[world]\nstep = 3\n", "unknown key 'step'"), ('base = "moon"\n', "must be one of")],
    ids=["unknown key", "unknown base"],
)
def test_a_wrong_recipe_says_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=says):
        Recipe.load(str(file))


def test_training_learns_one_clip(tmp_path: Path) -> None:
    """Forty steps on one clip halve its loss; with the learning rates at zero, the planted control, they do not."""

    def loss_after(rate: float) -> tuple[float, float]:
        torch.manual_seed(0)
        recipe = replace(TINY.world, steps=40, batch=2, warmup=1, own_steps=0.0, no_action=0.0)
        recipe = replace(recipe, muon_rate=0.02 * rate, adam_rate=3e-3 * rate)
        run = Run(TINY, tmp_path, compile_blocks=False)
        data, _ = run_module.open_sources(TINY)
        latents = data.latents(*run.train_autoencoder(data, data))
        trainer = WorldTrainer(
            run_module.Summaryformer(TINY.model), recipe, latents.stats.rest_std, compile_blocks=False
        )
        clips = latents.clips(2, recipe.frames, run_module.np.random.default_rng(0), sink_gap_max=3)
        losses = [trainer.step(clips) for _ in range(recipe.steps)]
        return sum(losses[:5]) / 5, sum(losses[-5:]) / 5

    first, last = loss_after(1.0)
    assert last < first / 2
    first, last = loss_after(0.0)
    assert last > first / 2
