"""Training of a Summaryformer on latent clips: one optimiser step, and nothing about files or time.

Owns the loss. Does not own the optimisers and the copies of the weights (`masters`). Called by `run`.

What makes a dream hold: train at the timesteps that are served; put noise on the history, then replace most of it by
the model's own predictions; weigh channels by what they do to the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worldloop.core.types import NO_ACTION
from worldloop.models.clip import BlockFn, ClipGeometry, clip_block, clip_v
from worldloop.models.sampling import Schedule
from worldloop.models.summaryformer import Summaryformer
from worldloop.trainer.datasets import Clips
from worldloop.trainer.masters import Masters, channel_weights, rate_scale


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldRecipe:
    """How a world is trained.

    Attributes:
        steps: of the optimiser.
        batch, frames: clips a step, frames a clip (start picture included).
        muon_rate, adam_rate: learning rates of the trunk's matrices and of everything else.
        warmup: steps until the rates are full; they fall linearly over the last `decay` share of the steps.
        timesteps: served ones, high to low.
        timestep_shares: how often each is trained.
        history_noise: largest deviation of the noise on clean records.
        own_from: share of the run after which records are replaced by the model's own predictions.
        own_share: share of the records that are then replaced.
        own_steps: share of the steps on which that happens.
        channel_power: loss weight of a channel is its deviation to this power.
        cache_mode: `recache` or `last_step_writes`, where the last pass of a frame leaves its record.
        no_action: share of clips without action and frame rate.
        fps: the frame rate that is told.
        average: horizon of the moving average of weights, in steps.
    """

    steps: int = 420
    batch: int = 14
    frames: int = 18
    muon_rate: float = 0.02
    adam_rate: float = 1e-3
    warmup: int = 60
    decay: float = 0.5
    timesteps: tuple[int, ...] = (999, 820, 548)
    timestep_shares: tuple[float, ...] = (0.6, 0.25, 0.15)
    history_noise: float = 0.15
    own_from: float = 0.35
    own_share: float = 0.6
    own_steps: float = 0.5
    channel_power: float = 0.5
    cache_mode: str = "recache"
    no_action: float = 0.03
    fps: float = 12.0
    average: int = 100

    def rate_scale(self, step: int) -> float:
        """Factor on the learning rates at `step`."""
        return rate_scale(step, steps=self.steps, warmup=self.warmup, decay=self.decay)


class WorldTrainer:
    """One world on its way.

    Args:
        model: start values; its weights become the master copy.
        recipe: how to train.
        channel_std: deviation of each latent channel, `[C]`, for the loss weights.
        seed: of everything drawn here.
        compile_blocks: run blocks through torch.compile.

    Attributes:
        weights: what is trained; `weights.average` is what is served.
    """

    def __init__(
        self,
        model: Summaryformer,
        recipe: WorldRecipe,
        channel_std: Tensor,
        *,
        seed: int = 0,
        compile_blocks: bool = True,
    ) -> None:
        self.recipe = recipe
        self.weights = Masters(
            model, muon_rate=recipe.muon_rate, adam_rate=recipe.adam_rate, horizon=recipe.average
        )
        self.geometry = ClipGeometry(model.config, recipe.frames)
        self.generator = torch.Generator().manual_seed(seed)
        self._channel_weights = channel_weights(channel_std, recipe.channel_power)
        scales = [Schedule().scales(t) for t in recipe.timesteps]
        self._alpha = torch.tensor([a for a, _ in scales])
        self._sigma = torch.tensor([s for _, s in scales])
        self._times = torch.tensor(recipe.timesteps, dtype=torch.float32)
        self._block_fn: BlockFn = torch.compile(clip_block, dynamic=False) if compile_blocks else clip_block

    def step(self, clips: Clips) -> float:
        """One optimiser step; returns the loss."""
        loss = self._loss(self.weights.work, clips, history=self._history(clips))
        return self.weights.step(loss, self.recipe.rate_scale(self.weights.steps))

    @torch.no_grad()
    def validate(self, clips: Clips, model: Summaryformer) -> dict[str, float]:
        """Weighted mean squared error of x0 at each served timestep with a true history, by `t<timestep>`."""
        result = {}
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(clips.latents.shape, generator=generator)
        for index, timestep in enumerate(self.recipe.timesteps):
            choice = torch.full(clips.weights.shape, index)
            x0 = self._predict(model, clips, clips.latents, choice, noise, generator)[1]
            error = ((x0 - clips.latents).square() * self._channel_weights).mean(dim=(2, 3))
            result[f"t{timestep}"] = float((error * clips.weights).sum() / clips.weights.sum())
        return result

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, tensors and numbers only."""
        return {**self.weights.state(), "generator": self.generator.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.weights.restore(state)
        self.generator.set_state(state["generator"])

    def _predict(
        self,
        model: Summaryformer,
        clips: Clips,
        history: Tensor,
        choice: Tensor,
        noise: Tensor,
        generator: torch.Generator,
        told: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(v, x0) of every frame at the timestep that `choice [B, T]` names; `told [B]` clips know their actions."""
        alpha, sigma = self._alpha[choice][..., None, None], self._sigma[choice][..., None, None]
        noisy = alpha * clips.latents + sigma * noise
        actions, fps = clips.actions, torch.full((len(history),), self.recipe.fps)
        if told is not None:
            actions = torch.where(told[:, None, None], actions, NO_ACTION)
            fps = torch.where(told, fps, 0.0)
        records, written_at = self._records(history, generator)
        v = clip_v(
            model, self.geometry, records, noisy, self._times[choice], actions, fps, clips.sink_gap,
            record_timestep=written_at, block_fn=self._block_fn if model is self.weights.work else None,
        )  # fmt: skip
        return v, alpha * noisy - sigma * v

    def _records(self, history: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        """What the passes see that write the memory `[B, T, N, C]`, and their timestep."""
        if self.recipe.cache_mode == "recache":
            return history, 0
        noise = torch.randn(history.shape, generator=generator)
        noised = self._alpha[-1] * history + self._sigma[-1] * noise
        return torch.cat((history[:, :1], noised[:, 1:]), dim=1), self.recipe.timesteps[-1]

    def _loss(self, model: Summaryformer, clips: Clips, history: Tensor) -> Tensor:
        shares = torch.tensor(self.recipe.timestep_shares)
        choice = torch.multinomial(shares, clips.weights.numel(), replacement=True, generator=self.generator)
        choice = choice.view(clips.weights.shape)
        noise = torch.randn(clips.latents.shape, generator=self.generator)
        # A few clips of a batch, never a whole one: a step on clips that cannot be predicted undoes several others.
        told = torch.rand(len(clips.latents), generator=self.generator) >= self.recipe.no_action
        v, _ = self._predict(model, clips, history, choice, noise, self.generator, told)
        alpha, sigma = self._alpha[choice][..., None, None], self._sigma[choice][..., None, None]
        target = alpha * noise - sigma * clips.latents
        error = ((v - target).square() * self._channel_weights).mean(dim=(2, 3))
        return (error * clips.weights).sum() / clips.weights.sum()

    @torch.no_grad()
    def _history(self, clips: Clips) -> Tensor:
        """What the memory holds while training: the truth, or the model's own predictions, and a little noise."""
        recipe = self.recipe
        history = clips.latents
        chance = float(torch.rand((), generator=self.generator))
        if self.weights.steps >= recipe.own_from * recipe.steps and chance < recipe.own_steps:
            noise = torch.randn(history.shape, generator=self.generator)
            choice = torch.zeros(clips.weights.shape, dtype=torch.long)
            _, x0 = self._predict(self.weights.work, clips, history, choice, noise, self.generator)
            own = torch.rand(clips.weights.shape, generator=self.generator) < recipe.own_share
            own &= clips.weights > 0
            history = torch.where(own[..., None, None], x0, history)
        amount = recipe.history_noise * torch.rand(*clips.weights.shape, 1, 1, generator=self.generator)
        return history + amount * torch.randn(history.shape, generator=self.generator)
