"""Random causal models in float64 whose every part counts, and the same facts for the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worldloop.loops.video_model import OwnWords, VideoModel
from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.models.causal_memory import CausalMemory, CausalMemoryConfig, GridRope
from worldloop.models.causal_weights import VideoConfig

from .causal_reference import Array, Spec

WORDS = VideoConfig(
    model=CausalConfig.named("tiny"), latent_hw=(2, 3), chunk_frames=2, window_frames=7, sink_frames=1, steps=3,
    guidance=2.0, fps=12,
)  # fmt: skip
"""Its own words, whole cells as tokens; the window is no whole number of chunks."""
VECTORS = VideoConfig(
    model=CausalConfig(
        dim=66, ffn_dim=40, num_heads=3, num_layers=3, channels=3, patch=2, text_dim=7, text_len=5, freq_dim=10,
    ),
    latent_hw=(4, 2), chunk_frames=3, window_frames=5, sink_frames=2, steps=2, shift=3.0, solver="euler", fps=16,
)  # fmt: skip
"""Vectors as text, patches of 2 x 2, three heads of 22; beside sink and chunk nothing fits into the window."""
MODELS = {"words": WORDS, "vectors": VECTORS}


def random_network(config: CausalConfig, seed: int = 0) -> CausalTransformer:
    """Float64, no parameter zero, gates wide open."""
    generator = torch.Generator().manual_seed(seed)
    network = CausalTransformer(config).double()
    with torch.no_grad():
        for name, value in network.named_parameters():
            scale = 0.6 if value.ndim == 1 or "modulation" in name else 0.8 / value[0].numel() ** 0.5
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64) * scale
            value.copy_(1 + 0.3 * noise if "norm" in name and name.endswith("weight") else noise)
    return network.eval().requires_grad_(False)


def weights(network: nn.Module) -> dict[str, Array]:
    return {key: value.double().numpy() for key, value in network.state_dict().items()}


def spec(config: VideoConfig, **changes: Any) -> Spec:
    model = config.model
    facts = {
        "heads": model.num_heads, "layers": model.num_layers, "patch": model.patch, "freq_dim": model.freq_dim,
        "text_len": model.text_len, "chunk": config.chunk_frames, "window": config.window_frames,
        "sink": config.sink_frames,
    }  # fmt: skip
    return Spec(**{**facts, **changes})


def new_memory(config: CausalMemoryConfig) -> CausalMemory:
    rope = GridRope(config.head_dim, config.grid, dtype=torch.float64)
    return CausalMemory(config, rope, dtype=torch.float64)


def random_text(config: CausalConfig, seed: int, length: int = 3) -> Tensor:
    """One text as the network takes it."""
    generator = torch.Generator().manual_seed(seed)
    if config.vocabulary:
        return torch.randint(1, len(config.vocabulary) + 1, (length,), generator=generator)
    return torch.randn(length, config.text_dim, generator=generator, dtype=torch.float64)


def random_latents(config: VideoConfig, frames: int, seed: int = 1) -> Tensor:
    """`[frames, C, y, x]` in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, *config.latent_shape, generator=generator, dtype=torch.float64)


def worst(ours: Tensor, theirs: Array | Tensor) -> float:
    """Largest difference; both must hold something."""
    assert ours.shape == theirs.shape
    assert ours.numel() > 0
    return float(np.abs(ours.numpy() - np.asarray(theirs)).max())


@dataclass
class PlainPictures:
    """Two pixels a picture: the mean of a latent, and of the one before."""

    picture_hw = (1, 2)
    cache_bytes = 8

    def encode(self, picture: Tensor) -> Tensor:
        raise NotImplementedError

    def decode(self, latents: Tensor, cache: Any) -> tuple[Tensor, Any]:
        means = latents.mean(dim=(1, 2, 3))
        before = torch.cat((means[:1] if cache is None else cache, means[:-1]))
        pair = torch.stack((means, before), dim=1)[:, None, :, None] * 100 + 128
        pictures = pair.expand(-1, 1, -1, 3).repeat_interleave(4, dim=0).clamp(0, 255).to(torch.uint8)
        return pictures[3:] if cache is None else pictures, means[-1:]

    def resume(self, latents: Tensor) -> Any:
        return latents[-1:].mean(dim=(1, 2, 3))


def video_model(config: VideoConfig) -> VideoModel:
    """`random_network` in float64, ready to run."""
    return VideoModel(
        config=config, network=random_network(config.model), pictures=PlainPictures(), texts=OwnWords(config.model),
        device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip
