"""What serving costs, over real sockets: `python -m bench.serve`.

The server is `python -m worldloop play --set slots=2` in a process of its own. First one player, then two at once, hold
keys that change on a seeded schedule at 35 pictures a second; then thousands of short games are started and left.

    GET /status      from asking to the answer's last byte, each on a connection of its own, while the games run
    key to picture   as in `bench.play`
    a frame's cost   a latent frame's seconds on the device (passes, memory write, decoder) and in the video encoder,
                     the way to its thread and back included (all from `/metrics`), and the processor seconds of the
                     event loop's thread (routes, JSON, pacing, sockets); nobody asks for `/status` meanwhile
    server's share   the event loop's part of that sum; with the encoder, the part of both
    memory           what the server's process holds, pages of files left out, after 50 short games and after all;
                     such a game is a reservation, a socket, keys, 3 latent frames, and leaving; each upload is another
                     user's
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from websockets.asyncio.client import connect

from bench.play import GROUP, PICTURES, STREAM_FPS, Client, post_picture, server, stages, summary
from bench.report import Row, Target, environment, memory_bytes, percentile, publish, thread_seconds

STATUS_MS, SHARE_PERCENT, GROWTH_PERCENT = 50.0, 10.0, 2.0
PLAYERS = (1, 2)
SHORT_FRAMES = 3
UPLOADS = 100
FREE_S, RETRY_S = 10.0, 0.005
QUIET_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        seconds: length of each timed part.
        requests: of `/status`.
        games: short ones.
        settled: after how many of them memory is first taken.
    """

    seconds: float
    requests: int
    games: int
    settled: int = 50

    @classmethod
    def quick(cls) -> Extent:
        """A few seconds, to see that it runs."""
        return cls(seconds=0.5, requests=20, games=6, settled=2)


async def play_together(
    url: str, pid: int, *, players: int, extent: Extent, picture: bytes
) -> dict[str, Any]:
    """So many games at once; what the server cost them, times in milliseconds."""
    async with AsyncExitStack() as stack:
        clients = []
        for seed in range(players):
            user = f"player-{seed}"
            await _upload(url, user, picture)
            clients.append(await stack.enter_async_context(_game(url, user, seed=seed)))
        await _hold(
            clients, min(1.0, extent.seconds)
        )  # the first pictures and the decoders' start don't count
        for client in clients:
            client.played.latencies.clear()
        before, busy, begin = (
            await asyncio.to_thread(stages, url),
            thread_seconds(pid, pid),
            time.perf_counter(),
        )
        await _hold(clients, extent.seconds)
        busy, end = thread_seconds(pid, pid) - busy, time.perf_counter()
        after = await asyncio.to_thread(stages, url)
        latencies = [latency for client in clients for latency in client.played.latencies]
        rates = [client.played.rate(begin, end) for client in clients]
        asking = asyncio.to_thread(ask_status, url, requests=extent.requests, seconds=extent.seconds)
        asked, _ = await asyncio.gather(asking, _hold(clients, extent.seconds))
    return cost(summary(before, after, latencies), busy) | {
        "pictures_per_s": min(rates),
        "status_p50_ms": 1000 * percentile(asked, 50),
        "status_p99_ms": 1000 * percentile(asked, 99),
    }


def cost(spent: dict[str, Any], loop_s: float) -> dict[str, Any]:
    """`spent` of `bench.play.summary`, with the event loop's seconds and the server's share of a frame's cost."""
    loop_ms = 1000 * loop_s / spent["latents"]
    whole = spent["model_ms"] + spent["decode_ms"] + spent["encode_ms"] + loop_ms
    return spent | {
        "loop_ms": loop_ms,
        "frame_ms": whole,
        "server_percent": 100 * loop_ms / whole,
        "server_and_encoder_percent": 100 * (loop_ms + spent["encode_ms"]) / whole,
    }


def ask_status(url: str, *, requests: int, seconds: float) -> list[float]:
    """Seconds of each of so many requests, spread evenly over `seconds`."""
    spent = []
    begin = time.perf_counter()
    for number in range(requests):
        time.sleep(max(0.0, begin + number * seconds / requests - time.perf_counter()))
        asked = time.perf_counter()
        with urllib.request.urlopen(f"{url}/status", timeout=10) as answer:
            json.load(answer)
        spent.append(time.perf_counter() - asked)
    return spent


