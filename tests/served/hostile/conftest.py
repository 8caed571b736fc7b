"""Two servers under attack: an open one, and one behind tickets."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..client import Live
from ..conftest import Serve
from .bystander import Alone
from .case import SECRET, SERVER, Scene, ticket
from .pictures import MAX_PIXELS, MAX_UPLOAD

LIMITS = {
    "slots": 2,
    "session_limit_s": 0,
    "resume_s": 0,
    "pending_z0_s": 0,
    "lease_stale_s": 0,
    "stash_max": 6,
    "slow_client_s": 2,
    "stream_fps": 1,
    "max_pixels": MAX_PIXELS,
    "max_upload_bytes": MAX_UPLOAD,
    "log_level": "error",
}


@pytest.fixture(scope="module", autouse=True)
def own_scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Temporary files of this process go to a folder of their own."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path_factory.mktemp("scratch"))
    yield Path(tempfile.tempdir)
    tempfile.tempdir = before


@pytest.fixture(scope="module")
def scene(serve: Serve) -> Scene:
    """An open server with room for two."""
    return warm(serve(**LIMITS))


@pytest.fixture(scope="module")
def guarded(serve: Serve) -> Scene:
    """One that asks for tickets."""
    return warm(serve(**LIMITS, ticket_secret=SECRET, server_id=SERVER))


@pytest.fixture(scope="module")
def forgiving(serve: Serve) -> Scene:
    """One that holds broken games."""
    return warm(serve(**{**LIMITS, "resume_s": 30}))


def warm(live: Live) -> Scene:
    """After one upload, so that what a server starts once is there before anyone counts. Sends through small buffers,
    so that a client that doesn't read is noticed soon."""
    live._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    live.upload("first", ticket=ticket("first"))
    return Scene(live=live)


@pytest.fixture(scope="module")
def alone(scene: Scene) -> Alone:
    return Alone(scene.live)
