"""Servers under attack: an open one, one behind tickets, one that makes pictures and videos for its key."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from worldloop.host import WorldHost
from worldloop.models import flow
from worldloop.picture_host import PictureHost
from worldloop.testing import tiny_picture, tiny_video
from worldloop.video_host import VideoHost

from ..client import Live
from ..conftest import Serve
from .bystander import Alone
from .case import SECRET, SERVER, Scene, ticket
from .hours import HOUR_S, HourHand
from .pictures import MAX_PIXELS, MAX_UPLOAD
from .studio import KEY, QUEUE, STEPS_MAX, drawn, finished

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


@pytest.fixture(scope="module")
def studio(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One that makes pictures and videos beside games, for those who have its key."""
    folder = tmp_path_factory.mktemp("studio")
    picture, video = tiny_picture(folder), tiny_video(folder)
    with (
        patch.object(flow, "MAX_STEPS", STEPS_MAX),
        closing(WorldHost.open(str(tiny_folder), threads=1, warmup=False)) as host,
    ):
        device = host.model.device
        live = Live(
            host,
            VideoHost(host.engine, video, device=device),
            PictureHost.load(host.engine, picture, device=device, steps_max=STEPS_MAX),
            HourHand(),
            **{
                **LIMITS,
                "seed": 7,
                "api_key": KEY,
                "picture_queue": QUEUE,
                "video_queue": QUEUE,
                "video_seconds_max": 3600,
                "picture_keep_s": HOUR_S / 2,
                "video_keep_s": HOUR_S / 2,
            },
        )
        with closing(live):
            scene = warm(live)
            drawn(live)
            finished(live)
            yield scene


def warm(live: Live) -> Scene:
    """After one upload, so that what a server starts once is there before anyone counts. Sends through small buffers,
    so that a client that doesn't read is noticed soon."""
    live._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    live.upload("first", ticket=ticket("first"))
    return Scene(live=live)


@pytest.fixture(scope="module")
def alone(scene: Scene) -> Alone:
    return Alone(scene.live)
