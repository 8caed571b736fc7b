"""The trainer of models that read text: what it learns, what it leaves out, and which noise it draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.models.causal_memory import CausalMemoryConfig
from worldloop.trainer.flow import FlowRecipe, FlowTrainer, Texts

CONFIG = CausalConfig.named("tiny", text_context=1, places=6)
MEMORY = CausalMemoryConfig(layers=2, heads=2, head_dim=64, grid=(3, 4), chunk=1, window=3, sink=0)
STILLS = FlowRecipe(steps=40, batch=4, warmup=1, adam_rate=1e-2, average=5, no_caption=0.0)
CLIPS = replace(STILLS, frames=4, own_from=0.5)
CAPTIONS = ["a lake", "a meadow", "walk in the lake", "the meadow"]


def trainer(recipe: FlowRecipe, seed: int = 0) -> FlowTrainer:
    torch.manual_seed(0)
    network = CausalTransformer(CONFIG)
    return FlowTrainer(
        network, recipe, torch.linspace(0.5, 2, 8), memory=MEMORY, seed=seed, compile_blocks=False
    )


def batch(recipe: FlowRecipe) -> torch.Tensor:
    """One picture a caption, the same in all frames of a clip, so that words alone tell them apart."""
    torch.manual_seed(5)
    pictures = torch.randn(4, 8, 3, 4)
    return (
        pictures
        if recipe.frames == 1
        else pictures[:, None].expand(-1, recipe.frames, -1, -1, -1).contiguous()
    )


@pytest.mark.parametrize("recipe", [STILLS, CLIPS], ids=["pictures", "clips"])
def test_a_few_pictures_are_learned_with_their_words(recipe: FlowRecipe) -> None:
    latents = batch(recipe)
    ours = trainer(recipe)
    first = ours.validate(latents, CAPTIONS)
    for _ in range(recipe.steps):
        ours.step(latents, CAPTIONS)
    last = ours.validate(latents, CAPTIONS)
    assert last["sigma 0.9"] < 0.6 * first["sigma 0.9"]
    if recipe.frames == 1:  # a clip's past tells as much as its words
        assert last["other sigma 1"] > 1.05 * last["sigma 1"]
    still = trainer(replace(recipe, muon_rate=0.0, adam_rate=0.0))
    for _ in range(3):
        still.step(latents, CAPTIONS)
    assert still.validate(latents, CAPTIONS)["sigma 0.9"] > 0.9 * first["sigma 0.9"], "control: nothing moves"


def test_a_stop_changes_nothing() -> None:
    latents = batch(CLIPS)
    whole, stopped, after = trainer(CLIPS), trainer(CLIPS), trainer(CLIPS, seed=9)
    losses = [whole.step(latents, CAPTIONS) for _ in range(4)]
    for _ in range(2):
        stopped.step(latents, CAPTIONS)
    after.restore(stopped.state())
    assert [after.step(latents, CAPTIONS) for _ in range(2)] == losses[2:]
    assert [stopped.step(latents, CAPTIONS[::-1]) for _ in range(2)] != losses[2:]


def test_captions_are_left_out_as_often_as_asked() -> None:
    texts, generator = Texts(CONFIG, 0.25), torch.Generator().manual_seed(0)
    words = texts.batch(["a lake"] * 2000, generator)
    assert words.shape == (2000, CONFIG.text_len)
    assert 0.2 < (words == 0).all(1).float().mean() < 0.3
    assert torch.equal(texts.batch(["lake a"])[0], torch.tensor([6, 1, 0, 0, 0, 0]))
    assert texts.batch(["a"] * 50).any(1).all(), "none without a generator"


def test_noise_levels_cover_the_range_and_lean_to_noise() -> None:
    ours = trainer(STILLS)
    for shape in ((400,), (50, 4)):
        sigma = ours._sigmas(shape, ours.generator)
        assert sigma.shape == shape
        assert 0 < sigma.min() < 0.1
        assert 0.99 < sigma.max() < 1
        assert 0.75 < sigma.median() < 0.9, "shift 5 puts the middle at 5 / 6"
    assert 0.4 < trainer(replace(STILLS, shift=1.0))._sigmas((400,), ours.generator).median() < 0.6


def test_the_past_is_noisy_and_later_the_models_own() -> None:
    latents, ours = batch(CLIPS), trainer(CLIPS)
    words = ours.texts.batch(CAPTIONS)
    early = ours._history(latents, words) - latents
    assert 0.01 < early.std() < 0.15
    ours.weights.steps = CLIPS.steps
    far = [(ours._history(latents, words) - latents).abs().amax() for _ in range(12)]
    assert min(far) < 0.8 < max(far), "half of the steps read the model's own frames"
    firsts = [(ours._history(latents, words) - latents)[:, 0].abs().amax() for _ in range(12)]
    assert max(firsts) < 0.8, "the first frame is given"


def test_a_clips_first_frame_does_not_count() -> None:
    latents, ours = batch(CLIPS), trainer(CLIPS)
    words, sigma = ours.texts.batch(CAPTIONS), torch.full((4, CLIPS.frames), 0.5)

    def losses(target: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return ours._loss(ours.weights.work, target, words, sigma, latents, generator)

    changed = [latents.clone() for _ in range(2)]
    changed[0][:, 0] += 1
    changed[1][:, 1] += 1
    assert losses(latents).shape == (4, CLIPS.frames - 1)
    assert torch.equal(losses(changed[0]), losses(latents))
    assert not torch.equal(losses(changed[1]), losses(latents)), "control"
