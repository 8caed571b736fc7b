"""Autoencoder: streaming equals parallel at any split, the first frame's rule, pixels, and latent statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig, LatentStats, normalise, to_bytes

CONFIG = AutoencoderConfig(channels=6, latent_hw=(2, 3), encoder_hidden=8, decoder_hidden=10)
BOUND = 1e-5
"""Float32; matrix products of other batch sizes may sum in another order. Values are near 1."""
FRAMES = 1 + 4 * 4


@pytest.fixture(scope="module")
def model() -> Autoencoder:
    generator = torch.Generator().manual_seed(0)
    model = Autoencoder(CONFIG)
    with torch.no_grad():
        for value in model.parameters():
            fan = math.prod(value.shape[1:]) if value.ndim > 1 else 4
            value.copy_(torch.randn(value.shape, generator=generator) / fan**0.5)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def clip() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (2, FRAMES, *CONFIG.picture_hw, 3), dtype=torch.uint8, generator=generator)


def gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def encoded(model: Autoencoder, five: np.ndarray) -> np.ndarray:
    """Latent `[N, C]` of five normalised frames `[5, H, W, 3]`, cell by cell in float64."""
    w = {key: value.double().numpy() for key, value in model.enc.state_dict().items()}
    result = []
    for row in range(CONFIG.latent_hw[0]):
        for column in range(CONFIG.latent_hw[1]):
            cell = five[:, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16].reshape(-1)
            hidden = gelu(w["hidden.weight"] @ cell + w["hidden.bias"])
            result.append(w["linear.weight"] @ cell + w["linear.bias"] + w["out.weight"] @ hidden)
    return np.array(result)


def decoded(model: Autoencoder, latent: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Four normalised frames `[4, H, W, 3]` of two latents `[N, C]`, pixel by pixel in float64."""
    w = {key: value.double().numpy() for key, value in model.dec.state_dict().items()}
    (height, width), c = CONFIG.latent_hw, CONFIG.channels

    def convolve(grid: np.ndarray, name: str) -> np.ndarray:
        padded = np.pad(grid, ((1, 1), (1, 1), (0, 0)))
        result = np.zeros((height, width, len(w[f"{name}.bias"])))
        for y in range(height):
            for x in range(width):
                result[y, x] = np.einsum("yxc,ocyx->o", padded[y : y + 3, x : x + 3], w[f"{name}.weight"])
        return np.asarray(result + w[f"{name}.bias"])

    grid = np.concatenate((latent, previous), axis=-1).reshape(height, width, 2 * c)
    hidden = gelu(convolve(grid, "first"))
    hidden = (hidden + gelu(convolve(hidden, "second"))).reshape(height * width, -1)
    cells = latent @ w["linear.weight"].T + w["linear.bias"] + hidden @ w["out.weight"].T
    pictures = np.zeros((4, 16 * height, 16 * width, 3))
    for index, cell in enumerate(cells.reshape(-1, 4, 16, 16, 3)):
        row, column = divmod(index, width)
        pictures[:, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = cell
    return pictures


def encode_streaming(model: Autoencoder, clip: Tensor, split: int) -> Tensor:
    """Latents `[B, T, N, C]`, group by group; the cache goes through a copy after `split` groups."""
    latent, cache = model.encode_first(clip[:, 0])
    latents = [latent]
    for group in range((clip.shape[1] - 1) // 4):
        if group == split:
            cache = cache.clone()
        latent, cache = model.encode_next(clip[:, 1 + 4 * group : 5 + 4 * group], cache)
        latents.append(latent)
    return torch.stack(latents, dim=1)


def decode_streaming(model: Autoencoder, latents: Tensor) -> Tensor:
    frames, cache = model.decode_first(latents[:, 0])
    parts = [frames]
    for index in range(1, latents.shape[1]):
        frames, cache = model.decode_next(latents[:, index], cache)
        parts.append(frames)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("split", range(4))
def test_streaming_encode_equals_parallel(model: Autoencoder, clip: Tensor, split: int) -> None:
    whole = model.encode(clip)
    streamed = encode_streaming(model, clip, split)

    assert whole.shape == (2, 5, 6, CONFIG.channels)
    assert (streamed - whole).abs().max() < BOUND
    assert (encode_streaming(model, clip.roll(1, 1), split) - whole).abs().max() > 100 * BOUND  # control
    # Going on from the middle: a clip's later latents need its last frame only.
    _, cache = model.encode_next(clip[:, 1:5], torch.zeros_like(model._cells(clip[:, :1])))
    assert (model.encode_next(clip[:, 5:9], cache)[0] - whole[:, 2]).abs().max() < BOUND


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_streaming_decode_equals_parallel(model: Autoencoder, clip: Tensor, frames: int) -> None:
    latents = model.encode(clip)[:, :frames]

    whole = model.decode(latents)

    assert whole.shape == (2, 1 + 4 * (frames - 1), *CONFIG.picture_hw, 3)
    assert (decode_streaming(model, latents) - whole).abs().max() < BOUND
    forgotten = torch.cat([model.decode_next(latents[:, i], latents[:, i])[0] for i in range(frames)], dim=1)[
        :, 3:
    ]
    assert frames == 1 or (forgotten - whole).abs().max() > 100 * BOUND  # control


def test_encoder_equals_the_reference(model: Autoencoder, clip: Tensor) -> None:
    rgb = (clip[0].double().numpy() / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]

    latents = model.encode(clip)[0].numpy()

    assert np.abs(latents[0] - encoded(model, np.repeat(rgb[:1], 5, axis=0))).max() < BOUND
    assert np.abs(latents[3] - encoded(model, rgb[8:13])).max() < BOUND
    assert np.abs(latents[3] - encoded(model, rgb[9:14])).max() > 100 * BOUND  # control


def test_decoder_equals_the_reference(model: Autoencoder, clip: Tensor) -> None:
    latents = model.encode(clip)
    z = latents[0].double().numpy()

    frames = model.decode(latents)[0].numpy()

    assert np.abs(frames[:1] - decoded(model, z[0], z[0])[-1:]).max() < BOUND
    assert np.abs(frames[5:9] - decoded(model, z[2], z[1])).max() < BOUND
    assert np.abs(frames[5:9] - decoded(model, z[2], z[2])).max() > 100 * BOUND  # control


def test_the_first_frame_counts_as_five(model: Autoencoder, clip: Tensor) -> None:
    still = clip[:, :1].expand(-1, 5, -1, -1, -1)

    first, second = model.encode(still).unbind(1)

    assert (first - second).abs().max() < BOUND
    assert (model.encode(clip[:, :5])[:, 1] - first).abs().max() > 100 * BOUND  # control


def test_causal_in_time(model: Autoencoder, clip: Tensor) -> None:
    other = clip.clone()
    other[:, 9:] = 255 - other[:, 9:]
    before, after = model.encode(clip), model.encode(other)

    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])
    assert torch.equal(model.decode(before)[:, :9], model.decode(after)[:, :9])


