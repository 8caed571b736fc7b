"""One real game over HTTP and a WebSocket, played and decoded as a client would: `python -m bench.play`.

The server is `python -m worldloop play` in a process of its own. The game runs at 35 pictures a second with keys that
change on a seeded schedule, then at 120, which shows how fast the server could go.

    key to picture    from sending keys to the arrival of the first picture of the latent frame that used them, told
                      by the server's `ack`; on the same machine, so without a network and without a screen
    real-time factor  pictures a second at 120 over 35; a value of 3.4 is the protocol's ceiling
    model, decode, encode, everything else   from the server's own `/metrics`, over the part at 35 only; the memory
                      write counts as model though pictures have left by then; everything else is waiting for the
                      device, handing over between threads, and the socket
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from websockets.asyncio.client import ClientConnection, connect

from bench.report import ROOT, environment, memory_bytes, percentile, publish
from worldloop.codec.h264 import H264Decoder
from worldloop.testing import WALKING

STREAM_FPS, FASTEST_FPS = 35, 120
GROUP = 4
HOLD_S = (0.4, 1.2)
PICTURES = ROOT / "src" / "worldloop" / "assets" / "pictures" / "meadow"


@dataclass(kw_only=True)
class Played:
    """What the client saw.

    Attributes:
        arrivals: seconds at which each picture's message was there, oldest first.
        latencies: seconds from keys to their first picture.
        decoded: pictures that the decoder gave.
    """

    arrivals: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    decoded: int = 0

    def rate(self, begin: float, end: float) -> float:
        """Pictures a second between two times."""
        return sum(begin <= at < end for at in self.arrivals) / (end - begin)


@contextmanager
def server(world: str, *settings: str) -> Iterator[tuple[str, int]]:
    """(URL, process id) of a server on a free port; `settings` are further ones, as `NAME=VALUE`."""
    command = [sys.executable, "-m", "worldloop", "play", "--no-browser", "--port", "0", "--world", world]
    for setting in ("session_limit_s=0", "log_level=warning", *settings):
        command += ["--set", setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            word, _, url = process.stdout.readline().strip().partition(" ")
            if word != "ready":
                raise SystemExit(f"the server did not start; its exit code is {process.wait()}")
            yield url, process.pid
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
        finally:
            process.kill()


def post_picture(url: str, user: str, picture: bytes) -> None:
    """Upload a start picture."""
    edge = uuid.uuid4().hex
    head = f'--{edge}\r\nContent-Disposition: form-data; name="z0_image"; filename="z0.png"\r\n'
    body = f"{head}Content-Type: image/png\r\n\r\n".encode() + picture + f"\r\n--{edge}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={edge}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/z0/{user}", body, headers), timeout=60
    ) as answer:
        json.load(answer)


def stages(url: str) -> dict[str, tuple[float, float]]:
    """(seconds, count) of every stage so far, from `/metrics`."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return parse_stages(answer.read().decode())


