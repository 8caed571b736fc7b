"""Real servers on real ports, one for each set of settings that a module asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from worldloop.host import WorldHost
from worldloop.testing import tiny_world

from .client import Live

Serve = Callable[..., Live]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """Two random checkpoints of one architecture: `tiny-3r` and `tiny-3nr`."""
    folder = tmp_path_factory.mktemp("worlds") / "tiny"
    tiny_world(folder)
    return tiny_world(folder, cache_mode="last_step_writes", seed=1, step=2)


@pytest.fixture(scope="module")
def serve(tiny_folder: Path) -> Iterator[Serve]:
    """`serve(world=None, **settings)`: a server of this module's own; stopped with its host at the module's end."""
    with ExitStack() as stack:

        def start(world: str | Path | None = None, **settings: Any) -> Live:
            host = WorldHost.open(str(world or tiny_folder), threads=1)
            stack.callback(host.close)
            return stack.enter_context(closing(Live(host, **{"stream_fps": 120, "seed": 7, **settings})))

        yield start