def test_every_byte_survives_normalisation() -> None:
    rgb = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, 3)

    normal = normalise(rgb)

    assert torch.equal(to_bytes(normal), rgb)
    assert not torch.equal(to_bytes(normal - 0.01), rgb)  # control: more than half a level
    assert to_bytes(torch.tensor([[9.0, -9.0, 0.0]])).tolist() == [[255, 0, 104]]
    mean = torch.tensor([[0.485, 0.456, 0.406]]) * 255
    assert (normalise(mean.round()).abs() < 0.01).all()
    assert normalise(torch.tensor([[255, 255, 255]], dtype=torch.uint8))[0].tolist() == pytest.approx(
        [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    )


def test_latents_are_gaussianised_by_kind() -> None:
    first_mean, first_std, rest_mean, rest_std = torch.arange(1.0, 25.0).view(4, 6)
    stats = LatentStats(first_mean=first_mean, first_std=first_std, rest_mean=rest_mean, rest_std=rest_std)
    latent = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0))

    for first, mean, std in ((True, first_mean, first_std), (False, rest_mean, rest_std)):
        normal = stats.gaussianise(latent, first=first)
        assert torch.allclose(normal, (latent - mean) / std)
        assert torch.allclose(stats.restore(normal, first=first), latent, atol=1e-5)
        assert not torch.allclose(stats.restore(normal, first=not first), latent, atol=1e-2)


def test_parallel_encode_takes_whole_groups_only(model: Autoencoder, clip: Tensor) -> None:
    with pytest.raises(Exception, match="divide"):
        model.encode(clip[:, :4])
