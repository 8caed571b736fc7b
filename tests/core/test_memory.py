"""Memory that holds nothing goes back to the system."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from worldloop.core.memory import give_memory_back, lasting


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can")
def test_freed_memory_goes_back_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    # Small blocks, every other one kept: the C library can't shrink its heap by itself.
    kept = [bytes(40_000) for _ in range(4000)]
    full = resident()
    del kept[:-1]
    give_memory_back()

    assert resident() < full - 100 * 2**20


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.self = self


def test_what_comes_later_is_collected_soon_and_what_was_there_is_let_alone() -> None:
    old, before = Knot(), gc.get_threshold()
    kept = weakref.ref(old)
    with lasting():
        frozen = gc.get_freeze_count()
        del old
        gone = weakref.ref(Knot())
        made = 0
        while gone() is not None:
            made += 1
            assert made < 100_000, "no full collection came"
            _ = [Knot() for _ in range(10)]
        assert kept() is not None
    assert frozen > 1000
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert kept() is None


HEAPS = """
import ctypes, sys, threading
from worldloop.core.memory import share_one_heap

if sys.argv[1] == "one":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(4)

def allocate():
    together.wait()
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can")
@pytest.mark.parametrize(("how", "one"), [("one", True), ("each", False)])
def test_threads_share_one_heap_once_they_are_told(how: str, one: bool) -> None:
    told = subprocess.run(
        [sys.executable, "-c", HEAPS, how], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert (told.count("<heap nr=") == 1) is one
    assert "<heap nr=" in told
