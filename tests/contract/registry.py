"""What an entry of the contract is, and the list of them.

An entry's result has its rows on the first axis: a row is a token, a cell, a frame or a timestep, whatever the piece
must treat alike wherever it stands. Units: u(dtype) is half the distance from 1 to the next number of a format.

    |found - truth| <= slack + outer_roundings u(result's dtype) outer + inner_roundings u(inner dtype) inner

`outer` and `inner` are sums of absolute terms: of what is rounded to the result's format, and of what is computed
inside. Both counts of roundings are stated by the entry with their reason; they belong to the formula, not to what a
machine happened to give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .arithmetic import Arithmetic, Array

TINY = 2.0**-140
"""What a result may be off when it is a number of fewer digits (a subnormal)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Inputs of one call.

    Attributes:
        name: what is particular about it.
        inputs: tensors on the CPU.
        options: arguments that are no tensors.
    """

    name: str
    inputs: tuple[Tensor, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What a reference says.

    Attributes:
        value: float64.
        inner: sum of absolute terms of what is computed in the inner format; broadcasts with `value`.
        outer: the same of what is rounded to the result's format; None is |value|.
        slack: what the piece may be off by definition.
        whole: whether the piece gives the nearest whole number of `value`, and so may be off by a half.
    """

    value: Array
    inner: Array | float = 0.0
    outer: Array | float | None = None
    slack: float = 0.0
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One numerical piece.

    Attributes:
        name: of the piece, `family/piece`.
        run: the piece itself: inputs and options to a tensor with the rows on the first axis.
        truth: the reference, written from the formula: arithmetic, inputs in float64 (whole numbers as they are),
            options.
        cases: served shapes and edges.
        rows: which inputs have the rows on their first axis, too.
        inner: format of what is computed inside.
        inner_roundings, outer_roundings: of the bound.
        why: where the counts come from.
        alone: `bytes` when a row's bytes are the same alone, in a batch and in another place; `bound` when a library's
            matrix product stands between, which promises that for no processor: then twice the bound.
        host: whether it runs on the CPU only.
        fewer: bits that a sum kept too narrow would have; None is half precision under float32, single under float64.
    """

    name: str
    run: Callable[..., Tensor]
    truth: Callable[..., Truth]
    cases: Callable[[], list[Case]]
    rows: tuple[bool, ...]
    why: str
    inner: torch.dtype = torch.float32
    inner_roundings: float = 0.0
    outer_roundings: float = 1.0
    alone: Literal["bytes", "bound"] = "bytes"
    host: bool = False
    fewer: int | None = None

    def reference(self, arithmetic: Arithmetic, case: Case) -> Truth:
        """The reference's answer to a case."""
        return self.truth(arithmetic, *(exact(each) for each in case.inputs), **case.options)

    def bound(self, truth: Truth, dtype: torch.dtype) -> Array:
        """The largest error of a result of this format."""
        outer = np.abs(truth.value) if truth.outer is None else truth.outer
        # A thousandth for products of roundings, which the counts leave out.
        rounded = (
            self.outer_roundings * unit(dtype) * outer + self.inner_roundings * unit(self.inner) * truth.inner
        )
        return np.asarray(truth.slack + truth.whole / 2 + 1.001 * rounded + (TINY if unit(dtype) else 0.0))


def unit(dtype: torch.dtype) -> float:
    """u of a format; 0 of whole numbers."""
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0


def exact(tensor: Tensor) -> Array:
    """A tensor as float64, or as whole numbers when it holds such."""
    plain = tensor.double() if tensor.dtype.is_floating_point else tensor
    return np.asarray(plain.cpu().numpy())


def load(network: nn.Module, weights: Sequence[Tensor]) -> nn.Module:
    """The network with these weights, in the order of its own names, on their device and in their format."""
    network.to(weights[0].device, weights[0].dtype)
    network.load_state_dict(dict(zip(network.state_dict(), weights, strict=True)))
    return network


def normals(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random inputs."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def uniforms(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random inputs of one sign, in [0.5, 1.5): a sum of them grows with every term."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.5).to(dtype)
