"""How far a dream has drifted: slow averages of its latents against what the model was trained on.

In the model's own space every channel of a latent has mean 0 and deviation 1 over the training data. One picture is
far from that and pictures differ, so averages over many frames are compared:

    score = root mean square over channels of the Frechet distance of (mean, deviation) to (0, 1), over HEALTHY

A healthy dream is about 1. Everything stays on the device; whoever shows the frame brings the score along with its
pixels. Shapes: N cells, C channels. Owns the averages and the score. Does not decide what follows (`world`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HORIZON = 32
"""Frames that the averages look back; before that many, all of them count alike."""
HEALTHY = 0.45
"""Distance of a healthy dream: the median of the shipped world's walks."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Of every channel, over frames.

    Attributes:
        moments: float32 `[2, C]`, mean and mean square.
        frames: how many frames they hold.
    """

    moments: Tensor
    frames: int

    @classmethod
    def empty(cls, channels: int, device: torch.device) -> Averages:
        """Of no frame yet."""
        return cls(torch.zeros(2, channels, device=device), 0)

    def with_frame(self, latent: Tensor) -> Averages:
        """With one more gaussianised latent `[1, N, C]`; this one stays as it is, so that a frame may be made again."""
        cells = latent[0].float()
        new = torch.stack((cells.mean(dim=0), cells.square().mean(dim=0)))
        frames = min(self.frames + 1, HORIZON)
        return Averages(self.moments + (new - self.moments) / frames, frames)

    def score(self) -> Tensor:
        """The score, float32 `[1]`, on the device."""
        mean, square = self.moments
        deviation = (square - mean.square()).clamp_min(0.0).sqrt()
        distance: Tensor = (mean.square() + (deviation - 1.0).square()).mean(dim=0, keepdim=True).sqrt()
        return distance / HEALTHY


def with_score(pixels: Tensor, score: Tensor) -> tuple[Tensor, float]:
    """Bytes of pictures on the device to main memory together with a score, in one copy and so with one wait.

    Returns:
        (the pictures, bytes of the same shape; the score).
    """
    packed = torch.cat((score.view(torch.uint8), pixels.flatten())).cpu()
    size = score.numel() * score.element_size()
    return packed[size:].view(pixels.shape), float(packed[:size].view(torch.float32))
