"""fp8: the format against its definition, one layer against float64, the swap of layers, and a whole network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from worldloop.models import fp8
from worldloop.models.fp8 import Fp8Linear, Mode
from worldloop.models.summaryformer import Summaryformer

from . import e4m3
from .driving import TINY, random_model

BOTH = pytest.mark.parametrize("mode", ["row", "tensor"])
BF16 = 2.0**-8
"""Largest relative error of one rounding to bfloat16."""
FLOAT32_SUM = 64 * 2.0**-24
"""Largest error of a float32 sum of 64 numbers, as a share of the sum of their magnitudes."""
TYPICAL = 0.045
"""Relative error of a product of normal numbers: e4m3 rounds each operand by 2.6 percent."""
Product = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def linear(features: int = 64, outputs: int = 48, seed: int = 1) -> nn.Linear:
    """Rows of weights that differ in size by up to a thousand."""
    layer = nn.Linear(features, outputs, bias=False).bfloat16().requires_grad_(False)
    layer.weight.copy_(normal(outputs, features, seed=seed) * torch.logspace(-2, 1, outputs)[:, None])
    return layer


def error(found: Tensor, expected: Tensor) -> float:
    """Relative, in the root mean square."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


# -- the format ---------------------------------------------------------------------------------------------------
def test_numbers_are_those_of_the_format() -> None:
    bits = torch.arange(0x7F, dtype=torch.uint8)

    assert np.array_equal(bits.view(fp8.E4M3).double().numpy(), e4m3.numbers())
    assert (e4m3.numbers().max(), e4m3.numbers()[1]) == (fp8.LARGEST, 2.0**-9)


def test_rounding_is_to_nearest_even_and_saturates() -> None:
    values = e4m3.sweep()

    found = fp8.to_e4m3(torch.from_numpy(values)).double().numpy()

    assert np.array_equal(found, e4m3.round_to(values.astype(np.float64)))
    assert np.array_equal(np.signbit(found), np.signbit(values))
    assert torch.isnan(fp8.to_e4m3(torch.tensor(float("nan"))).float())


def away_from_zero(x: np.ndarray) -> np.ndarray:
    """Ties go away from zero."""
    return np.where(np.abs(x) < 448, e4m3.round_to(x * (1 + 1e-9)), e4m3.round_to(x))


def cut(x: np.ndarray) -> np.ndarray:
    """What is below the nearest number stays below."""
    near = e4m3.round_to(x)
    return np.where(np.abs(near) > np.abs(x), e4m3.round_to(x * (1 - 2.0**-4)), near)


def flushed(x: np.ndarray) -> np.ndarray:
    """No numbers below the smallest normal one."""
    return np.where(np.abs(x) < 2.0**-6, 0.0, e4m3.round_to(x))


def ieee(x: np.ndarray) -> np.ndarray:
    """A largest number of 240, as with infinities."""
    return np.clip(e4m3.round_to(x), -240, 240)


def unbounded(x: np.ndarray) -> np.ndarray:
    """What is out of range is lost."""
    return np.where(np.abs(x) < 464, e4m3.round_to(x), np.nan)


@pytest.mark.parametrize("other", [away_from_zero, cut, flushed, ieee, unbounded])
def test_control_another_rounding_is_found(other: Callable[[np.ndarray], np.ndarray]) -> None:
    values = e4m3.sweep()

    found = fp8.to_e4m3(torch.from_numpy(values)).double().numpy()

    assert not np.array_equal(found, other(values.astype(np.float64)))


@BOTH
def test_values_and_scales_are_those_of_the_definition(mode: Mode) -> None:
    x = normal(7, 32) * torch.logspace(-3, 3, 7)[:, None].bfloat16()
    x[2] = 0

    values, scale = fp8.quantise(x, mode)

    magnitude = np.abs(x.float().numpy())
    largest = magnitude.max(axis=1, keepdims=True) if mode == "row" else magnitude.max().reshape(1, 1)
    expected = np.maximum(largest, np.float32(1e-12)) / np.float32(448)
    assert scale.dtype == torch.float32
    assert np.array_equal(scale.numpy(), expected)
    assert np.array_equal(
        values.double().numpy(), e4m3.round_to((x.float().numpy() / expected).astype(np.float64))
    )
    assert float(values.float().abs().max()) == 448
    assert not values[2].float().any()