def parse_stages(text: str) -> dict[str, tuple[float, float]]:
    """(seconds, count) by stage out of Prometheus' text format."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        for kind in ("sum", "count"):
            start = f'worldloop_stage_seconds_{kind}{{stage="'
            if line.startswith(start):
                stage, _, value = line.removeprefix(start).partition('"} ')
                found.setdefault(stage, {})[kind] = float(value)
    return {stage: (each["sum"], each["count"]) for stage, each in found.items()}


class Client:
    """Plays one game: keys by schedule, every message received, every picture decoded."""

    def __init__(self, socket: ClientConnection, *, seed: int) -> None:
        self._socket = socket
        self._draw = random.Random(seed)
        self._decoder = H264Decoder()
        self._sent: dict[int, float] = {}
        self._acked: dict[int, int] = {}
        self.played = Played()

    async def hold_keys(self, seconds: float, fps: int) -> None:
        """Change keys now and then for so long; ends with none held."""
        end = time.perf_counter() + seconds
        held = ""
        while (left := end - time.perf_counter()) > 0:
            held = self._draw.choice([key for key in WALKING if key != held])
            await self._say({held: True}, fps)
            await asyncio.sleep(min(left, self._draw.uniform(*HOLD_S)))
        await self._say({}, fps)

    async def _say(self, pressed: dict[str, bool], fps: int) -> None:
        number = len(self._sent) + 1
        self._sent[number] = time.perf_counter()
        message = {"type": "keys", "pressed": pressed, "stream_fps": fps, "seq": number}
        await self._socket.send(json.dumps(message))

    async def receive(self) -> None:
        """Take messages until cancelled."""
        async for message in self._socket:
            now = time.perf_counter()
            if isinstance(message, str):
                self._read_text(json.loads(message))
                continue
            number = len(self.played.arrivals)
            self.played.arrivals.append(now)
            if number in self._acked:
                self.played.latencies.append(now - self._sent[self._acked.pop(number)])
            self.played.decoded += len(self._decoder.decode(message[1:]))

    def _read_text(self, message: dict[str, Any]) -> None:
        if message["type"] == "ack":
            self._acked[message["frame"]] = message["seq"]
        elif message["type"] in ("error", "session_over"):
            raise SystemExit(f"the server says: {message}")


async def play(url: str, *, seconds: float, fast_s: float, seed: int) -> dict[str, Any]:
    """Play one game and sum it up; times in milliseconds."""
    socket_url = url.replace("http", "ws", 1) + "/ws/bench"
    async with connect(socket_url, max_size=None) as socket:
        client = Client(socket, seed=seed)
        receiving = asyncio.ensure_future(client.receive())
        try:
            await client.hold_keys(1.0, STREAM_FPS)  # the first pictures and the decoder's start don't count
            client.played.latencies.clear()
            before, begin = await asyncio.to_thread(stages, url), time.perf_counter()
            await client.hold_keys(seconds, STREAM_FPS)
            after, end = await asyncio.to_thread(stages, url), time.perf_counter()
            latencies = list(client.played.latencies)
            await client.hold_keys(1.0, FASTEST_FPS)
            fast_begin = time.perf_counter()
            await client.hold_keys(fast_s, FASTEST_FPS)
            fast = client.played.rate(fast_begin, time.perf_counter())
            if receiving.done():
                receiving.result()
        finally:
            receiving.cancel()
    result = summary(before, after, latencies)
    played = client.played
    return result | {
        "pictures_per_s": played.rate(begin, end),
        "pictures_per_s_at_120": fast,
        "real_time_factor": fast / STREAM_FPS,
        "pictures": len(played.arrivals),
        "decoded": played.decoded,
    }


def summary(
    before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]], latencies: list[float]
) -> dict[str, Any]:
    """Milliseconds a latent frame by stage, and the key-to-picture percentiles."""
    latents = after["generate"][1] - before.get("generate", (0.0, 0.0))[1]
    spent = {stage: after[stage][0] - before.get(stage, (0.0, 0.0))[0] for stage in after}
    each = {f"{stage}_ms": 1000 * seconds / latents for stage, seconds in spent.items()}
    on_device = each["denoise_ms"] + each["decode_ms"]
    return each | {
        "latents": latents,
        "model_ms": each["denoise_ms"] + each["memory_ms"],
        "else_ms": each["generate_ms"] - on_device + each["send_ms"],
        "key_to_picture_p50_ms": 1000 * percentile(latencies, 50),
        "key_to_picture_p95_ms": 1000 * percentile(latencies, 95),
        "keys": len(latencies),
    }


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Length of the game at 35 pictures a second.")] = 30.0,
    fast: Annotated[float, typer.Option(min=1, help="Length of the part at 120.")] = 10.0,
    world: Annotated[str, typer.Option(help="A shipped world's name, or a path.")] = "meadow",
    seed: Annotated[int, typer.Option(help="Of the schedule of keys.")] = 0,
    picture: Annotated[Path, typer.Option(help="Start picture.")] = PICTURES / "crossroads.png",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Play one real game."""
    with server(world) as (url, pid):
        post_picture(url, "bench", picture.read_bytes())
        result = asyncio.run(play(url, seconds=seconds, fast_s=fast, seed=seed))
        result["server_peak_bytes"] = memory_bytes(pid, peak=True)
    rows = [
        (
            "real-time factor, all included",
            f"{result['real_time_factor']:.2f} (ceiling of the protocol: 3.43)",
        ),
        ("pictures a second at 35", f"{result['pictures_per_s']:.2f}"),
        (
            "key to picture, p50 / p95",
            f"{result['key_to_picture_p50_ms']:.0f} / {result['key_to_picture_p95_ms']:.0f} ms"
            f" ({result['keys']} changes)",
        ),
        ("a latent frame: model", f"{result['model_ms']:.2f} ms"),
        ("a latent frame: decode", f"{result['decode_ms']:.2f} ms"),
        (f"a latent frame: encode, {GROUP} pictures", f"{result['encode_ms']:.2f} ms"),
        ("a latent frame: everything else", f"{result['else_ms']:.2f} ms"),
        ("server's memory at its highest", f"{result['server_peak_bytes'] / 2**20:.0f} MiB"),
        ("pictures received / decoded", f"{result['pictures']} / {result['decoded']}"),
    ]
    publish(f"play: {world}", environment(dtype="auto"), rows, result, json_file)


if __name__ == "__main__":
    typer.run(main)
