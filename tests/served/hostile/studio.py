"""Requests to the `/v1` routes of a server of worlds, pictures and videos on one device.

Owns their bytes, orders that leave nothing behind, and waiting for what the server does in its own time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from ..client import Live
from .case import Scene, said
from .raw import BOUNDARY, Part, form_type, multipart, request

KEY = "a-key-of-16-chars"
IMAGES, VIDEOS, MODELS = "/v1/images/generations", "/v1/videos", "/v1/models"
PICTURE: dict[str, Any] = {"prompt": "a lake", "seed": 1, "num_inference_steps": 1}
VIDEO: dict[str, Any] = {"prompt": "a lake", "seed": 1, "seconds": 1}
LONG = {**VIDEO, "seconds": 3600}
"""Longer than any test: made until somebody ends it."""

QUEUE = 4
"""Pictures, and videos, that may wait."""

STEPS_MAX = 2000
"""Of a picture: ten of them take longer than any test looks at them."""

ENDED = 60.0
"""Seconds that the server may take until it has noticed; it takes milliseconds on an idle machine."""


def bearer(key: str = KEY) -> tuple[str, str]:
    return ("Authorization", f"Bearer {key}")


JSON = ("Content-Type", "application/json")


def post(path: str, body: Any, *headers: tuple[str, str], kind: tuple[str, str] = JSON, **more: Any) -> bytes:
    """A POST whose body is bytes as they are, or anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request("POST", path, [kind, bearer(), *headers], data, **more)


def form(path: str, parts: list[Part], *headers: tuple[str, str]) -> bytes:
    """A POST of form parts."""
    return post(path, multipart(parts), *headers, kind=form_type(BOUNDARY))


@contextmanager
def http(live: Live) -> Iterator[httpx.Client]:
    """A client that has the key."""
    with live.http() as client:
        client.headers["Authorization"] = bearer()[1]
        yield client


def drawn(live: Live, **fields: Any) -> dict[str, Any]:
    """Order one picture; what the answer says of it."""
    with http(live) as client:
        answer = client.post(IMAGES, json={**PICTURE, **fields})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()["data"][0]
    return made


@contextmanager
def filmed(live: Live, **fields: Any) -> Iterator[str]:
    """Order a video; its id. Deleted at the end."""
    with http(live) as client:
        answer = client.post(VIDEOS, json={**VIDEO, **fields})
        assert answer.status_code == 200, answer.text
        name = str(answer.json()["id"])
        try:
            yield name
        finally:
            client.delete(f"{VIDEOS}/{name}")


def finished(live: Live) -> str:
    """A video that is complete, and forgotten within the hour."""
    with http(live) as client:
        for video in client.get(VIDEOS).json()["data"]:
            if video["status"] == "completed":
                return str(video["id"])
        name = str(client.post(VIDEOS, json=VIDEO).json()["id"])
        until(lambda: client.get(f"{VIDEOS}/{name}").json()["status"] == "completed", "complete")
    return name


def cleared(live: Live) -> None:
    """Delete every video."""
    with http(live) as client:
        while page := client.get(VIDEOS).json()["data"]:
            for video in page:
                client.delete(f"{VIDEOS}/{video['id']}")


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it, however slow the machine is."""
    limit = time.monotonic() + ENDED
    while not true():
        assert time.monotonic() < limit, f"never {what}"
        time.sleep(0.005)


def at_work(live: Live) -> tuple[int, int, int, int]:
    """Pictures and videos in the making or waiting: (requests in the picture line, in the video line, waiting each)."""
    return (
        len(live.pictures._line.jobs),
        len(live.videos._line.jobs),
        live.pictures.waiting,
        live.videos.waiting,
    )


def idle(scene: Scene) -> str:
    """`idle` once nothing is made and nothing waits."""
    until(lambda: at_work(scene.live) == (0, 0, 0, 0), "idle")
    return "idle"


def health(scene: Scene) -> str:
    """`200` and the state: the server answers, and a picture can be made."""
    with http(scene.live) as client:
        answer = client.post(IMAGES, json=PICTURE)
    return said(answer)[:40]
