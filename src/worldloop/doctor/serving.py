"""Serving: the packages and the address that a server needs, the settings as they resolve, and the world itself.

Owns the probes and their wording. The world is opened as `worldloop play` opens it.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import closing

from pydantic import SecretStr

from worldloop.core.settings import Settings
from worldloop.doctor.report import Finding, setting
from worldloop.host import WorldHost
from worldloop.loops.timing import STREAM_FPS, time_frames
from worldloop.models.autoencoder import GROUP

PACKAGES = {
    "fastapi": "fastapi",
    "prometheus_client": "prometheus-client",
    "python_multipart": "python-multipart",
    "uvicorn": "uvicorn",
    "websockets": "websockets",
}
"""What the `serve` extra brings: modules and the packages that hold them."""
FRAMES = 6
SIZE = "pictures"
"""Name of the finding that tells the pictures' size."""


def server(settings: Settings) -> Iterator[Finding]:
    """What the web server is made of, and whether its port can be listened on now."""
    missing = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]
    text = f"missing {', '.join(missing)}: pip install 'worldloop[serve]'" if missing else "all there"
    yield Finding(area="server", name="packages", text=text, value=missing, stops=bool(missing))
    if missing:
        return
    from worldloop.server.run import listen

    where = f"{settings.host}, port {settings.port or 'any free one'}"
    yield Finding(area="server", name="address", text=where, value=[settings.host, settings.port])
    instead = "another port, or port=0 for any free one"
    yield from setting("port", instead, lambda: listen(settings.host, settings.port).close())


def changed(settings: Settings) -> Iterator[Finding]:
    """Settings that are not at their default; secrets hidden."""
    count, dumped = 0, settings.model_dump(mode="json")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if value != field.default:
            count += 1
            shown = "(hidden)" if isinstance(value, SecretStr) else dumped[name]
            yield Finding(area="settings", name=name, text=str(shown), value=shown)
    rest = len(Settings.model_fields) - count
    yield Finding(area="settings", name="defaults", text=f"the other {rest} settings", value=rest)


def world(settings: Settings) -> Iterator[Finding]:
    """The world as a server would open it: what it is, how quick, and how many players that is."""
    if settings.profile_frames and not os.access(settings.profile_dir, os.W_OK | os.X_OK):
        text = "not a folder that can be written; set another, or profile_frames=0"
        yield Finding(area="settings", name="profile_dir", text=text, stops=True)
    began = time.perf_counter()
    # A profile would write a file.
    with closing(WorldHost.from_settings(settings.model_copy(update={"profile_frames": 0}))) as host:
        ids, (height, width) = host.model_ids(), host.frame_size
        more = "".join(f", also {name}" for name in ids if name != host.active_model_id)
        text = f"{host.active_model_id}, opened in {time.perf_counter() - began:.1f} s{more}"
        yield Finding(area="world", name=settings.world, text=text, value=ids)
        yield Finding(area="world", name=SIZE, text=f"{width} x {height}", value=[height, width])
        times = host.engine.call(lambda: time_frames(host.model, frames=FRAMES))
    latents = 1000 / times.median_ms()
    factor = latents * GROUP / STREAM_FPS
    text = f"{latents:.1f} latent frames a second, {factor:.2g} times real time at {STREAM_FPS} pictures a second"
    yield Finding(area="world", name="speed", text=text, value={"latents_per_s": latents, "factor": factor})
    yield Finding(area="world", name="players", text=_players(factor, settings.slots), value=int(factor))


def _players(factor: float, slots: int) -> str:
    if factor < 1:
        return (
            f"none in real time: one alone gets {factor * STREAM_FPS:.1f} pictures a second of {STREAM_FPS}"
        )
    room = f"{int(factor)} at {STREAM_FPS} pictures a second each, before the server's own work"
    return f"{room}; slots={slots} is more than that" if slots > int(factor) else room
