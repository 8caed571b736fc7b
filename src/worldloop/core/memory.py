"""Main memory of a process that runs for long: what lasts, and what holds nothing any more."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_ARENA_MAX = -8
"""A name of glibc's <malloc.h>."""

FULL_COLLECTION_EVERY = 2
"""Collections of the middle generation for one of everything; 10 unless told."""


@contextmanager
def lasting() -> Iterator[None]:
    """All objects that there are last as long as the block; later ones are looked through for garbage.

    Models and modules are a quarter of a million objects. To look through them delays a frame by a tenth of a second,
    and because Python knows that, it does so rarely, and what games leave behind piles up to a quarter of their number.
    Without them a full collection takes milliseconds, so there may be more of them.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.collect()  # now the collector knows how little is left
    gc.set_threshold(*thresholds[:2], FULL_COLLECTION_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def give_memory_back() -> None:
    """Hand pages that hold nothing back, where the C library can (glibc): under 1 ms.

    It keeps them by itself, and a server's memory would grow by a tenth over its first hundreds of games.
    """
    _ask_glibc("malloc_trim", 0)


def share_one_heap() -> None:
    """Have all threads allocate from one heap, where the C library can (glibc); before there are threads.

    By itself each gets its own, up to eight for every core, and what is kept for long, here and there in between, holds
    more and more of them.
    """
    _ask_glibc("mallopt", M_ARENA_MAX, 1)


def _ask_glibc(name: str, *values: int) -> None:
    """Call a function of the C library that only glibc has; elsewhere nothing happens."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*values)
