"""Peak bytes of the tensors that a call makes, counted by their storages as operations return them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

A = TypeVar("A")


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {
            t.untyped_storage()._cdata for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(made)[0]:
            if isinstance(tensor, torch.Tensor):
                self._add(tensor, before)
        return made

    def _add(self, tensor: torch.Tensor, before: set[int]) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live or key in before:
            return
        self.live[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)


def peak_bytes(call: Callable[[], A]) -> tuple[A, int]:
    """(what the call gives, most bytes that were alive at once of what it made)."""
    with _Count() as count:
        result = call()
    return result, count.peak
