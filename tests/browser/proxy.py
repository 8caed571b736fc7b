"""A TCP proxy between the page and a server, whose connections a test breaks.

Owns the ways in which a network fails. Knows no HTTP: the page's address is the proxy's, and so is its origin.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from urllib.parse import urlsplit

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset: no FIN, so nothing that looks like a goodbye."""


class Proxy:
    """Passes bytes on until it is told to fail.

    Attributes:
        url: for the page.
        refusing: new connections are reset at once.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._pairs: list[_Pair] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.refusing = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self) -> None:
        """Reset every connection on both sides, as a network that breaks does."""
        for pair in self._pairs:
            pair.reset()
        self._pairs.clear()

    def silence(self) -> None:
        """Swallow what the server says on today's connections, and keep them open. It still hears the page."""
        for pair in self._pairs:
            pair.silent = True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`; a close alone would not
        self._accepting.join()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                if self.refusing:
                    _reset(near)
                else:
                    self._pairs.append(_Pair(near, socket.create_connection(self._target)))


class _Pair:
    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.silent = False
        self._ends = (near, far)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def reset(self) -> None:
        for end in self._ends:
            _reset(end)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        to_page = sink is self._ends[0]
        with contextlib.suppress(OSError):  # one of the two is gone
            while data := source.recv(65536):
                if not (to_page and self.silent):
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RD)  # wakes the pump that reads from it; a close alone would wait for it
    end.close()
