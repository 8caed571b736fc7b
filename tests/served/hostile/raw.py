"""HTTP and WebSocket by hand, so that a client can say what no library would let it say.

Owns bytes on a socket and the reading of answers. Knows nothing of games.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

WAIT_S = 60.0
BOUNDARY = "x9f2-boundary"

TEXT, BINARY, CONTINUE, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


def dial(url: str) -> socket.socket:
    """A connected TCP socket."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=WAIT_S)


def request(
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    host: str | None = "test",
    length: str | None = None,
) -> bytes:
    """One HTTP/1.1 request that asks for the connection to be closed after it."""
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"Host: {host}"] if host is not None else []
    lines += [f"{name}: {value}" for name, value in headers]
    if length is not None or body:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


Part = tuple[str, str | None, bytes]


def multipart(parts: Sequence[Part], *, boundary: str = BOUNDARY, end: bool = True) -> bytes:
    """Form parts of (name, file name or None, content)."""
    out = b""
    for name, filename, content in parts:
        shown = f'; filename="{filename}"' if filename is not None else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n'
        head += "Content-Type: application/octet-stream\r\n" if filename is not None else ""
        out += head.encode("utf-8", "surrogateescape") + b"\r\n" + content + b"\r\n"
    return out + (f"--{boundary}--\r\n".encode() if end else b"")


def form_type(boundary: str = BOUNDARY) -> tuple[str, str]:
    return ("Content-Type", f"multipart/form-data; boundary={boundary}")


def speak(url: str, *pieces: bytes, finish: bool = False) -> str:
    """Send bytes, read until the server closes: `status body`, or `nothing` when it closes without an answer.

    With `finish`, this side ends its half of the connection after the last byte.
    """
    with dial(url) as connection:
        # A server may answer and close before it has read all.
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        return answer(connection)


def answer(connection: socket.socket) -> str:
    """Read until the server closes."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionError:
        pass
    except TimeoutError:
        return f"no close after {data[:60]!r}"
    return shown(data)


def shown(data: bytes) -> str:
    """`status body` of the last answer in these bytes that is not an interim one."""
    result = "nothing"
    while data.startswith(b"HTTP/1."):
        head, _, rest = data.partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1].decode()
        size = 0 if status.startswith("1") else len(rest)
        for line in head.lower().split(b"\r\n")[1:]:
            if line.startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        result = f"{status} {rest[:size].decode(errors='replace')}"
        data = rest[size:]
    return result


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    masked: bool = True,
    reserved: int = 0,
    length: int | None = None,
) -> bytes:
    """One WebSocket frame; `length` states another than the payload's."""
    size = len(payload) if length is None else length
    first, mask_bit = (0x80 if fin else 0) | reserved << 4 | opcode, 0x80 if masked else 0
    if size < 126:
        head = bytes((first, mask_bit | size))
    elif size < 65536:
        head = bytes((first, mask_bit | 126)) + struct.pack(">H", size)
    else:
        head = bytes((first, mask_bit | 127)) + struct.pack(">Q", size)
    if not masked:
        return head + payload
    mask = b"\x11\x22\x33\x44"
    key = mask * (len(payload) // 4 + 1)
    return head + mask + bytes(a ^ b for a, b in zip(payload, key, strict=False))


def upgrade(
    target: str, headers: Sequence[tuple[str, str]] = (), *, method: str = "GET", **changes: str | None
) -> bytes:
    """A WebSocket handshake; `changes` replace a header (`key`, `version`, `upgrade`, `host`) or drop it (None)."""
    fields: dict[str, tuple[str, str | None]] = {
        "host": ("Host", "test"),
        "upgrade": ("Upgrade", "websocket"),
        "connection": ("Connection", "Upgrade"),
        "key": ("Sec-WebSocket-Key", base64.b64encode(os.urandom(16)).decode()),
        "version": ("Sec-WebSocket-Version", "13"),
    }
    for name, value in changes.items():
        fields[name] = (fields[name][0], value)
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.values() if value is not None]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class RawSocket:
    """A WebSocket whose frames are written by hand.

    Attributes:
        opened: whether the handshake was accepted.
        refusal: the answer when it was not.
        token: what takes the game up again, when the server gave one.
    """

    token = ""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._data = b""
        head = self._until(b"\r\n\r\n")
        self.opened = head.startswith(b"HTTP/1.1 101 ")
        self.refusal = shown(head + b"\r\n\r\n")

    def send(self, *pieces: bytes) -> None:
        """What the server no longer takes is dropped."""
        with contextlib.suppress(ConnectionError):
            self.connection.sendall(b"".join(pieces))

    def next(self) -> tuple[int, bytes]:
        """The next frame's opcode and payload; (-1, b"") when the connection is gone."""
        try:
            first, second = self._take(2)
            size = second & 127
            if size >= 126:
                size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
            return first & 15, self._take(size)
        except ConnectionError:
            return -1, b""

    def closing(self) -> str:
        """Read to the close frame: `close code reason`, or `lost` when none comes."""
        while True:
            opcode, payload = self.next()
            if opcode == CLOSE:
                code = int.from_bytes(payload[:2], "big") if payload else 1005
                return f"close {code} {payload[2:].decode()}"
            if opcode == -1:
                return "lost"

    def _until(self, mark: bytes) -> bytes:
        with contextlib.suppress(ConnectionError):
            while mark not in self._data:
                self._more()
        head, _, self._data = self._data.partition(mark)
        return head

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._more()
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _more(self) -> None:
        chunk = self.connection.recv(65536)
        if not chunk:
            raise ConnectionResetError("closed")
        self._data += chunk


@contextmanager
def raw_socket(url: str, target: str, headers: Sequence[tuple[str, str]] = ()) -> Iterator[RawSocket]:
    """Connect and shake hands; the connection is reset at the end, without a closing handshake."""
    with dial(url) as connection:
        connection.sendall(upgrade(target, headers))
        yield RawSocket(connection)
