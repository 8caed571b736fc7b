"""What a rogue does to connections: aborts, storms, floods, silence, and tokens that are not theirs."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from worldloop.server import http_transport

from .case import Case, Scene, said
from .files import image, saved
from .footprint import resident_mb
from .messages import opened
from .raw import (
    CLOSE,
    CONTINUE,
    PING,
    TEXT,
    RawSocket,
    answer,
    dial,
    form_type,
    frame,
    multipart,
    request,
    upgrade,
)

USER = "rogue-plug"
PICTURE = saved(image(), "PNG")
UPLOAD = request("POST", f"/z0/{USER}", [form_type()], multipart([("z0_image", "a.png", PICTURE)]))
STATUS = request("GET", "/status")
BYE = frame(CLOSE, b"\x03\xe8")
WAIT_S = 60.0
BOUND_MB = 16
"""What a flood may take at most; unread, each of these takes more."""


def abort(connection: socket.socket) -> None:
    """Close with a reset, as a process that is killed does; nothing when it is closed."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def many(scene: Scene, count: int, *data: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have sent this; reset at the end."""
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            connection = dial(scene.url)
            stack.callback(abort, connection)
            for piece in data:
                connection.sendall(piece)
            held.append(connection)
        yield held


def status(scene: Scene) -> str:
    return said(scene.live.get("/status"))


def aborting(count: int, *data: bytes) -> Callable[[Scene], str]:
    """Connect, send, reset, again and again; then the server still answers."""

    def run(scene: Scene) -> str:
        for _ in range(count):
            with many(scene, 1, *data):
                pass
        return status(scene)

    return run


def holding(count: int, *data: bytes) -> Callable[[Scene], str]:
    """The server answers while all these wait."""

    def run(scene: Scene) -> str:
        with many(scene, count, *data):
            return status(scene)

    return run


def upload_first(scene: Scene, user: str = USER) -> None:
    """Once the place of the last rogue is free."""
    ready = wait_for(lambda: scene.live.upload(user, PICTURE).status_code == 200, "ready")
    assert ready == "ready", ready


def leaving(leave: Callable[[RawSocket], None], times: int) -> Callable[[Scene], str]:
    """Begin a game and leave it in this way, again and again: the place is free each time."""

    def run(scene: Scene) -> str:
        upload_first(scene)
        for _ in range(times):
            with opened(scene, USER) as rogue:
                leave(rogue)
        with opened(scene, USER) as rogue:
            rogue.send(BYE)
            return rogue.closing()

    return run


def half_open(scene: Scene) -> str:
    """End one direction only: the server ends the other."""
    upload_first(scene)
    with opened(scene, USER) as rogue:
        rogue.connection.shutdown(socket.SHUT_WR)
        return rogue.closing().split(" ")[0]


def crowd(scene: Scene) -> str:
    """Twenty sockets of one player at once: one game."""
    upload_first(scene)
    with many(scene, 20, upgrade(f"/ws/{USER}")) as held:
        rogues = [RawSocket(connection) for connection in held]
        first = [rogue.next() for rogue in rogues]
        games = sum(opcode == TEXT and b'"hello"' in payload for opcode, payload in first)
        busy = sum(opcode == CLOSE and payload[:2] == (1013).to_bytes(2, "big") for opcode, payload in first)
        return f"{games} game, {busy} refused"


def uploads_at_once(scene: Scene) -> str:
    wait_for(lambda: scene.live.arena._leases.live == 1, "a free place")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: scene.live.upload(USER, PICTURE).status_code, range(24)))
    return " ".join(sorted({str(code) for code in answers}))


def uploads_of_many(scene: Scene) -> str:
    """More players than start pictures are kept for: the oldest are forgotten."""
    wait_for(lambda: scene.live.arena._leases.live == 1, "a free place")
    limit = scene.live.settings.stash_max
    users = [scene.fresh() for _ in range(limit + 4)]
    for user in users:
        assert scene.live.upload(user, PICTURE).status_code == 200
    ready = [user for user in users if scene.live.get(f"/create-game/{user}").status_code == 200]
    return "newest" if ready == users[-limit:] else f"kept {ready}"


def deaf_to_its_refusal(scene: Scene) -> str:
    """Refused, and never says goodbye: the server ends the connection."""
    wait_for(lambda: scene.live.arena._leases.live == 1, "a free place")
    with dial(scene.url) as connection:
        connection.sendall(upgrade("/ws/nobody-at-all"))
        rogue = RawSocket(connection)
        refused = rogue.closing()
        opcode, _ = rogue.next()
        return f"{refused} then {opcode}"


