"""The ways in which a case talks to a server: plain requests, sockets, handshakes."""

from __future__ import annotations

from collections.abc import Callable

from .case import Scene
from .files import image, saved
from .raw import CLOSE, RawSocket, dial, frame, raw_socket, speak

GOOD = saved(image(), "PNG")
USER = "rogue-clerk"


def sending(*pieces: bytes, finish: bool = False) -> Callable[[Scene], str]:
    return lambda scene: speak(scene.url, *pieces, finish=finish)


def playing(target: str, *headers: tuple[str, str]) -> Callable[[Scene], str]:
    """Open a socket: `close code reason`, or `refused status` when the handshake is."""

    def run(scene: Scene) -> str:
        with raw_socket(scene.url, target, headers) as rogue:
            return closing(rogue)

    return run


def closing(rogue: RawSocket) -> str:
    if not rogue.opened:
        return f"refused {rogue.refusal}"
    ended = rogue.closing()
    rogue.send(frame(CLOSE, b"\x03\xe8"))
    return ended


def shaking(data: bytes) -> Callable[[Scene], str]:
    """The status of a handshake; the connection must end by itself, or be a WebSocket."""

    def run(scene: Scene) -> str:
        with dial(scene.url) as connection:
            connection.sendall(data)
            rogue = RawSocket(connection)
            if rogue.opened:
                return f"101 {closing(rogue)}"
            return rogue.refusal

    return run
