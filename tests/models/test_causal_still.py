"""Single frames at once, places of tokens, and words that are read with their neighbours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.models.causal_memory import CausalMemory, CausalMemoryConfig, GridRope
from worldloop.models.causal_still import still_velocity
from worldloop.models.causal_weights import VideoConfig, load_video_weights, read_video_config, save_video

CONFIG = CausalConfig.named("tiny", text_context=2, places=6)
GRIDS = ((3, 4), (5, 2))
BOUND, RED = 1e-11, 1e-3


def network(config: CausalConfig = CONFIG, seed: int = 0) -> CausalTransformer:
    torch.manual_seed(seed)
    made = CausalTransformer(config).double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "modulation" in name:
                parameter.normal_(std=0.6)
            elif not parameter.any() or name.startswith(("text_embedding", "time_")):
                parameter.normal_(std=0.3)
        made.words.weight[0] = 0
    return made.eval().requires_grad_(False)


def streamed(net: CausalTransformer, noisy: Tensor, timestep: float, words: Tensor) -> Tensor:
    """One frame as a rollout's first chunk."""
    c = net.config
    memory = CausalMemoryConfig(
        layers=c.num_layers, heads=c.num_heads, head_dim=c.head_dim, grid=(noisy.shape[-2], noisy.shape[-1]),
        chunk=1, window=3, sink=0,
    )  # fmt: skip
    rope = GridRope(c.head_dim, memory.grid, dtype=torch.float64)
    state = CausalMemory(memory, rope, dtype=torch.float64, device="cpu")
    state.begin(1)
    return net.pass_chunk(noisy[None, None], timestep, net.cross(words[None]), state)[0, 0]


@pytest.mark.parametrize("grid", GRIDS)
def test_single_frames_are_first_chunks(grid: tuple[int, int]) -> None:
    net = network()
    noisy = torch.randn(3, CONFIG.channels, *grid, dtype=torch.float64)
    words = torch.tensor([[1, 2, 6, 0], [3, 0, 0, 0], [0, 0, 0, 0]])
    times = torch.tensor([1000.0, 400.0, 0.0], dtype=torch.float64)
    ours = still_velocity(net, noisy, times, words)
    for row, told, wanted in zip(noisy, times.tolist(), words, strict=True):
        shorter = wanted[: max(1, int((wanted > 0).sum()))]
        index = int((times == told).nonzero())
        assert (ours[index] - streamed(net, row, told, shorter)).abs().max() < BOUND
    # Controls: another time, another text, another place of the same cells.
    right = streamed(net, noisy[0], 1000.0, words[0])
    assert (streamed(net, noisy[0], 900.0, words[0]) - right).abs().max() > RED
    assert (streamed(net, noisy[0], 1000.0, words[1]) - right).abs().max() > RED
    turned = still_velocity(net, noisy.flip(-1), times, words).flip(-1)
    assert (turned - ours).abs().max() > RED


def test_a_word_is_read_with_its_neighbours_as_a_reference_reads_it() -> None:
    net = network()
    words = torch.tensor([[5, 3, 6, 2, 0, 0], [1, 0, 0, 0, 0, 0]])
    with torch.no_grad():
        table, kernel = net.words.weight.numpy(), net.neighbours.weight.numpy()
        bias, order = net.neighbours.bias, np.arange(6)[:, None]
        half = CONFIG.text_dim // 2
        angle = order * 10_000.0 ** -(np.arange(half) / half)
        waves = np.concatenate((np.cos(angle), np.sin(angle)), 1)
    assert bias is not None
    for row in words.numpy():
        alone = np.where(row[:, None] > 0, table[row] + waves, 0.0)
        mixed = np.zeros_like(alone)
        for place in range(6):
            if row[place]:
                mixed[place] = alone[place] + bias.numpy()
                for offset in range(-2, 3):
                    if 0 <= place + offset < 6:
                        mixed[place] += kernel[:, :, offset + 2] @ alone[place + offset]
        theirs = net.text_embedding(torch.from_numpy(mixed))
        assert (net.text(torch.from_numpy(row)[None])[0] - theirs).abs().max() < BOUND
    apart = net.text(torch.tensor([[5, 6, 3, 2, 0, 0]]))
    assert (apart[0, 3] - net.text(words[:1])[0, 3]).abs().max() > RED, "order of the neighbours"


def test_places_are_counted_from_the_middle() -> None:
    net = network()
    zeros = torch.zeros(1, 1, CONFIG.channels, 6, 6, dtype=torch.float64)
    whole = net.rows(zeros).view(6, 6, -1)
    for grid in ((2, 4), (3, 5), (6, 6)):
        part = net.rows(zeros[..., : grid[0], : grid[1]]).view(*grid, -1)
        middle = part[grid[0] // 2, grid[1] // 2]
        assert torch.equal(middle, whole[3, 3])
        assert torch.equal(part, whole[3 - grid[0] // 2 :, 3 - grid[1] // 2 :][: grid[0], : grid[1]])
    assert not torch.equal(whole[0, 0], whole[0, 1])
    with pytest.raises(ValueError, match="at most 6 tokens a side"):
        CONFIG.token_grid((4, 7))


def test_neither_is_there_unless_the_config_says_so(tmp_path: Path) -> None:
    plain = replace(CONFIG, text_context=0, places=0)
    extra = set(network().state_dict()) - set(network(plain).state_dict())
    assert extra == {"places", "neighbours.weight", "neighbours.bias"}
    path = tmp_path / "tiny-picture.safetensors"
    config = VideoConfig(model=CONFIG, latent_hw=(3, 4), chunk_frames=1, window_frames=1, fps=12)
    save_video(path, network(), config, dtype=torch.float64)
    assert read_video_config(path).model == CONFIG
    fresh = network(seed=1)
    load_video_weights(path, fresh)
    assert torch.equal(fresh.places, network().places)
