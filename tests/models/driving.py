"""Random models whose every part counts, scripts of a world, and one script run through both sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldloop.models.memory import Memory, Recency
from worldloop.models.rope import RopeTables
from worldloop.models.summaryformer import Film, Summaryformer, SummaryformerConfig

from .reference import Geometry, Stream

TINY = SummaryformerConfig.named("tiny")
ODD = SummaryformerConfig(
    dim=96, ffn_dim=80, num_heads=1, num_layers=3, summary_tokens=3, raw_window_frames=1, summary_window_frames=4,
    latent_channels=5, latent_hw=(2, 5), sink_gap_max=2, cond_dim=24, rope_spatial_base=100.0, grid_embedding=True,
)  # fmt: skip
"""One head, three wide: nothing in it divides the way it does at `tiny`."""

MemoryFactory = Callable[[SummaryformerConfig, RopeTables, Recency | None], Memory]


def random_model(config: SummaryformerConfig, seed: int = 0) -> Summaryformer:
    """A model none of whose parameters is zero; the trunk in float64, the conditioning in float32."""
    generator = torch.Generator().manual_seed(seed)
    model = Summaryformer(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            fan = value.shape[-1] if value.ndim == 2 else 1
            scale = 0.5 if value.ndim == 1 or "summary" in name or "grid" in name else 0.8 / fan**0.5
            noise = torch.randn(value.shape, generator=generator) * scale
            value.copy_(1 + 0.2 * noise if "_norm" in name else noise)
    return model.to_serving(torch.float64)


def weights(model: Summaryformer) -> dict[str, np.ndarray]:
    """Parameters and buffers in float64."""
    return {key: value.double().numpy() for key, value in (*model.named_parameters(), *model.named_buffers())}


def geometry(config: SummaryformerConfig, recency: Recency | None = None) -> Geometry:
    law = None if recency is None else (recency.flat_until, recency.decay_end, recency.beta, recency.gamma)
    return Geometry(
        layers=config.num_layers, heads=config.num_heads, head_dim=config.head_dim, grid=config.latent_hw,
        summary_tokens=config.summary_tokens, raw_window=config.raw_window_frames,
        window=config.summary_window_frames, sink_gap_max=config.sink_gap_max,
        spatial_base=config.rope_spatial_base, recency=law,
    )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One pass: what goes in, its condition, and whether its record is the frame's."""

    latent: Tensor
    film: Film
    last: bool
    focus: Tensor | None = None


def script(
    model: Summaryformer, frames: int, cache_mode: str, *, focus: Tensor | None = None, seed: int = 1
) -> list[Step]:
    """Start picture and `frames` body frames of random latents: two noisy passes, and a clean one in `recache`."""
    config = model.config
    generator = torch.Generator().manual_seed(seed)

    def latent() -> Tensor:
        shape = (1, config.raw_tokens, config.latent_channels)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    start = model.condition(torch.zeros(1), None, torch.tensor([12.0]), start=True).at(0)
    steps = [Step(latent(), start, True, focus)]
    times = [999.0, 669.0] + ([0.0] if cache_mode == "recache" else [])
    for _ in range(frames):
        action = torch.rand(1, 5, generator=generator).mul(2).sub(1).expand(len(times), -1)
        film = model.condition(torch.tensor(times), action, torch.full((len(times),), 12.0))
        steps += [Step(latent(), film.at(i), i == len(times) - 1) for i in range(len(times))]
    return steps


def plain_memory(config: SummaryformerConfig, tables: RopeTables, recency: Recency | None) -> Memory:
    return Memory(config.memory, tables, recency=recency, dtype=torch.float64)


def stream(
    model: Summaryformer,
    steps: Sequence[Step],
    *,
    recency: Recency | None = None,
    make: MemoryFactory = plain_memory,
    change: Callable[[RopeTables], None] | None = None,
    first_id: int = 1,
) -> list[Tensor]:
    """v `[N, C]` of every pass by the streaming code; body frames are numbered from `first_id`."""
    tables = model.tables()
    if change is not None:
        change(tables)
    memory = make(model.config, tables, recency)
    result = []
    for step in steps:
        rope = tables.record(memory.frame + first_id - 1 if memory.frame else 0)
        result.append(model.pass_record(step.latent, step.film, rope, memory, focus_N=step.focus)[0])
        if step.last:
            memory.advance()
    return result


def dense(model: Summaryformer, steps: Sequence[Step], *, recency: Recency | None = None) -> list[np.ndarray]:
    """v `[N, C]` of every pass by the reference."""
    world = Stream(geometry(model.config, recency), weights(model))
    result = []
    for step in steps:
        blocks, head = step.film.blocks.double().numpy(), step.film.head.double().numpy()
        focus = None if step.focus is None else step.focus.numpy()
        result.append(world.run(step.latent[0].numpy(), blocks, head, focus))
        if step.last:
            world.commit()
    return result


def worst(ours: Sequence[Tensor], theirs: Sequence[np.ndarray]) -> float:
    """Largest difference of any number of any pass."""
    return max(float(np.abs(a.double().numpy() - b).max()) for a, b in zip(ours, theirs, strict=True))


def with_changes(config: SummaryformerConfig, **changes: Any) -> MemoryFactory:
    """Memories whose geometry is not the model's."""
    return lambda _, tables, recency: plain_memory(replace(config, **changes), tables, recency)
