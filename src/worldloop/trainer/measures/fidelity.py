"""How close pictures are to the truth, in decibels, and the autoencoder by itself.

Owns the PSNR of bytes. Called by `evaluate`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from worldloop.models.autoencoder import Autoencoder, to_bytes


def square_error(pictures: NDArray[np.uint8], truth: NDArray[np.uint8]) -> float:
    """Mean squared error of two equal stacks of pictures, 0..255 units."""
    difference = pictures.astype(np.float32) - truth
    return float((difference * difference).mean(dtype=np.float64))


def psnr(errors: list[float]) -> float | None:
    """Peak signal to noise ratio of the mean of squared errors, dB; None without one. 99 at most."""
    if not errors:
        return None
    return float(min(99.0, 10 * np.log10(255.0**2 / max(float(np.mean(errors)), 1e-12))))


@torch.inference_mode()
def reconstruct(autoencoder: Autoencoder, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A clip `[1 + 4 (T - 1), H, W, 3]` to latents and back, bytes."""
    device = autoencoder.dec.linear.weight.device
    latents = autoencoder.encode(torch.from_numpy(clip)[None].to(device))
    result: NDArray[np.uint8] = to_bytes(autoencoder.decode(latents)[0]).cpu().numpy()
    return result