# -- one layer ----------------------------------------------------------------------------------------------------
def reference(layer: nn.Linear, x: Tensor, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
    """(y, sum of magnitudes) in float64 from operands rounded by definition."""
    rounded = []
    for operand in (x, layer.weight):
        value = operand.float().numpy()
        largest = np.abs(value).max(axis=1 if mode == "row" else None, keepdims=True)
        scale = (largest / np.float32(448)).astype(np.float32)
        rounded.append(e4m3.round_to((value / scale).astype(np.float64)) * scale)
    return rounded[0] @ rounded[1].T, np.abs(rounded[0]) @ np.abs(rounded[1]).T


@BOTH
@pytest.mark.parametrize("product", [fp8.scaled_matmul, fp8.kernel])
@torch.inference_mode()
def test_a_layer_is_the_product_of_rounded_operands(
    mode: Mode, product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8, "scaled_matmul", product)
    plain, x = linear(), normal(9, 64)
    layer = Fp8Linear(plain, mode)

    try:
        found = layer(x)
    except RuntimeError as error:
        if product is fp8.kernel and "primitive descriptor" in str(error):
            pytest.skip("oneDNN has no fp8 product for this processor")
        raise

    expected, size = reference(plain, x, mode)
    bound = BF16 * np.abs(expected) + FLOAT32_SUM * size
    assert (found.dtype, tuple(found.shape)) == (torch.bfloat16, (9, 48))
    assert (np.abs(found.double().numpy() - expected) <= bound).all()
    layer.weight_scale.mul_(1.02)  # control
    assert not (np.abs(layer(x).double().numpy() - expected) <= bound).all()


@BOTH
@torch.inference_mode()
def test_error_against_the_layer_it_replaces(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, x = nn.Linear(256, 64, bias=False).bfloat16(), normal(33, 256)
    plain.weight.copy_(normal(64, 256, seed=1))
    exact = x.double() @ plain.weight.double().T

    assert error(Fp8Linear(plain, mode)(x), exact) < TYPICAL
    assert error(Fp8Linear(plain, mode)(x), exact) > 2 * error(plain(x), exact)
    # control: one mantissa bit less
    monkeypatch.setattr(fp8, "to_e4m3", lambda v: v.to(torch.float8_e5m2).float().to(fp8.E4M3))
    assert error(Fp8Linear(plain, mode)(x), exact) > TYPICAL


@torch.inference_mode()
def test_an_outlier_token_hurts_the_others_only_with_one_scale() -> None:
    plain, x = linear(), normal(9, 64)
    spoiled = x.clone()
    spoiled[4] *= 1e6
    others = [0, 1, 2, 3, 5, 6, 7, 8]

    row, tensor = Fp8Linear(plain, "row"), Fp8Linear(plain, "tensor")

    assert torch.equal(row(spoiled)[others], row(x)[others])
    assert error(tensor(x)[others], plain(x)[others]) < 2 * TYPICAL
    assert error(tensor(spoiled)[others], plain(x)[others]) > 0.3  # control


@torch.inference_mode()
def test_a_small_output_channel_keeps_its_digits_only_with_its_own_scale() -> None:
    plain, x = linear(), normal(9, 64)
    plain.weight[0] *= 1e-4
    exact = plain(x)[:, 0]

    assert error(Fp8Linear(plain, "row")(x)[:, 0], exact) < 2 * TYPICAL
    assert error(Fp8Linear(plain, "tensor")(x)[:, 0], exact) > 0.3  # control


@torch.inference_mode()
def test_a_row_alone_is_the_row_in_a_batch() -> None:
    x = normal(2, 9, 256)
    plain = linear(256)
    row, tensor = Fp8Linear(plain, "row"), Fp8Linear(plain, "tensor")

    def apart(layer: Fp8Linear) -> Tensor:
        return torch.stack([torch.cat([layer(token[None]) for token in record]) for record in x])

    assert torch.equal(apart(row), row(x))
    assert not torch.equal(apart(tensor), tensor(x))  # control


@BOTH
@torch.inference_mode()
def test_a_bias_is_added(mode: Mode) -> None:
    plain, x = nn.Linear(32, 16).bfloat16(), normal(3, 32)
    without = copy.deepcopy(plain)
    without.bias = None

    assert torch.equal(Fp8Linear(plain, mode)(x), Fp8Linear(without, mode)(x) + plain.bias)
    assert not torch.equal(Fp8Linear(plain, mode)(x), Fp8Linear(without, mode)(x))


@pytest.mark.parametrize(("features", "outputs"), [(40, 48), (48, 40)])
def test_odd_sides_are_refused(features: int, outputs: int) -> None:
    with pytest.raises(
        ValueError, match=f"{features} x {outputs} does not fit fp8: both sides must be multiples of 16"
    ):
        Fp8Linear(nn.Linear(features, outputs), "row")


# -- loads, casts and moves ---------------------------------------------------------------------------------------
@BOTH
@torch.inference_mode()
def test_a_load_in_place_needs_a_requantisation(mode: Mode) -> None:
    layer, other, x = Fp8Linear(linear(), mode), linear(seed=2), normal(9, 64)
    expected = Fp8Linear(linear(seed=2), mode)(x)
    before, addresses = layer(x), (layer.weight_e4m3.data_ptr(), layer.weight_scale.data_ptr())

    layer.load_state_dict(other.state_dict())

    assert torch.equal(layer(x), before)  # control: stale
    assert fp8.requantise(nn.Sequential(layer, nn.Linear(2, 2))) == 1
    assert torch.equal(layer(x), expected)
    assert not torch.equal(before, expected)
    assert (layer.weight_e4m3.data_ptr(), layer.weight_scale.data_ptr()) == addresses


@BOTH
def test_a_cast_and_back_keeps_the_fp8_copy(mode: Mode) -> None:
    layer, x = Fp8Linear(linear(), mode), normal(9, 64)
    before = layer(x)

    moved = copy.deepcopy(layer).double().bfloat16()

    assert (moved.weight_e4m3.dtype, moved.weight_scale.dtype) == (fp8.E4M3, torch.float32)
    assert torch.equal(moved(x), before)


# -- a network ----------------------------------------------------------------------------------------------------
def network(seed: int = 0) -> Summaryformer:
    return random_model(TINY, seed).to_serving(torch.bfloat16)


MATRICES = {
    f"blocks.{block}.{name}"
    for block in range(TINY.num_layers)
    for name in (
        "visual_self_attention.visual_qkv", "visual_self_attention.visual_out",
        "visual_feed_forward.proj", "visual_feed_forward.out",
    )
}  # fmt: skip


def swapped(model: Summaryformer) -> dict[str, Fp8Linear]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Fp8Linear)}


