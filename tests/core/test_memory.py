"""Memory that holds nothing goes back to the system."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from worldloop.core.memory import give_memory_back


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
