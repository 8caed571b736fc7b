"""Whole clips at once equal the streaming memory in both cache modes, for every frame until the start picture moves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from worldloop.core.types import NO_ACTION
from worldloop.models.clip import ClipGeometry, clip_block, clip_v
from worldloop.models.memory import Memory
from worldloop.models.summaryformer import Block, Summaryformer, SummaryformerConfig

from .driving import ODD, TINY, MemoryFactory, Step, random_model, stream

BOUND = {torch.float32: 5e-5, torch.float64: 5e-6}
"""Orders of summation differ in the trunk's dtype; queries and keys are turned in float32 either way. v is near 1."""
RED = 5e-3


@dataclass(frozen=True)
class Clip:
    """Two clips: what `clip_v` takes, and steps for the streaming code."""

    clean: Tensor
    noisy: Tensor
    timesteps: Tensor
    actions: Tensor
    fps: Tensor

    @classmethod
    def random(cls, config: SummaryformerConfig, frames: int) -> Clip:
        generator = torch.Generator().manual_seed(2)
        shape = (2, frames, config.raw_tokens, config.latent_channels)
        clean, noisy = torch.randn(2, *shape, generator=generator)
        timesteps = torch.tensor([999.0, 878.0, 669.0])[torch.randint(3, shape[:2], generator=generator)]
        actions = torch.rand(*shape[:2], 5, generator=generator) * 2 - 1
        actions[1, frames // 2 :] = NO_ACTION
        return cls(clean, noisy, timesteps, actions, torch.tensor([12.0, 0.0]))

    def steps(
        self, model: Summaryformer, index: int, focus: Tensor | None, record_timestep: int
    ) -> list[Step]:
        fps = self.fps[index].expand(2)
        start = model.condition(torch.zeros(1), None, fps[:1], start=True).at(0)
        result = [Step(self.clean[index, :1], start, True, focus)]
        for frame in range(1, self.clean.shape[1]):
            times = torch.stack((self.timesteps[index, frame], torch.tensor(float(record_timestep))))
            film = model.condition(times, self.actions[index, frame].expand(2, -1), fps)
            latents = self.noisy[index, frame][None], self.clean[index, frame][None]
            result += [Step(latents[0], film.at(0), False), Step(latents[1], film.at(1), True)]
        return result


def until_the_first_chase(config: SummaryformerConfig) -> int:
    """Frames, the start picture included, all of which see it where it was written."""
    return config.summary_window_frames + config.sink_gap_max


def in_dtype(dtype: torch.dtype) -> MemoryFactory:
    return lambda config, tables, recency: Memory(config.memory, tables, recency=recency, dtype=dtype)


def difference(
    model: Summaryformer, gaps: tuple[int, int], *, told: tuple[int, int] | None = None, frames: int = 0,
    focus: Tensor | None = None, record_timestep: int = 0, told_timestep: int | None = None,
) -> float:  # fmt: skip
    """Largest difference of v between the two forms; `told` and `told_timestep` are what `clip_v` hears of."""
    heard = record_timestep if told_timestep is None else told_timestep
    frames = frames or until_the_first_chase(model.config)
    clip = Clip.random(model.config, frames)
    whole = clip_v(
        model, ClipGeometry(model.config, frames), clip.clean, clip.noisy, clip.timesteps, clip.actions, clip.fps,
        torch.tensor(told or gaps), focus_N=focus, record_timestep=heard,
    )  # fmt: skip
    assert whole.shape == clip.clean.shape
    assert whole.dtype == torch.float32
    result = 0.0
    for index, gap in enumerate(gaps):
        steps = clip.steps(model, index, focus, record_timestep)
        streamed = torch.stack(stream(model, steps, first_id=gap, make=in_dtype(model.dtype))[1::2])
        result = max(result, float((whole[index, 1:] - streamed).abs().max()))
    return result


@pytest.fixture(scope="module", params=[TINY, ODD], ids=["tiny", "odd"])
def config(request: pytest.FixtureRequest) -> SummaryformerConfig:
    config: SummaryformerConfig = request.param
    return config


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@torch.inference_mode()
def test_clips_equal_streaming_until_the_first_chase(config: SummaryformerConfig, dtype: torch.dtype) -> None:
    assert difference(random_model(config).to_serving(dtype), (1, 1)) < BOUND[dtype]


@torch.inference_mode()
def test_clips_equal_streaming_at_other_gaps(config: SummaryformerConfig) -> None:
    assert difference(random_model(config), (2, 5)) < BOUND[torch.float64]
    assert difference(random_model(config), (1, 64)) < BOUND[torch.float64]


@pytest.mark.parametrize("frames", [2, 3, 4, 5])
@torch.inference_mode()
def test_short_clips(config: SummaryformerConfig, frames: int) -> None:
    assert difference(random_model(config), (1, 3), frames=frames) < BOUND[torch.float64]


@torch.inference_mode()
def test_clips_read_the_focus_region(config: SummaryformerConfig) -> None:
    focus = torch.arange(config.raw_tokens) % 2 == 0

    assert difference(random_model(config), (1, 2), focus=focus) < BOUND[torch.float64]


@torch.inference_mode()
def test_clips_equal_streaming_when_a_noisy_pass_leaves_the_record(config: SummaryformerConfig) -> None:
    model = random_model(config)

    assert difference(model, (1, 3), record_timestep=669) < BOUND[torch.float64]
    assert difference(model, (1, 3), record_timestep=669, told_timestep=0) > RED


@torch.inference_mode()
def test_control_another_gap_is_another_result(config: SummaryformerConfig) -> None:
    assert difference(random_model(config), (1, 1), told=(1, 4)) > RED


@torch.inference_mode()
def test_control_after_the_first_chase_the_two_differ(config: SummaryformerConfig) -> None:
    assert difference(random_model(config), (1, 1), frames=until_the_first_chase(config) + 1) > RED


@torch.inference_mode()
def test_control_shifted_ages_are_found(config: SummaryformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    import worldloop.models.clip as module

    ages = module._summary_ages
    monkeypatch.setattr(
        module, "_summary_ages", lambda c, frames: range(ages(c, frames).start + 1, frames - 1)
    )

    assert difference(random_model(config), (1, 1)) > RED


@torch.inference_mode()
def test_another_block_function_is_used() -> None:
    clip = Clip.random(TINY, 4)
    model = random_model(TINY)
    geometry, gaps = ClipGeometry(TINY, 4), torch.tensor([1, 2])
    layers: list[torch.nn.Module] = []

    def noting(block: Block, config: SummaryformerConfig, *tensors: Tensor) -> Tensor:
        layers.append(block)
        return clip_block(block, config, *tensors)

    plain, noted = (
        clip_v(
            model, geometry, clip.clean, clip.noisy, clip.timesteps, clip.actions, clip.fps, gaps, block_fn=fn
        )
        for fn in (None, noting)
    )

    assert layers == list(model.blocks)
    assert torch.equal(plain, noted)
