"""Training of the causal video transformer on pictures and on walks, by flow matching. Nothing about files or time.

Shapes: B clips, T latent frames, C channels, h x w cells, E words.

Owns the losses. Called by `text_run`. What is shown is decided close to pure noise, so noise levels are drawn evenly
and then shifted, as the sampler's are; channels count by what they do to the picture; a share of captions is dropped,
so that guidance and a prompt without words work. What makes a walk hold is what makes a dream hold (`world`): noise on
what is read as the past, and then the model's own frames there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worldloop.models import flow
from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.models.causal_clip import CausalClip, clip_block, clip_velocity
from worldloop.models.causal_memory import CausalMemoryConfig
from worldloop.models.causal_still import still_block, still_velocity
from worldloop.trainer.masters import Masters, channel_weights, rate_scale


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowRecipe:
    """How a network is trained.

    Attributes:
        steps: of the optimiser.
        batch: pictures or clips a step.
        muon_rate, adam_rate, warmup, decay, average: as of `world.WorldRecipe`.
        shift: of the noise levels.
        channel_power: loss weight of a channel is its deviation to this power.
        no_caption: share of captions that are left out.
        frames: latent frames of a clip; 1 for pictures.
        history_noise: largest share of noise in what is read as the past.
        own_from: share of the run after which frames of the past are replaced by the model's own.
        own_share: share of the frames that are then replaced.
        own_steps: share of the steps on which that happens.
    """

    steps: int
    batch: int
    muon_rate: float = 0.02
    adam_rate: float = 1e-3
    warmup: int = 60
    decay: float = 0.5
    average: int = 100
    shift: float = 5.0
    channel_power: float = 0.5
    no_caption: float = 0.1
    frames: int = 1
    history_noise: float = 0.15
    own_from: float = 0.35
    own_share: float = 0.5
    own_steps: float = 0.5

    def rate_scale(self, step: int) -> float:
        """Factor on the learning rates at `step`."""
        return rate_scale(step, steps=self.steps, warmup=self.warmup, decay=self.decay)


class Texts:
    """Captions as word numbers; some are left out.

    Args:
        config: whose vocabulary and length count.
        no_caption: share that is left out.
    """

    def __init__(self, config: CausalConfig, no_caption: float) -> None:
        self._config, self._no_caption = config, no_caption

    def batch(self, captions: Sequence[str], generator: torch.Generator | None = None) -> Tensor:
        """Word numbers, int64 `[B, E]`, 0 behind the last; every caption is kept without a generator."""
        words = torch.zeros(len(captions), self._config.text_len, dtype=torch.int64)
        for row, caption in zip(words, captions, strict=True):
            ids = self._config.token_ids(caption)
            row[: len(ids)] = ids
        if generator is not None:
            words[torch.rand(len(words), generator=generator) < self._no_caption] = 0
        return words


class FlowTrainer:
    """One network on its way.

    Args:
        model: start values.
        recipe: how to train.
        channel_std: deviation of each latent channel, `[C]`, for the loss weights.
        memory: geometry that is served; its grid is that of clips.
        seed: of everything drawn here.
        compile_blocks: run blocks through torch.compile, on the grid of `memory`. On other grids they run as written:
            at 96 tokens torch 2.13 compiles gradients that are not numbers (CPU, bfloat16).
    """

    def __init__(
        self,
        model: CausalTransformer,
        recipe: FlowRecipe,
        channel_std: Tensor,
        *,
        memory: CausalMemoryConfig,
        seed: int = 0,
        compile_blocks: bool = True,
    ) -> None:
        self.recipe = recipe
        self.weights = Masters(
            model, muon_rate=recipe.muon_rate, adam_rate=recipe.adam_rate, horizon=recipe.average
        )
        self.texts = Texts(model.config, recipe.no_caption)
        self.generator = torch.Generator().manual_seed(seed)
        self._counts = channel_weights(channel_std, recipe.channel_power)[:, None, None]
        self._grid = memory.grid
        self._clip = CausalClip(memory, recipe.frames) if recipe.frames > 1 else None
        self._still_block = torch.compile(still_block, dynamic=False) if compile_blocks else still_block
        self._clip_block = torch.compile(clip_block, dynamic=False) if compile_blocks else clip_block

    def step(self, latents: Tensor, captions: Sequence[str]) -> float:
        """One optimiser step on frames `[B, C, h, w]` or clips `[B, T, C, h, w]`; returns the loss."""
        words = self.texts.batch(captions, self.generator)
        sigma = self._sigmas(latents.shape[:-3], self.generator)
        history = None if latents.ndim == 4 else self._history(latents, words)
        loss = self._loss(self.weights.work, latents, words, sigma, history, self.generator)
        return self.weights.step(loss.mean(), self.recipe.rate_scale(self.weights.steps))

    @torch.no_grad()
    def validate(self, latents: Tensor, captions: Sequence[str]) -> dict[str, float]:
        """The loss of the average, rounded as it is served, by noise level; at one level also without captions (`bare`)
        and with those of other pictures (`other`).
        """
        model = copy.deepcopy(self.weights.average).to_serving(torch.bfloat16)
        told = {"": list(captions), "bare ": [""] * len(captions), "other ": [*captions[1:], captions[0]]}
        result = {}
        for name, level in (("", 1.0), ("", 0.9), ("", 0.6), ("bare ", 1.0), ("other ", 1.0)):
            generator = torch.Generator().manual_seed(1)
            sigma = torch.full(latents.shape[:-3], level)
            words = self.texts.batch(told[name])
            history = None if latents.ndim == 4 else latents
            loss = self._loss(model, latents, words, sigma, history, generator)
            result[f"{name}sigma {level:g}"] = float(loss.mean())
        return result

    def state(self) -> dict[str, object]:
        """Everything needed to go on, tensors and numbers only."""
        return {**self.weights.state(), "generator": self.generator.get_state()}

    def restore(self, state: dict[str, object]) -> None:
        """Go on from `state`."""
        generator = state["generator"]
        assert isinstance(generator, Tensor)
        self.weights.restore(state)
        self.generator.set_state(generator)

    def _sigmas(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Noise levels: the first axis evenly spread, then shifted; every frame of a clip has its own."""
        count = shape[0]
        even = (
            torch.arange(count).view(-1, *[1] * (len(shape) - 1)) + torch.rand(*shape, generator=generator)
        ) / count
        if len(shape) > 1:
            order = torch.rand(*shape, generator=generator).argsort(dim=0)
            even = even.gather(0, order)
        return flow.shifted(even, self.recipe.shift)

    def _loss(
        self,
        model: CausalTransformer,
        latents: Tensor,
        words: Tensor,
        sigma: Tensor,
        history: Tensor | None,
        generator: torch.Generator,
    ) -> Tensor:
        """Weighted squared error of the velocity, one number a frame; of a clip the frames after the first, which is
        given when it is served.
        """
        noise = torch.randn(latents.shape, generator=generator)
        noisy = flow.mix(latents, noise, sigma[..., None, None, None])
        v = self._velocity(model, noisy, words, sigma, history)
        error = ((v - flow.velocity(latents, noise)).square() * self._counts).mean(dim=(-1, -2, -3))
        return error if history is None else error[:, 1:]

    def _velocity(
        self, model: CausalTransformer, noisy: Tensor, words: Tensor, sigma: Tensor, history: Tensor | None
    ) -> Tensor:
        told, fast = flow.TRAIN_STEPS * sigma, model is self.weights.work
        if self._clip is None or history is None:
            fast = fast and tuple(noisy.shape[-2:]) == self._grid
            return still_velocity(model, noisy, told, words, block_fn=self._still_block if fast else None)
        return clip_velocity(
            model, self._clip, history, noisy, told, words, block_fn=self._clip_block if fast else None
        )

    @torch.no_grad()
    def _history(self, latents: Tensor, words: Tensor) -> Tensor:
        """What the memory holds while training: the truth, or the model's own frames, and a little noise."""
        recipe, generator = self.recipe, self.generator
        history = latents
        chance = float(torch.rand((), generator=generator))
        if self.weights.steps >= recipe.own_from * recipe.steps and chance < recipe.own_steps:
            # From a level at which a frame's motion is decided: a guess from noise alone is a mixture of all motions.
            sigma = torch.full(latents.shape[:-3], OWN_SIGMA)
            noise = torch.randn(latents.shape, generator=generator)
            noisy = flow.mix(latents, noise, OWN_SIGMA)
            v = self._velocity(self.weights.work, noisy, words, sigma, latents)
            own = torch.rand(latents.shape[:2], generator=generator) < recipe.own_share
            own[:, 0] = False
            history = torch.where(own[..., None, None, None], noisy - OWN_SIGMA * v, latents)
        amount = recipe.history_noise * torch.rand(*latents.shape[:2], 1, 1, 1, generator=generator)
        return history + amount * torch.randn(history.shape, generator=generator)


OWN_SIGMA = 0.85
"""Noise level from which the model's own frames are predicted in one pass."""