async def play_many(url: str, pid: int, *, extent: Extent, picture: bytes) -> dict[str, Any]:
    """Start and leave `extent.games` games one after the other; bytes of the server after `settled` and after all."""
    every = max(1, extent.games // UPLOADS)
    sizes, uploads, user = [], 0, ""
    began = time.perf_counter()
    for number in range(extent.games):
        if number % every == 0:
            user, uploads = f"guest-{uploads}", uploads + 1
            await _upload(url, user, picture)
        await _short_game(url, user)
        if number + 1 in (extent.settled, extent.games):
            sizes.append(await _settled_bytes(pid))
    early, late = sizes
    return {
        "games": extent.games,
        "uploads": uploads,
        "settled": extent.settled,
        "memory_bytes": (early, late),
        "growth_percent": 100 * abs(late / early - 1),
        "seconds": time.perf_counter() - began,
    }


def targets(played: dict[int, dict[str, Any]], many: dict[str, Any]) -> list[Target]:
    """What must hold, of the figures by number of players and of the short games."""
    found = []
    for players, figures in played.items():
        who = "1 player" if players == 1 else f"{players} players"
        p99, share = figures["status_p99_ms"], figures["server_percent"]
        found += [
            Target(name=f"GET /status, p99, {who}", found=p99, limit=STATUS_MS, unit="ms"),
            Target(name=f"server's share of a frame, {who}", found=share, limit=SHARE_PERCENT, unit="%"),
        ]
    name = f"memory of the process, {many['settled']} to {many['games']} games"
    change = Target(name=name, found=many["growth_percent"], limit=GROWTH_PERCENT, unit="%")
    return [*found, change]


def rows(played: dict[int, dict[str, Any]], many: dict[str, Any]) -> list[Row]:
    """The table: every figure, then every target."""
    table = []
    for players, one in played.items():
        frame = ("model_ms", "decode_ms", "encode_ms", "loop_ms")
        table += [
            (f"players: {players}", f"{one['pictures_per_s']:.2f} pictures a second each, of {STREAM_FPS}"),
            ("  GET /status, p50 / p99", f"{one['status_p50_ms']:.1f} / {one['status_p99_ms']:.1f} ms"),
            (
                "  key to picture, p50 / p95",
                f"{one['key_to_picture_p50_ms']:.0f} / {one['key_to_picture_p95_ms']:.0f} ms ({one['keys']} changes)",
            ),
            (
                "  a frame: model / decode / encode / event loop",
                f"{' / '.join(f'{one[part]:.2f}' for part in frame)} ms",
            ),
            (
                "  server's share, without / with the encoder",
                f"{one['server_percent']:.1f} / {one['server_and_encoder_percent']:.1f} %",
            ),
        ]
    sizes = " / ".join(f"{size / 2**20:.1f}" for size in many["memory_bytes"])
    table += [
        (
            f"memory after {many['settled']} / {many['games']} games",
            f"{sizes} MiB ({many['uploads']} uploads)",
        ),
        ("a game of 3 latent frames", f"{1000 * many['seconds'] / many['games']:.0f} ms, start to end"),
    ]
    return table + [(target.name, str(target)) for target in targets(played, many)]


@asynccontextmanager
async def _game(url: str, user: str, *, seed: int) -> AsyncIterator[Client]:
    async with connect(_socket_url(url, user), max_size=None) as socket:
        client = Client(socket, seed=seed)
        receiving = asyncio.ensure_future(client.receive())
        try:
            yield client
        finally:
            receiving.cancel()


async def _hold(clients: list[Client], seconds: float) -> None:
    await asyncio.gather(*(client.hold_keys(seconds, STREAM_FPS) for client in clients))


async def _upload(url: str, user: str, picture: bytes) -> None:
    await asyncio.to_thread(_when_free, lambda: post_picture(url, user, picture))


async def _short_game(url: str, user: str) -> None:
    await asyncio.to_thread(_when_free, lambda: _reserve(url, user))
    async with connect(_socket_url(url, user), max_size=None) as socket:
        await socket.send(json.dumps({"type": "keys", "pressed": {"w": True}, "stream_fps": 120}))
        pictures = 0
        while pictures < 1 + GROUP * SHORT_FRAMES:
            pictures += isinstance(await socket.recv(), bytes)


def _reserve(url: str, user: str) -> None:
    with urllib.request.urlopen(f"{url}/create-game/{user}", timeout=10) as answer:
        json.load(answer)


def _when_free(ask: Callable[[], None]) -> None:
    """Do `ask`, again while the place of a game that was just left is not back yet."""
    end = time.perf_counter() + FREE_S
    while True:
        try:
            return ask()
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 423 or time.perf_counter() > end:
                    raise
        time.sleep(RETRY_S)


async def _settled_bytes(pid: int) -> int:
    """The least within a moment, when the last game has been cleared away."""
    least = memory_bytes(pid)
    for _ in range(10):
        await asyncio.sleep(QUIET_S / 10)
        least = min(least, memory_bytes(pid))
    return least


def _socket_url(url: str, user: str) -> str:
    return f"{url.replace('http', 'ws', 1)}/ws/{user}"


def main(
    games: Annotated[int, typer.Option(min=100, help="Short games.")] = 2000,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each timed part.")] = 20.0,
    requests: Annotated[int, typer.Option(min=1, help="Requests of /status.")] = 1000,
    world: Annotated[str, typer.Option(help="A shipped world's name, or a path.")] = "meadow",
    threads: Annotated[int, typer.Option(help="CPU threads of the server's model; 0 takes all.")] = 0,
    picture: Annotated[Path, typer.Option(help="Start picture.")] = PICTURES / "crossroads.png",
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds, to see that it runs.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Serve one player, two players, and thousands one after the other."""
    extent = Extent.quick() if quick else Extent(seconds=seconds, requests=requests, games=games)
    data = picture.read_bytes()

    async def measure(url: str, pid: int) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
        played = {
            players: await play_together(url, pid, players=players, extent=extent, picture=data)
            for players in PLAYERS
        }
        return played, await play_many(url, pid, extent=extent, picture=data)

    with server(world, f"slots={max(PLAYERS)}", f"threads={threads}", "load_limit=0") as (url, pid):
        played, many = asyncio.run(measure(url, pid))
        many["server_peak_bytes"] = memory_bytes(pid, peak=True)
    missed = [target.name for target in targets(played, many) if not target.met]
    result = {"players": played, "many": many, "missed": missed}
    publish(
        f"serve: {world}",
        environment(dtype="auto", threads=threads or None),
        rows(played, many),
        result,
        json_file,
    )
    if check and missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
