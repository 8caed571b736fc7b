"""Orders by the dozen, and clients that leave, stop reading or go silent at every point of one."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import httpx

from worldloop.server import http_transport
from worldloop.server.http_transport import HttpTransport

from .case import Case, Scene
from .raw import request, shown
from .sockets import abort, many
from .studio import (
    ENDED,
    IMAGES,
    LONG,
    PICTURE,
    QUEUE,
    STEPS_MAX,
    VIDEO,
    VIDEOS,
    at_work,
    bearer,
    cleared,
    filmed,
    form,
    health,
    http,
    idle,
    post,
    until,
)

SLOW = {"prompt": "a lake", "n": 10, "num_inference_steps": STEPS_MAX, "size": "96x64"}
"""A picture order that is not done before the client has left."""
MP4 = ("Accept", "video/mp4")
EVENTS = {**SLOW, "stream": True, "partial_images": 8}
FLOOD = 24


def starting(data: bytes, count: int = 1) -> Callable[[Scene], str]:
    """Send this, wait until it is made, reset; the server has nothing left of it, and works."""

    def run(scene: Scene) -> str:
        for _ in range(count):
            with many(scene, 1, data):
                until(lambda: sum(at_work(scene.live)[:2]) > 0, "begun")
            idle(scene)
        return health(scene)

    return run


def reading(data: bytes, mark: bytes, leave: Callable[[socket.socket], None]) -> Callable[[Scene], str]:
    """Send this, read until the mark, then leave in this way."""

    def run(scene: Scene) -> str:
        with many(scene, 1, data) as (connection,):
            seen = b""
            while mark not in seen:
                piece = connection.recv(65536)
                assert piece, f"closed after {seen[-200:]!r}"
                seen = (seen + piece)[-100_000:]
            leave(connection)
            idle(scene)
        return health(scene)

    return run


def end_one_half(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


def waiting(data: bytes, place: int) -> Callable[[Scene], str]:
    """Wait behind another's order and leave: the other is made all the same."""

    def run(scene: Scene) -> str:
        with many(scene, 1, post(IMAGES, SLOW)) as (first,), filmed(scene.live, **LONG):
            until(lambda: at_work(scene.live)[:2] == (1, 1), "begun")
            with many(scene, 1, data):
                until(lambda: at_work(scene.live)[place] == 2, "waiting")
            until(lambda: at_work(scene.live)[place] == 1, "given up")
            still = at_work(scene.live)
            abort(first)
        idle(scene)
        return f"{still[:2]} {health(scene)}"

    return run


def giving_up(count: int, *data: bytes) -> Callable[[Scene], str]:
    """Connect, send, reset, again and again."""

    def run(scene: Scene) -> str:
        for _ in range(count):
            with many(scene, 1, *data):
                pass
        # What was whole when the reset came is made, if its maker is not gone with it.
        cleared(scene.live)
        idle(scene)
        return health(scene)

    return run


def flooding(data: bytes, place: int, refusal: str) -> Callable[[Scene], str]:
    """More orders than may wait: one is made, `QUEUE` wait, the others are told when to come back."""

    def run(scene: Scene) -> str:
        with many(scene, 1, data) as held:
            until(lambda: at_work(scene.live)[place] == 1, "begun")
            with ExitStack() as stack:
                for waiters in range(1, QUEUE + 1):
                    held += stack.enter_context(many(scene, 1, data))
                    until(lambda n=waiters: at_work(scene.live)[place] == n + 1, "waiting")  # type: ignore[misc]
                refused = [
                    refused_by(connection)
                    for connection in stack.enter_context(many(scene, FLOOD, data))
                ]  # fmt: skip
                at = at_work(scene.live)[place]
        cleared(scene.live)
        idle(scene)
        return f"{at} {set(refused) == {refusal}} {refused[0]} {health(scene)}"

    return run


