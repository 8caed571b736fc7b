"""The four gates. Each takes an entry and says whether it is green, and the number that decided.

accuracy  every number is within the entry's bound of the float64 reference
repeat    the same inputs give the same bytes again, while memory that is handed out is full of NaN
rows      a row's bytes are the same alone, in its batch, and in another place of the batch
narrow    the bound tells the piece from one whose sums are kept in fewer bits
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .arithmetic import EXACT, HALF, SINGLE, Narrow
from .registry import Case, Entry, Truth, exact

POISONED = 6
"""Blocks of each size that are filled and freed before a piece runs again."""


@dataclass(frozen=True)
class Verdict:
    """What a gate says: `green`, and why in one line."""

    green: bool
    why: str


def accuracy(entry: Entry, device: torch.device) -> Verdict:
    """Whether every case is within its bound."""
    worst, where = 0.0, "every case"
    for case in entry.cases():
        found = run(entry, case, device)
        share = excess(found, entry.reference(EXACT, case), entry)
        if not share <= worst:
            worst, where = share, case.name
        if not share <= 1:
            break
    return Verdict(worst <= 1, f"{worst:.3g} of the bound, {where}")


def repeat(entry: Entry, device: torch.device) -> Verdict:
    """Whether every case gives its bytes again in poisoned memory, and no NaN, which memory may hold before, too."""
    for case in entry.cases():
        sizes = {run(entry, case, device).nbytes, *(each.nbytes for each in case.inputs)}
        leave(sizes, 0, place(entry, device))
        first = run(entry, case, device)
        with poisoned(sizes, place(entry, device)):
            again = run(entry, case, device)
        if not same(again, first) or again.isnan().any():
            return Verdict(False, f"other bytes in poisoned memory, {case.name}")
    return Verdict(True, "the same bytes")


def rows(entry: Entry, device: torch.device) -> Verdict:
    """Whether first, middle and last row of every case are the same alone and in other places."""
    for case in entry.cases():
        batch = run(entry, case, device)
        count = len(batch)
        truth = entry.reference(EXACT, case)
        equal = compare(entry, truth)
        turned = run(entry, change(entry, case, lambda x: x.roll(1, 0)), device).roll(-1, 0)
        if not equal(turned, batch, slice(None)):
            return Verdict(False, f"other numbers in another place, {case.name}")
        for row in sorted({0, count // 2, count - 1}):
            one = slice(row, row + 1)
            alone = run(entry, change(entry, case, lambda x, one=one: x[one].contiguous()), device)
            if not equal(alone, batch[one], one):
                return Verdict(False, f"row {row} alone is another than in its batch of {count}, {case.name}")
    return Verdict(True, f"the same to the {'byte' if entry.alone == 'bytes' else 'bound'}")


def narrow(entry: Entry, device: torch.device) -> Verdict:
    """Whether a piece of fewer bits would break the bound in at least one case."""
    fewer = Narrow(entry.fewer or (SINGLE if entry.inner == torch.float64 else HALF))
    best, where = 0.0, ""
    for case in reversed(entry.cases()):
        dtype = run(entry, case, device).dtype
        truth = entry.reference(EXACT, case)
        coarse = entry.reference(fewer, case)
        error = np.abs((np.rint(coarse.value) if coarse.whole else coarse.value) - truth.value)
        share = float(ratio(error, entry.bound(truth, dtype)).max())
        if share > best:
            best, where = share, case.name
        if share > 1:
            break
    return Verdict(best > 1, f"{fewer.bits} bits are {best:.3g} of the bound, {where}")


GATES: dict[str, Callable[[Entry, torch.device], Verdict]] = {
    "accuracy": accuracy, "repeat": repeat, "rows": rows, "narrow": narrow,
}  # fmt: skip


def place(entry: Entry, device: torch.device) -> torch.device:
    """Where an entry runs."""
    return torch.device("cpu") if entry.host else device


def run(entry: Entry, case: Case, device: torch.device) -> Tensor:
    """The piece's result, on the CPU."""
    where = place(entry, device)
    with torch.inference_mode():
        return entry.run(*(each.to(where) for each in case.inputs), **case.options).cpu()


def excess(found: Tensor, truth: Truth, entry: Entry) -> float:
    """Largest error as a share of its bound; NaN and a wrong shape are infinitely wrong."""
    if found.shape != truth.value.shape:
        return float("inf")
    share = ratio(np.abs(exact(found) - truth.value), entry.bound(truth, found.dtype))
    return float(share.max()) if share.size and not np.isnan(share).any() else float("inf")


def ratio(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Error over bound; nothing over nothing is nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / bound)


def compare(entry: Entry, truth: Truth) -> Callable[[Tensor, Tensor, slice], bool]:
    """How two results of an entry's rows are held equal."""

    def close(found: Tensor, expected: Tensor, part: slice) -> bool:
        bound = np.broadcast_to(entry.bound(truth, found.dtype), truth.value.shape)[part]
        return found.shape == expected.shape and bool(
            (np.abs(exact(found) - exact(expected)) <= 2 * bound).all()
        )

    return close if entry.alone == "bound" else lambda found, expected, part: same(found, expected)


def change(entry: Entry, case: Case, how: Callable[[Tensor], Tensor]) -> Case:
    """The case with something done to every input that has rows."""
    pairs = zip(case.inputs, entry.rows, strict=True)
    inputs = tuple(how(each) if has_rows else each for each, has_rows in pairs)
    return Case(name=case.name, inputs=inputs, options=case.options)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def leave(sizes: set[int], byte: int, device: torch.device) -> None:
    """Free memory that holds this byte, for the next who allocate."""
    blocks = [
        torch.full((max(size, 1),), byte, dtype=torch.uint8, device=device)
        for size in sizes
        for _ in range(POISONED)
    ]
    blocks.clear()


@contextmanager
def poisoned(sizes: set[int], device: torch.device) -> Iterator[None]:
    """What is allocated inside begins as NaN.

    A card's allocator hands out again what was filled and freed. The CPU's may take fresh pages instead: there torch is
    told to fill what it leaves unwritten.
    """
    leave(sizes, 0xFF, device)
    torch.use_deterministic_algorithms(device.type == "cpu")  # which fills, see torch.utils.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
