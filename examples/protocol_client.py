"""Play a world with nothing but its protocol: HTTP, a WebSocket and an H.264 decoder.

    python examples/protocol_client.py http://127.0.0.1:8000 picture.png --seconds 10

Uses no code of worldloop, so it shows what a client in any language does. Prints what it saw as JSON.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
from websockets.sync.client import connect

WALK = ("d", "s", "a", "w", None)
HOLD_S = 1.0


def upload(url: str, user: str, picture: bytes, **fields: str) -> dict[str, Any]:
    """`POST /z0/{user}`: multipart, the picture in `z0_image`."""
    edge = uuid.uuid4().hex
    body = io.BytesIO()
    for name, value in fields.items():
        body.write(f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode())
    body.write(f'--{edge}\r\nContent-Disposition: form-data; name="z0_image"; filename="z0"\r\n'.encode())
    body.write(b"Content-Type: application/octet-stream\r\n\r\n" + picture + f"\r\n--{edge}--\r\n".encode())
    request = urllib.request.Request(f"{url}/z0/{user}", body.getvalue())
    request.add_header("Content-Type", f"multipart/form-data; boundary={edge}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def reserve(url: str, user: str) -> dict[str, Any]:
    """`GET /create-game/{user}`."""
    with urllib.request.urlopen(f"{url}/create-game/{user}", timeout=30) as answer:
        return dict(json.load(answer))


def unit_types(unit: bytes) -> list[int]:
    """NAL unit types of one Annex-B access unit: 7 is SPS, 8 is PPS, 5 an independent picture, 1 any other."""
    starts = [i + 3 for i in range(len(unit) - 3) if unit[i : i + 3] == b"\x00\x00\x01"]
    return [unit[start] & 31 for start in starts]


def play(url: str, user: str, seconds: float) -> Iterator[bytes]:
    """Hold keys in turn and yield every binary message of the socket."""
    keys = itertools.cycle(WALK)
    with connect(f"{url.replace('http', 'ws', 1)}/ws/{user}", max_size=2**22) as socket:
        end = change = time.monotonic()
        end += seconds
        while (now := time.monotonic()) < end:
            if now >= change:
                held = next(keys)
                socket.send(json.dumps({"type": "keys", "pressed": {} if held is None else {held: True}}))
                change = now + HOLD_S
            message = socket.recv(timeout=30)
            if isinstance(message, bytes):
                yield message


def watch(messages: Iterator[bytes]) -> dict[str, Any]:
    """Decode every message; what was seen."""
    decoder = av.CodecContext.create("h264", "r")
    units = pictures = keys = 0
    first: list[int] = []
    size = None
    for message in messages:
        units += 1
        keys += message[0]
        if units == 1:
            first = unit_types(message[1:])
        for picture in decoder.decode(av.Packet(message[1:])):
            pictures += 1
            size = [picture.width, picture.height]
    pictures += len(decoder.decode(None))
    return {"units": units, "pictures": pictures, "key_units": keys, "first_unit": first, "size": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    user = f"example-{uuid.uuid4().hex[:8]}"
    upload(options.url, user, options.picture.read_bytes())
    reserve(options.url, user)
    print(json.dumps(watch(play(options.url, user, options.seconds))))


if __name__ == "__main__":
    main()