def refused_by(connection: socket.socket) -> str:
    """Status, code, and whether the answer says when to come back."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    status, _, text = shown(data).partition(" ")
    later = any(line.lower().startswith(b"retry-after: ") for line in data.split(b"\r\n"))
    return f"{status} {json.loads(text)['error']['code']} {later}"


def flooding_videos(scene: Scene) -> str:
    """Video orders belong to nobody: they stay when their clients leave, and all the others are refused."""
    with http(scene.live) as client:
        accepted = [client.post(VIDEOS, json=LONG).status_code for _ in range(QUEUE + 1)]
        refused = [client.post(VIDEOS, json=VIDEO) for _ in range(FLOOD)]
        remixed = client.post(
            f"{VIDEOS}/{client.get(VIDEOS).json()['data'][0]['id']}/remix", json={"prompt": "x"}
        )
    codes = {(each.status_code, "retry-after" in each.headers) for each in [*refused, remixed]}
    at = at_work(scene.live)[1]
    cleared(scene.live)
    idle(scene)
    return f"{set(accepted)} {codes} {at} {health(scene)}"


def at_once(scene: Scene) -> str:
    """Pictures are ordered by thirty clients at once: each is made, or refused because too many wait."""
    with ThreadPoolExecutor(30) as pool:

        def one(seed: int) -> int:
            with http(scene.live) as client:
                return client.post(IMAGES, json={**PICTURE, "seed": seed}).status_code

        codes = list(pool.map(one, range(30)))
    idle(scene)
    return f"{set(codes) <= {200, 429}} {200 in codes}"


def deletions(scene: Scene) -> str:
    """Videos are made, read, listed and deleted by six clients at once, each by all."""
    wrong: list[str] = []

    def one(number: int) -> None:
        with http(scene.live) as client:
            for turn in range(3):
                made = client.post(VIDEOS, json={**VIDEO, "seconds": 1 + number % 2})
                found = client.get(VIDEOS).json()["data"]
                for video in found[:3]:
                    path = f"{VIDEOS}/{video['id']}"
                    with contextlib.suppress(httpx.RemoteProtocolError):  # deleted while it was read
                        content = (
                            client.get(f"{path}/content") if turn % 2 else client.head(f"{path}/content")
                        )
                        check(content, 200, 404)
                    check(client.post(f"{path}/remix", json={"prompt": "x"}), 200, 404, 503)
                    check(client.delete(path), 200, 404)
                check(made, 200, 503)

    def check(got: httpx.Response, *right: int) -> None:
        if got.status_code not in right:
            wrong.append(f"{got.request.method} {got.request.url.path}: {got.status_code} {got.text[:80]}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(6)))
    cleared(scene.live)
    idle(scene)
    return f"{wrong[:3]} {health(scene)}"


def deleted_while_read(scene: Scene) -> str:
    """A video is deleted while it is read: the reader's connection breaks off."""
    with filmed(scene.live, **LONG) as name, many(scene, 1, content_of(name)) as (connection,):
        assert connection.recv(65536)
        with http(scene.live) as client:
            first, second = (client.delete(f"{VIDEOS}/{name}").status_code for _ in range(2))
        rest = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                rest = (rest + piece)[-9:]
    idle(scene)
    whole = rest.endswith(b"0\r\n\r\n")
    return f"{first} {second} {'whole' if whole else 'cut'}"


def content_of(name: str) -> bytes:
    return request("GET", f"{VIDEOS}/{name}/content", [bearer()])


def unread(data: bytes) -> Callable[[Scene], str]:
    """Send this and read nothing: the server ends the connection, and whatever is made for it alone."""

    def run(scene: Scene) -> str:
        with deaf(scene, data) as theirs:
            until(lambda: theirs not in connections(scene), "closed by the server")
        idle(scene)
        return health(scene)

    return run


@contextlib.contextmanager
def deaf(scene: Scene, data: bytes) -> Iterator[Any]:
    """Send this on a connection that can hold next to nothing unread; the server's end of it.

    The server looks often at who reads, but only meanwhile: all others may be as slow as this machine makes them.
    """
    parts = urlsplit(scene.url)
    others = connections(scene)
    with patch.object(http_transport, "UNREAD_S", 0.3), socket.socket() as connection:
        connection.settimeout(ENDED)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect((parts.hostname, parts.port))
        until(lambda: bool(connections(scene) - others), "accepted")
        (theirs,) = connections(scene) - others
        connection.sendall(data)
        yield theirs


def connections(scene: Scene) -> set[Any]:
    """HTTP connections of the server."""
    server: Any = scene.live._server
    return {each for each in tuple(server.server_state.connections) if isinstance(each, HttpTransport)}