def slow_reader(scene: Scene) -> str:
    """Play fast and read nothing: closed by the server, and no game is left of it."""
    upload_first(scene)
    with opened(scene, USER) as rogue:
        rogue.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        rogue.send(frame(TEXT, json.dumps({"stream_fps": 120}).encode()))
        return wait_for(lambda: device_sessions(scene) == 1, "ended")


def flood(piece: bytes, megabytes: float) -> Callable[[Scene], str]:
    """Send this again and again on an open game without reading: the server's memory stays as it is."""

    def run(scene: Scene) -> str:
        upload_first(scene)
        with opened(scene, USER) as rogue:
            before = resident_mb()
            batch = piece * (65536 // len(piece))
            rogue.connection.settimeout(1)
            with contextlib.suppress(OSError):
                for _ in range(int(megabytes * 16)):
                    rogue.connection.sendall(batch)
            grown = resident_mb() - before
        return "bounded" if grown < BOUND_MB else f"grown by {grown:.0f} MB of {megabytes}"

    return run


def device_sessions(scene: Scene) -> int:
    host: Any = scene.live.host
    return int(host.engine.sessions)


def wait_for(done: Callable[[], bool], word: str) -> str:
    until = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > until:
            return f"never {word}"
        threading.Event().wait(0.02)
    return word


def silent(patience_s: float, *data: bytes) -> Callable[[Scene], str]:
    """Send this and wait: the server closes by itself, as its patience with new connections is short meanwhile.

    Meanwhile only: on a busy machine the bystander may take longer to say what it wants.
    """

    def run(scene: Scene) -> str:
        patience = {"HEAD_S": patience_s, "BODY_S": patience_s}
        with patch.multiple(http_transport, **patience), dial(scene.url) as connection:
            for piece in data:
                connection.sendall(piece)
            return answer(connection)

    return run


def connection_cases() -> list[Case]:
    half_handshake = upgrade(f"/ws/{USER}")[:60]
    foreign = upgrade(f"/ws/{USER}", [("Origin", "https://evil.example")])
    half_frame = frame(TEXT, b"{}" * 50)[:20]
    fragments = frame(TEXT, b"", fin=False) + frame(CONTINUE, b"", fin=False) * 999
    table: dict[str, tuple[Callable[[Scene], str], str]] = {
        "connect and reset": (aborting(100), "200"),
        "half a request and reset": (aborting(50, STATUS[:20]), "200"),
        "a request and reset": (aborting(50, STATUS), "200"),
        "half an upload and reset": (aborting(30, UPLOAD[:-100]), "200"),
        "an upload and reset": (aborting(20, UPLOAD), "200"),
        "half a large upload and reset": (
            aborting(10, request("POST", f"/z0/{USER}", [form_type()], length="1900000"), bytes(1_800_000)),
            "200",
        ),
        "a page and reset": (aborting(30, request("GET", "/web/app.js")), "200"),
        "half a handshake and reset": (aborting(50, half_handshake), "200"),
        "a handshake and reset": (aborting(100, upgrade("/ws/nobody-at-all")), "200"),
        "a foreign handshake and reset": (aborting(30, foreign), "200"),
        "hundred idle connections": (holding(100), "200"),
        "hundred half requests": (holding(100, STATUS[:30]), "200"),
        "fifty half uploads": (holding(50, UPLOAD[:-100]), "200"),
        "fifty half handshakes": (holding(50, half_handshake), "200"),
        "fifty refused sockets that stay": (holding(50, upgrade("/ws/nobody-at-all")), "200"),
        "games left by reset": (leaving(lambda rogue: abort(rogue.connection), 10), "close 1000"),
        "games left without a word": (leaving(lambda rogue: rogue.connection.close(), 5), "close 1000"),
        "games left by half a frame": (leaving(lambda rogue: rogue.send(half_frame), 3), "close 1000"),
        "games left after a message": (leaving(lambda rogue: rogue.send(frame(TEXT, b"{}"), BYE), 5), "close 1000"),
        "a game whose player only listens": (half_open, "lost | close"),
        "twenty sockets of one player": (crowd, "1 game, 19 refused"),
        "uploads at once": (uploads_at_once, "200"),
        "uploads of many players": (uploads_of_many, "newest"),
        "a refused socket that stays": (deaf_to_its_refusal, "close 1008 ... then -1"),
        "a reader that reads nothing": (slow_reader, "ended"),
        "a flood of pings": (flood(frame(PING, b"p" * 125), 24), "bounded"),
        "a flood of empty fragments": (flood(fragments, 6), "bounded"),
        "a flood of messages": (flood(frame(TEXT, b'{"type": "chat"}'), 3), "bounded"),
        "a flood of bad messages": (flood(frame(TEXT, b"{"), 1), "bounded"),
    }  # fmt: skip
    return [Case(name=name, expected=expected, run=run) for name, (run, expected) in table.items()]


def broken_game(scene: Scene, user: str) -> str:
    """Begin a game of this player's and break the connection; its token."""
    upload_first(scene, user)
    with opened(scene, user) as rogue:
        abort(rogue.connection)
        return rogue.token


def coming_back(scene: Scene, user: str, token: str) -> str:
    """`hello`, or the refusal. A game that comes back is left properly."""
    with dial(scene.url) as connection:
        connection.sendall(upgrade(f"/ws/{user}?resume={token}"))
        rogue = RawSocket(connection)
        if not rogue.opened:
            return f"refused {rogue.refusal}"
        opcode, payload = rogue.next()
        if opcode == TEXT:
            rogue.send(BYE)
            rogue.closing()
            return "hello"
        rogue.send(BYE)
        return f"close {int.from_bytes(payload[:2], 'big')} {payload[2:].decode()}"


def resume_cases() -> list[Case]:
    """Tokens that take up nothing. For a server that holds broken games."""

    def trying(token: str) -> Callable[[Scene], str]:
        return lambda scene: coming_back(scene, "rogue-nobody", token)

    def anothers(scene: Scene) -> str:
        token = broken_game(scene, "rogue-owner")
        stolen = coming_back(scene, "rogue-thief", token)
        return f"{stolen}, owner: {coming_back(scene, 'rogue-owner', token)}"

    def forged(scene: Scene) -> str:
        token = broken_game(scene, "rogue-owner")
        guess = token[:-1] + ("A" if token[-1] != "A" else "B")
        refused = coming_back(scene, "rogue-owner", guess)
        return f"{refused}, owner: {coming_back(scene, 'rogue-owner', token)}"

    def used(scene: Scene) -> str:
        token = broken_game(scene, "rogue-owner")
        first = coming_back(scene, "rogue-owner", token)
        return f"{coming_back(scene, 'rogue-owner', token)}, before: {first}"

    def of_a_game_that_was_left(scene: Scene) -> str:
        upload_first(scene, "rogue-owner")
        with opened(scene, "rogue-owner") as rogue:
            rogue.send(BYE)
            rogue.closing()
            return coming_back(scene, "rogue-owner", rogue.token)

    def replaced(scene: Scene) -> str:
        token = broken_game(scene, "rogue-owner")
        with opened(scene, "rogue-owner") as rogue:
            rogue.send(BYE)
            rogue.closing()
        return coming_back(scene, "rogue-owner", token)

    words = {
        "a word": "letmein",
        "one letter": "a",
        "5000 letters": "a" * 5000,
        "nul": "%00",
        "emoji": "%F0%9F%A6%8A",
        "half a character": "%F0%9F",
        "dots": "../../x",
        "json": "%7B%7D",
        "none": "None",
        "twice": "a&resume=b",
    }
    cases = [
        Case(name=f"resume with {name}", expected="close 1008 ... no game to resume", run=trying(token))
        for name, token in words.items()
    ]
    more: dict[str, tuple[Callable[[Scene], str], str]] = {
        "another player's token": (anothers, "close 1008 ... owner: hello"),
        "a forged token": (forged, "close 1008 ... owner: hello"),
        "a used token": (used, "close 1008 ... before: hello"),
        "the token of a game that was left": (of_a_game_that_was_left, "close 1008 ... no game to resume"),
        "the token of a game that was replaced": (replaced, "close 1008 ... no game to resume"),
    }
    cases.append(Case(name="resume with nothing", expected="close 1008 ... no start picture", run=trying("")))
    return cases + [
        Case(name=f"resume with {name}", expected=right, run=run) for name, (run, right) in more.items()
    ]


def patience_cases() -> list[Case]:
    """Clients that never finish."""
    chunked = request("POST", f"/z0/{USER}", [("Transfer-Encoding", "chunked"), form_type()])
    table: dict[str, tuple[bytes, str]] = {
        "nothing": (b"", "nothing"),
        "half a line": (b"GET /st", "nothing"),
        "half a head": (STATUS[:-4], "nothing"),
        "half an upload": (UPLOAD[:-100], "nothing"),
        "half a chunk": (chunked + b"50\r\nx", "nothing | 400 "),
        "half a handshake": (upgrade(f"/ws/{USER}")[:-4], "nothing"),
    }  # fmt: skip
    second = STATUS.replace(b"Connection: close\r\n", b"") + STATUS[:20]
    return [
        *[
            Case(name=f"waiting after {name}", expected=expected, run=silent(0.3, data))
            for name, (data, expected) in table.items()
        ],
        # Time enough to send the first.
        Case(name="waiting after half a second head", expected="200", run=silent(3.0, second)),
    ]
