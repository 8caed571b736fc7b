"""What a server holds: games, leases, orders, results, tasks, threads, open files, temporary files, memory.

Owns counting, and waiting until nothing more is held than before. Results that are kept for a while are counted an hour
later, where the server has a clock for that.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from worldloop.codec import sandbox

from ..client import SERVER_THREAD, WAIT_S, Live
from .hours import HourHand

SETTLE_S = 60.0
POOLS = {"arena": 4, "AnyIO worker thread": 40, "asyncio": min(32, (os.cpu_count() or 1) + 4)}
"""Threads of these names are kept for the next request, up to so many for each server."""


def scratch() -> Path:
    """The folder that temporary files of this process go to while a hostile test runs."""
    return Path(tempfile.gettempdir())


def footprint(live: Live) -> dict[str, Any]:
    """Counts by name. Equal before and after: nothing was left."""
    gc.collect()
    server: Any = live._server
    host: Any = live.host
    status = live.arena.status()
    occupancy = status.occupancy
    loop = loop_of(live)
    pictures: Any = live.pictures
    videos: Any = live.videos
    threads = Counter(re.sub(r"[-_ ]?[\d_]+$", "", thread.name) for thread in threading.enumerate())
    return {
        "busy": bool(status.busy or status.ws_active or occupancy.owner),
        "in flight": occupancy.inflight,
        "waiting pictures": occupancy.pending_z0,
        "device sessions": host.engine.sessions,
        "device shares": len(host.engine.admission._shares),
        "inputs": host.engine.queued,
        "picture orders": 0 if pictures is None else len(pictures._line.jobs),
        "video orders": 0 if videos is None else len(videos._line.jobs),
        "kept pictures": 0 if pictures is None else len(pictures._kept),
        "kept videos": 0 if videos is None else len(videos._videos),
        "open generators": len(loop._asyncgens),
        "connections": len(server.server_state.connections),
        "requests": len(server.server_state.tasks),
        "tasks": len(asyncio.all_tasks(loop)),
        "threads": {name: count for name, count in threads.items() if name not in POOLS},
        "pool threads over the limit": {
            name: count
            for name, most in POOLS.items()
            if (count := threads[name]) > most * threads[SERVER_THREAD]
        },
        "open files": open_files(),
        "temporary files": sorted(str(path.relative_to(scratch())) for path in scratch().rglob("*")),
    }


def loop_of(live: Live) -> Any:
    """The server's event loop."""
    server: Any = live._server
    return server.servers[0].get_loop()


def pass_an_hour(live: Live) -> None:
    """What is kept for a while is forgotten, where the server has a clock for that."""
    clock = live.clock
    if not isinstance(clock, HourHand):
        return

    async def expire() -> None:
        clock.an_hour_later()
        live.pictures._expire()
        live.videos._expire()

    asyncio.run_coroutine_threadsafe(expire(), loop_of(live)).result(WAIT_S)


def at_rest(live: Live) -> dict[str, Any]:
    """The footprint of a server that serves nobody, once its last connection is gone."""
    until = time.monotonic() + SETTLE_S
    pass_an_hour(live)
    while (now := footprint(live))["connections"] or now["requests"]:
        assert time.monotonic() < until, f"not at rest: {now}"
        threading.Event().wait(0.02)
    return now


def left_over(live: Live, before: dict[str, Any], *, settle_s: float = SETTLE_S) -> dict[str, Any]:
    """What is held beyond `before` once the server has had time to let go: empty when nothing is."""
    until = time.monotonic() + settle_s
    while True:
        pass_an_hour(live)
        now = footprint(live)
        more = {name: (before[name], now[name]) for name in now if holds_more(before[name], now[name])}
        if not more or time.monotonic() > until:
            return more
        threading.Event().wait(0.02)


def holds_more(before: Any, now: Any) -> bool:
    """Whether a count grew. What was still held by an earlier test and is let go meanwhile is nothing left over."""
    if isinstance(now, dict | list):
        return bool(Counter(now) - Counter(before))
    return bool(now > before)


def open_files() -> dict[str, int]:
    """Open descriptors of this process by kind; the ends of the sockets that the tests hold count as well.

    Without those of the pictures' reader, which is kept for the next upload, or was ended by the last one.
    """
    kinds: Counter[str] = Counter()
    for number in set(os.listdir("/proc/self/fd")) - reader_pipes():
        try:
            kinds[re.sub(r"\d+", "", os.readlink(f"/proc/self/fd/{number}"))] += 1
        except OSError:
            continue
    return dict(kinds)


def reader_pipes() -> set[str]:
    """Numbers of the descriptors to the process that reads pictures."""
    process = sandbox._helper._process
    pipes = () if process is None else (process.stdin, process.stdout)
    return {str(pipe.fileno()) for pipe in pipes if pipe is not None and not pipe.closed}


def resident_mb() -> float:
    """Resident memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def forget_peak() -> None:
    """Start the measure of `peak_mb` anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The most resident memory since `forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