def crowd_cases() -> list[Case]:
    """What comes and goes."""
    picture, video = post(IMAGES, SLOW), post(VIDEOS, LONG, MP4)
    events = post(IMAGES, EVENTS)
    quick, quick_events = post(IMAGES, PICTURE), post(IMAGES, {**EVENTS, "num_inference_steps": 1})
    half_form = form(VIDEOS, [("prompt", None, b"a lake"), ("input_reference", "a.png", bytes(90_000))])[
        :-50_000
    ]
    table: dict[str, tuple[Callable[[Scene], str], str]] = {
        "half a head and reset": (giving_up(20, picture[:60]), "200"),
        "half a body and reset": (giving_up(20, picture[:-9]), "200"),
        "half a video's body and reset": (giving_up(20, post(VIDEOS, VIDEO)[:-9]), "200"),
        "half a form and reset": (giving_up(10, half_form), "200"),
        "a picture and reset": (giving_up(20, quick), "200"),
        "events and reset": (giving_up(20, post(IMAGES, {**PICTURE, "stream": True})), "200"),
        "a video and reset": (giving_up(10, post(VIDEOS, VIDEO)), "200"),
        "a video to read and reset": (giving_up(10, post(VIDEOS, VIDEO, MP4)), "200"),
        "a picture in the making and reset": (starting(picture, 3), "200"),
        "events in the making and reset": (starting(events, 3), "200"),
        "a video in the making and reset": (starting(video, 3), "200"),
        "events left after the first": (reading(events, b"queued", abort), "200"),
        "events left after a step": (reading(events, b"generation.step", abort), "200"),
        "events left after a partial picture": (reading(events, b"partial_image", abort), "200"),
        "events left after a picture": (reading(quick_events, b"completed", abort), "200"),
        "events left without a word": (reading(events, b"generation.step", lambda c: c.close()), "200"),
        "events whose client only listens": (reading(events, b"generation.step", end_one_half), "200"),
        "a video left at its head": (reading(video, b"x-video-id", abort), "200"),
        "a video left in the middle": (reading(video, b"moof", abort), "200"),
        "a video left without a word": (reading(video, b"moof", lambda c: c.close()), "200"),
        "a video whose client only listens": (reading(video, b"moof", end_one_half), "200"),
        "a picture's place given up": (waiting(picture, 0), "(1, 1) 200"),
        "an event stream's place given up": (waiting(events, 0), "(1, 1) 200"),
        "a video's place given up": (waiting(video, 1), "(1, 1) 200"),
        "a flood of pictures": (flooding(picture, 0, "429 queue_full True"), "5 True 429 queue_full True 200"),
        "a flood of events": (flooding(events, 0, "429 queue_full True"), "5 True 429 queue_full True 200"),
        "a flood of videos to read": (flooding(video, 1, "503 queue_full True"), "5 True 503 queue_full True 200"),
        "a flood of videos": (flooding_videos, "{200} {(503, True)} 5 200"),
        "thirty pictures at once": (at_once, "True True"),
        "a storm of deletions": (deletions, "[] 200"),
        "a video deleted while it is read": (deleted_while_read, "200 404 cut"),
    }  # fmt: skip
    return [Case(name=name, expected=expected, run=run) for name, (run, expected) in table.items()]


def unread_cases() -> list[Case]:
    """Clients that stay and read nothing."""
    table: dict[str, Callable[[Scene], str]] = {
        "pictures": unread(post(IMAGES, {**PICTURE, "n": 10, "size": "96x64"})),
        "events": unread(post(IMAGES, {**EVENTS, "num_inference_steps": 8})),
        "events to come for long": unread(post(IMAGES, EVENTS)),
        "a video in the making": unread(post(VIDEOS, LONG, MP4)),
    }
    cases = [
        Case(name=f"nobody reads {name}", expected="200", run=run) for name, run in table.items()
    ]  # fmt: skip
    return [*cases, Case(name="a client that only watches a video", expected="in_progress", run=watching)]


def watching(scene: Scene) -> str:
    """It is let go, and the video is made to its end all the same."""
    with filmed(scene.live, **LONG) as name, http(scene.live) as client:
        with deaf(scene, content_of(name)) as theirs:
            until(lambda: theirs not in connections(scene), "closed by the server")
        return str(client.get(f"{VIDEOS}/{name}").json()["status"])
