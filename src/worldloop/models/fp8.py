"""Trunk matrices multiplied in fp8: e4m3 operands, float32 scales, bfloat16 results.

Shapes: M rows (tokens), K input features, N output features.

    scale = largest magnitude / 448
    y[m, n] = scale_x[m] scale_w[n] sum_k e4m3(x / scale_x)[m, k] e4m3(w / scale_w)[n, k]

Mode `row` has one scale a token and one an output channel, `tensor` one scale for each whole operand. The bfloat16
weights stay the truth: they are what is saved and loaded, and `requantise` makes the fp8 copy from them again.
Owns the swap of layers. Does not own who may use it: `precision` refuses devices without the kernel, so the CPU form,
which is exact and slow, is for tests. Format: Micikevicius et al. 2022 (arXiv:2209.05433).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from worldloop.core.errors import InvalidInputError
from worldloop.models.device import synchronize
from worldloop.models.summaryformer import Block, Summaryformer

Mode = Literal["row", "tensor"]
E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""Largest number of e4m3."""
LEAST_MAGNITUDE = 1e-12
"""A row of zeros is scaled as if this were its largest magnitude."""
STEP = 16
"""The kernels take matrices whose sides are multiples of this."""


def to_e4m3(x: Tensor) -> Tensor:
    """Round to the nearest e4m3 number, ties to even; what is out of range becomes the largest."""
    # The cast alone saturates or makes a NaN, depending on the version of torch.
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def quantise(x_MK: Tensor, mode: Mode) -> tuple[Tensor, Tensor]:
    """(values, scale) with x = values * scale: e4m3 `[M, K]`, and float32 `[M, 1]` (`row`) or `[1, 1]` (`tensor`)."""
    magnitude = x_MK.abs()
    largest = magnitude.amax(dim=1, keepdim=True) if mode == "row" else magnitude.amax().view(1, 1)
    scale = largest.float().clamp_min(LEAST_MAGNITUDE) / LARGEST
    return to_e4m3(x_MK / scale), scale


def kernel(x_MK: Tensor, w_NK: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    """`scaled_matmul` by torch's own kernel."""
    y: Tensor = torch._scaled_mm(x_MK, w_NK.t(), scale_a=scale_x, scale_b=scale_w, out_dtype=torch.bfloat16)
    return y


def scaled_matmul(x_MK: Tensor, w_NK: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    """Scaled product of e4m3 operands, bfloat16 `[M, N]`; scales `[M, 1]` and `[1, N]`, or `[1, 1]` twice."""
    if x_MK.is_cuda:
        return kernel(x_MK, w_NK, scale_x, scale_w)
    # Sums of products of e4m3 numbers are exact in float64 up to K = 2^17, so no order of summation shows.
    return (x_MK.double() @ w_NK.double().t() * scale_x * scale_w).bfloat16()


class Fp8Linear(nn.Module):
    """A linear layer that multiplies in fp8. Takes bfloat16 `[..., K]`, gives bfloat16 `[..., N]`.

    `weight` and `bias` are the parameters of the layer it replaces, so names and in-place loads stay as they were;
    after a load, `requantise`. The fp8 copy stays at its address, as recorded graphs need, until the layer is moved.

    Args:
        linear: the layer to replace, an `Fp8Linear` of another mode included.
        mode: `row` or `tensor`.

    Raises:
        InvalidInputError: a side is not a multiple of 16.
    """

    def __init__(self, linear: nn.Linear | Fp8Linear, mode: Mode) -> None:
        super().__init__()
        self.in_features: int = linear.in_features
        self.out_features: int = linear.out_features
        if self.in_features % STEP or self.out_features % STEP:
            raise InvalidInputError(
                f"a matrix of {self.in_features} x {self.out_features} does not fit fp8: both sides must be "
                f"multiples of {STEP}"
            )
        self.mode = mode
        self.weight: Tensor = linear.weight
        self.bias: Tensor | None = linear.bias
        self.register_buffer("weight_e4m3", None, persistent=False)
        self.register_buffer("weight_scale", None, persistent=False)
        self.weight_e4m3: Tensor
        self.weight_scale: Tensor
        self._allocate()

    def requantise(self) -> None:
        """Make the fp8 copy from the weight, in place."""
        values, scale = self._quantised()
        self.weight_e4m3.copy_(values)
        self.weight_scale.copy_(scale)

    def forward(self, x: Tensor) -> Tensor:
        values, scale = quantise(x.reshape(-1, self.in_features), self.mode)
        y = scaled_matmul(values, self.weight_e4m3, scale, self.weight_scale)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, mode={self.mode}"

    def _quantised(self) -> tuple[Tensor, Tensor]:
        values, scale = quantise(self.weight.detach(), self.mode)
        return values, scale.t()

    def _allocate(self) -> None:
        values, scale = self._quantised()
        self.weight_e4m3, self.weight_scale = values, scale.contiguous()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Fp8Linear:
        """A move or a cast of the layer would cast the fp8 copy too: it is made anew."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._allocate()
        return self


def apply(network: Summaryformer, mode: Mode) -> int:
    """Multiply the matrices that every pass of the trunk reads in fp8; returns their number. Twice is as once.

    Raises:
        InvalidInputError: a matrix does not fit, or this torch lacks the kernel; the network is as it was.
    """
    places = _places(network)
    fresh = [
        layer if isinstance(layer, Fp8Linear) and layer.mode == mode else Fp8Linear(layer, mode)
        for layer in (getattr(parent, name) for parent, name in places)
    ]
    _probe(fresh[0])
    for (parent, name), layer in zip(places, fresh, strict=True):
        setattr(parent, name, layer)
    return len(fresh)


def requantise(network: nn.Module) -> int:
    """Make every fp8 copy from its weight again, in place, as after a load; returns their number."""
    layers = [layer for layer in network.modules() if isinstance(layer, Fp8Linear)]
    for layer in layers:
        layer.requantise()
    return len(layers)


def _places(network: Summaryformer) -> list[tuple[nn.Module, str]]:
    """(parent, name) of each block's two attention and two feed-forward matrices."""
    places: list[tuple[nn.Module, str]] = []
    for block in network.blocks:
        assert isinstance(block, Block)
        attention, feed_forward = block.visual_self_attention, block.visual_feed_forward
        places += [
            (attention, "visual_qkv"),
            (attention, "visual_out"),
            (feed_forward, "proj"),
            (feed_forward, "out"),
        ]
    return places


def _probe(layer: Fp8Linear) -> None:
    """Run the kernel once, so that a missing one is found at start and not in the first game."""
    weight = layer.weight
    try:
        with torch.inference_mode():
            layer(weight.new_ones(STEP, layer.in_features, dtype=torch.bfloat16))
            synchronize(weight.device)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(
            f"fp8_linears={layer.mode} does not run on {weight.device} with torch {torch.__version__}: {reason}; "
            f"use {'fp8_linears=tensor or ' if layer.mode == 'row' else ''}fp8_linears=off"
        ) from error