def test_exactly_the_matrices_of_each_pass_are_swapped_and_keys_stay() -> None:
    model = network()
    before = model.state_dict()

    assert fp8.apply(model, "row") == len(MATRICES)

    assert set(swapped(model)) == MATRICES
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(after[key].data_ptr() == before[key].data_ptr() for key in before)


def test_twice_is_as_once_and_the_mode_can_change() -> None:
    model = network()
    fp8.apply(model, "row")
    once = swapped(model)

    assert fp8.apply(model, "row") == len(MATRICES)
    assert swapped(model) == once
    assert fp8.apply(model, "tensor") == len(MATRICES)
    assert {layer.mode for layer in swapped(model).values()} == {"tensor"}


def test_a_matrix_that_does_not_fit_leaves_the_network_as_it_was() -> None:
    model = Summaryformer(replace(TINY, ffn_dim=200)).to_serving(torch.bfloat16)

    with pytest.raises(ValueError, match="a matrix of 200 x 128 does not fit fp8"):
        fp8.apply(model, "row")

    assert not swapped(model)


@pytest.mark.parametrize(
    ("mode", "advice"),
    [("row", "use fp8_linears=tensor or fp8_linears=off"), ("tensor", "use fp8_linears=off")],
)
def test_a_missing_kernel_is_found_before_the_first_pass(
    mode: Mode, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*operands: Tensor) -> Tensor:
        raise RuntimeError("no such kernel\nand much more")

    monkeypatch.setattr(fp8, "scaled_matmul", missing)
    model = network()

    with pytest.raises(
        ValueError, match=f"fp8_linears={mode} does not run on cpu .*: no such kernel; {advice}$"
    ):
        fp8.apply(model, mode)

    assert not swapped(model)


@torch.inference_mode()
def test_every_copy_is_made_again_after_a_load() -> None:
    model, other = network(), network(seed=1)
    fp8.apply(model, "row")
    stale = {name: layer.weight_scale.clone() for name, layer in swapped(model).items()}

    model.load_state_dict(other.state_dict())
    assert all(torch.equal(layer.weight_scale, stale[name]) for name, layer in swapped(model).items())

    assert fp8.requantise(model) == len(MATRICES)
    fp8.apply(other, "row")
    expected = swapped(other)
    for name, layer in swapped(model).items():
        assert torch.equal(layer.weight_scale, expected[name].weight_scale)
        assert torch.equal(layer.weight_e4m3.float(), expected[name].weight_e4m3.float())
        assert not torch.equal(layer.weight_scale, stale[name])


# -- on a card ----------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@BOTH
@torch.inference_mode()
def test_the_kernel_of_a_card_multiplies_the_same(mode: Mode) -> None:
    plain, x = linear(1280, 384), normal(1104, 1280)

    found = Fp8Linear(plain, mode).cuda()(x.cuda())

    expected, size = reference(plain.cpu(), x, mode)
    assert (
        np.abs(found.cpu().double().numpy() - expected) <= BF16 * np.abs(expected) + 2.0**-12 * size
    ).all()
