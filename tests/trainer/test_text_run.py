"""Runs of models that read text: what they leave, going on after a stop, beginning with another model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from worldloop.core.errors import SettingsError
from worldloop.core.files import file_hash
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_model import VideoModel
from worldloop.models.causal_weights import read_video_config
from worldloop.models.registry import AUTOENCODER, find_video, scan
from worldloop.simulators.captions import motions
from worldloop.testing import tiny_world
from worldloop.trainer import text_run
from worldloop.trainer.flow import FlowTrainer
from worldloop.trainer.recipes import Recipe, load_recipe
from worldloop.trainer.text_evaluate import rollout
from worldloop.trainer.text_recipes import TEXT_RECIPES, TextRecipe
from worldloop.trainer.text_run import TextRun


@pytest.fixture
def recipes(tmp_path: Path) -> dict[str, TextRecipe]:
    """The tiny recipes beside a random world."""
    world = tiny_world(tmp_path / "world", latent_hw=(6, 10), latent_channels=8)
    return {name: replace(TEXT_RECIPES[f"tiny-{name}"], world=str(world)) for name in ("picture", "video")}


def load(path: Path) -> VideoModel:
    return VideoModel.load(path, path.parent / AUTOENCODER, device=torch.device("cpu"), dtype=torch.float32)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("kind", ["picture", "video"])
def test_a_run_leaves_a_model_that_can_be_served(
    tmp_path: Path, recipes: dict[str, TextRecipe], kind: str
) -> None:
    folder = tmp_path / "world"
    path = TextRun(recipes[kind], tmp_path / "run", compile_blocks=False).train()
    assert path.name == f"tiny-{kind}.safetensors"
    assert file_hash(tmp_path / "run" / AUTOENCODER) == file_hash(folder / AUTOENCODER)
    model = load(path)
    assert "picture" not in model.config.facts
    assert model.config.step == 4
    assert model.config.facts["license"] == "Apache-2.0"
    assert model.config.facts["autoencoder"]["sha256"] == file_hash(folder / AUTOENCODER)
    assert model.config.facts.get("grids") == ([[6, 10], [4, 4]] if kind == "picture" else None)
    assert rollout(VideoLoop(model), "a lake", seed=0).shape == (1, 96, 160, 3)
    curve = (tmp_path / "run" / "text.csv").read_text().splitlines()
    assert sum(",loss," in row for row in curve) == 4
    assert any(",other sigma 1," in row for row in curve)
    card = (tmp_path / "run" / f"card-{kind}.md").read_text()
    assert file_hash(path) in card
    (folder / path.name).write_bytes(path.read_bytes())
    assert set(scan(folder).entries) == {"tiny-3r"}, "no world"
    if kind == "video":
        assert find_video("", str(folder)) == folder / path.name


@pytest.mark.parametrize("kind", ["picture", "video"])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    tmp_path: Path, recipes: dict[str, TextRecipe], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes[kind]
    whole = TextRun(recipe, tmp_path / "whole", compile_blocks=False).train()
    monkeypatch.setattr(text_run, "SAVE_EVERY", 1)
    step = FlowTrainer.step

    def step_or_stop(self: FlowTrainer, latents: torch.Tensor, captions: list[str]) -> float:
        if self.weights.steps == 2:
            raise StoppedError
        return step(self, latents, captions)

    monkeypatch.setattr(FlowTrainer, "step", step_or_stop)
    with pytest.raises(StoppedError):
        TextRun(recipe, tmp_path / "stopped", compile_blocks=False).train()
    monkeypatch.setattr(FlowTrainer, "step", step)
    after = TextRun(recipe, tmp_path / "stopped", compile_blocks=False).train()
    assert file_hash(after) == file_hash(whole)
    other = TextRun(replace(recipe, seed=9), tmp_path / "other", compile_blocks=False).train()
    assert file_hash(other) != file_hash(whole)


def test_a_video_model_begins_with_a_picture_model(tmp_path: Path, recipes: dict[str, TextRecipe]) -> None:
    first = TextRun(recipes["picture"], tmp_path / "first", compile_blocks=False).train()
    (tmp_path / "world" / first.name).write_bytes(first.read_bytes())
    still = replace(TEXT_RECIPES["tiny-video"].flow, steps=1, muon_rate=0.0, adam_rate=0.0)
    for start in (str(first), first.name):
        recipe = replace(recipes["video"], start=start, flow=still)
        path = TextRun(recipe, tmp_path / Path(start).parent.name / "video", compile_blocks=False).train()
        ours, theirs = (load_file(each)["blocks.0.ffn.0.weight"] for each in (path, first))
        assert torch.equal(ours, theirs), "at a learning rate of zero they are those it began with"
        assert file_hash(path.with_name(first.name)) == file_hash(first), "it draws the first frames"
        config = read_video_config(path)
        assert config.facts["picture"] == {"file": first.name, "unread": motions()}
        drawn = FirstFrame.beside(path, config, (96, 160), device=torch.device("cpu"), dtype=torch.float32)
        assert drawn is not None
        assert rollout(VideoLoop(load(path), drawn), "a lake", seed=0, latents=2).shape == (5, 96, 160, 3)
    with pytest.raises(SettingsError, match=r"start 'gone\.safetensors'"):
        TextRun(replace(recipe, start="gone.safetensors"), tmp_path / "gone", compile_blocks=False).train()


def test_recipes_by_name_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text(
        'base = "tiny-picture"\nname = "short-picture"\ngrids = [[6, 10], [6, 6]]\n[flow]\nsteps = 3\n'
    )
    recipe = load_recipe(str(file))
    assert isinstance(recipe, TextRecipe)
    assert (recipe.name, recipe.flow.steps, recipe.grids) == ("short-picture", 3, ((6, 10), (6, 6)))
    assert load_recipe("meadow-video") is TEXT_RECIPES["meadow-video"]
    assert isinstance(load_recipe("tiny"), Recipe)
    with pytest.raises(SettingsError, match="makes a model that reads text"):
        Recipe.load("meadow-video")
    with pytest.raises(SettingsError, match=r"'moon' must be one of \['meadow', .*'meadow-picture'"):
        load_recipe("moon")
