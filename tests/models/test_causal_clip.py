"""Whole clips at once equal the streaming memory, every chunk of them, inside the window and far past it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from worldloop.models.causal import Block, CausalTransformer
from worldloop.models.causal_clip import CausalClip, clip_block, clip_velocity
from worldloop.models.causal_memory import CausalMemory, CausalMemoryConfig, GridRope
from worldloop.models.causal_weights import VideoConfig

from .causal_driving import VECTORS, WORDS, random_latents, random_network, random_text, worst

BOUND = {torch.float64: 1e-12, torch.float32: 5e-5}
"""Only orders of summation differ; velocities are near 1."""
RED = 1e-2
CHUNKS = 6

CASES = {
    "words": WORDS,
    "vectors": VECTORS,
    "no sink": replace(WORDS, sink_frames=0),
    "a sink longer than a chunk": replace(WORDS, sink_frames=3),
    "one frame a chunk": replace(WORDS, chunk_frames=1, window_frames=4),
    "the chunk alone": replace(WORDS, chunk_frames=3, window_frames=3, sink_frames=0),
    "a window longer than the clip": replace(WORDS, window_frames=60),
}


@dataclass(frozen=True)
class Clips:
    """Two clips, with what both forms take."""

    clean: Tensor
    noisy: Tensor
    timesteps: Tensor
    texts: Tensor
    sizes: list[int]

    @classmethod
    def random(cls, config: VideoConfig, *, first: bool) -> Clips:
        sizes = [1] * first + [config.chunk_frames] * CHUNKS
        clean, noisy = (
            torch.stack([random_latents(config, sum(sizes), seed) for seed in seeds])
            for seeds in ((1, 2), (3, 4))
        )
        times = torch.rand(2, len(sizes), generator=torch.Generator().manual_seed(5)).double() * 1000
        texts = torch.stack([random_text(config.model, seed) for seed in (6, 7)])
        return cls(clean, noisy, times, texts, sizes)


def whole(
    network: CausalTransformer, memory: CausalMemoryConfig, clips: Clips, dtype: torch.dtype, **choices: Any
) -> Tensor:
    clip = CausalClip(memory, sum(clips.sizes), first=clips.sizes[0] == 1 < memory.chunk, dtype=dtype)
    assert clip.chunks == len(clips.sizes)
    texts = clips.texts.to(dtype) if clips.texts.is_floating_point() else clips.texts
    return clip_velocity(
        network, clip, clips.clean.to(dtype), clips.noisy.to(dtype), clips.timesteps, texts, **choices
    )


def streamed(
    network: CausalTransformer,
    memory: CausalMemoryConfig,
    clips: Clips,
    dtype: torch.dtype,
    told: float = 0.0,
) -> Tensor:
    rope = GridRope(memory.head_dim, memory.grid, dtype=dtype)
    result = []
    for index in range(2):
        held, cross = CausalMemory(memory, rope, dtype=dtype), network.cross(clips.texts[index][None])
        clean, noisy = (x[index].to(dtype).split(clips.sizes) for x in (clips.clean, clips.noisy))
        seen = []
        for chunk, size in enumerate(clips.sizes):
            held.begin(size)
            seen.append(
                network.pass_chunk(noisy[chunk][None], float(clips.timesteps[index, chunk]), cross, held)[0]
            )
            network.pass_chunk(clean[chunk][None], told, cross, held)
            held.advance()
        result.append(torch.cat(seen))
    return torch.stack(result)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_whole_clips_are_the_stream(case: str, first: bool) -> None:
    config = CASES[case]
    network, clips = random_network(config.model), Clips.random(config, first=first)

    ours = whole(network, config.memory, clips, torch.float64)

    assert worst(ours, streamed(network, config.memory, clips, torch.float64)) < BOUND[torch.float64]


@torch.inference_mode()
def test_in_float32_too() -> None:
    network, clips = random_network(WORDS.model).float(), Clips.random(WORDS, first=False)

    ours = whole(network, WORDS.memory, clips, torch.float32)

    assert ours.dtype == torch.float32
    assert worst(ours, streamed(network, WORDS.memory, clips, torch.float32)) < BOUND[torch.float32]


@torch.inference_mode()
def test_control_a_memory_written_at_another_timestep_is_found() -> None:
    network, clips = random_network(WORDS.model), Clips.random(WORDS, first=False)

    ours = whole(network, WORDS.memory, clips, torch.float64)

    assert worst(ours, streamed(network, WORDS.memory, clips, torch.float64, told=40.0)) > RED


@pytest.mark.parametrize(
    "changes", [{"window_frames": 8}, {"window_frames": 6}, {"sink_frames": 0}, {"sink_frames": 2}]
)
@torch.inference_mode()
def test_control_another_window_or_sink_is_found(changes: dict[str, int]) -> None:
    network, clips = random_network(WORDS.model), Clips.random(WORDS, first=False)
    other = replace(WORDS, **changes).memory

    assert (
        worst(
            whole(network, other, clips, torch.float64), streamed(network, WORDS.memory, clips, torch.float64)
        )
        > RED
    )


@torch.inference_mode()
def test_control_a_sink_that_stays_behind_is_found() -> None:
    network, clips = random_network(WORDS.model), Clips.random(WORDS, first=False)

    def stays(block: Block, clip: CausalClip, *rest: Tensor) -> Tensor:
        one = tuple(part[:1].expand_as(part) for part in clip._moved)
        clip._moved = one[0], one[1]
        return clip_block(block, clip, *rest)

    ours = whole(network, WORDS.memory, clips, torch.float64, block_fn=stays)
    theirs = streamed(network, WORDS.memory, clips, torch.float64)
    inside = WORDS.window_frames // 2 * 2

    assert worst(ours[:, :inside], theirs[:, :inside]) < BOUND[torch.float64]
    assert worst(ours[:, inside:], theirs[:, inside:]) > RED


@torch.inference_mode()
def test_a_noisy_chunk_sees_no_other_noisy_chunk_and_nothing_ahead() -> None:
    network, clips = random_network(WORDS.model), Clips.random(WORDS, first=False)
    before = whole(network, WORDS.memory, clips, torch.float64)
    noisy, clean = clips.noisy.clone(), clips.clean.clone()
    noisy[:, 4:6] += 1
    clean[:, 8:] += 1

    after = whole(network, WORDS.memory, replace(clips, noisy=noisy, clean=clean), torch.float64)

    same = (before == after).flatten(2).all(dim=2).all(dim=0)
    assert (
        same.tolist() == [True] * 4 + [False] * 2 + [True] * 4 + [False] * 2
    )  # frames 8 and 9 read nothing of 8, 9


def test_gradients_reach_every_parameter_through_both_streams() -> None:
    network = random_network(WORDS.model).requires_grad_(True)
    clips = Clips.random(WORDS, first=True)

    whole(network, WORDS.memory, clips, torch.float64)[:, -2:].square().sum().backward()

    silent = [
        name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()
    ]
    assert silent == []
    assert network.words.weight.grad is not None
    assert not network.words.weight.grad[0].any(), "padding is not learned"


@pytest.mark.parametrize(("frames", "first"), [(5, False), (4, True), (0, False)])
def test_a_clip_that_is_no_whole_number_of_chunks_is_refused(frames: int, first: bool) -> None:
    with pytest.raises(ValueError, match=f"{frames} frames are not .*a whole number of chunks of 2"):
        CausalClip(WORDS.memory, frames, first=first)
