"""Building blocks against their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldloop.models.layers import HeadNorm, NumberEmbedding, SwiGLU, film
from worldloop.models.summaryformer import attend

from .reference import layer_norm, number_embedding, silu, softmax

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


@torch.inference_mode()
def test_film_norms_scales_and_shifts() -> None:
    x, shift, scale = normal(3, 7, 32), normal(32), normal(32)
    expected = layer_norm(x.numpy()) * (1 + scale.numpy()) + shift.numpy()

    assert np.abs(film(x, shift, scale).numpy() - expected).max() < 1e-12
    assert np.abs(film(x, scale, shift).numpy() - expected).max() > 0.1  # control


@torch.inference_mode()
def test_head_norm_is_root_mean_square_with_a_gain_a_head() -> None:
    norm = HeadNorm(3, 16, gain=1.2)
    x = normal(2, 3, 5, 16)
    norm.weight[1] = 0.5
    gain = np.array([1.2, 0.5, 1.2])[:, None, None]
    expected = x.numpy() / np.sqrt((x.numpy() ** 2).mean(-1, keepdims=True) + 1e-6) * gain

    assert np.abs(norm(x.float()).numpy() - expected).max() < 2e-6
    assert np.abs(norm(x.float()).numpy() - layer_norm(x.numpy()) * gain).max() > 0.01  # control


@torch.inference_mode()
def test_swiglu_gates_with_its_second_half() -> None:
    layer = SwiGLU(8, 12).double()
    x = normal(4, 8)
    value, gate = np.split(x.numpy() @ layer.proj.weight.numpy().T, 2, axis=-1)
    expected = (silu(gate) * value) @ layer.out.weight.numpy().T

    assert np.abs(layer(x).numpy() - expected).max() < 1e-12
    assert (
        np.abs(layer(x).numpy() - (silu(value) * gate) @ layer.out.weight.numpy().T).max() > 1e-3
    )  # control


@pytest.mark.parametrize("period", [10_000.0, 1_000.0])
def test_frequencies_fall_from_one_to_the_period(period: float) -> None:
    expected = [period ** (-i / 64) for i in range(64)]

    # A stored frequency may be rounded to 8 bits; its neighbours are more than a tenth away.
    assert NumberEmbedding(16, period=period).frequencies.tolist() == pytest.approx(expected, rel=2**-8)
    assert NumberEmbedding(16, period=2 * period).frequencies.tolist() != pytest.approx(expected, rel=2**-8)


@torch.inference_mode()
def test_number_embedding_equals_the_reference() -> None:
    layer = NumberEmbedding(16, period=10_000.0)
    weights = {f"n.{key}": value.double().numpy() for key, value in layer.state_dict().items()}
    assert set(weights) == {"n.hidden.weight", "n.hidden.bias", "n.out.weight", "n.out.bias"}
    weights["n.frequencies"] = layer.frequencies.double().numpy()
    values = [0.0, 1.0, 669.0, 999.0]

    found = layer(torch.tensor(values)).numpy()

    assert np.abs(found - [number_embedding(weights, "n", v) for v in values]).max() < 1e-4
    assert np.abs(found - [number_embedding(weights, "n", v + 0.1) for v in values]).max() > 1e-3  # control


@torch.inference_mode()
def test_attention_is_a_softmax_over_every_key_with_its_bias() -> None:
    q, k, v, bias = normal(1, 2, 3, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 8), normal(9)
    logits = q.numpy() @ k.numpy().swapaxes(-1, -2) / np.sqrt(8)

    assert np.abs(attend(q, k, v, None).numpy() - softmax(logits) @ v.numpy()).max() < 1e-12
    assert np.abs(attend(q, k, v, bias).numpy() - softmax(logits + bias.numpy()) @ v.numpy()).max() < 1e-12
    assert np.abs(attend(q, k, v, bias).numpy() - softmax(logits) @ v.numpy()).max() > 0.01  # control
