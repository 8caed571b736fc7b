"""`/metrics`: what happened, what there is now, and that neither grows with what clients send."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from worldloop.core import errors
from worldloop.core.errors import WorldloopError
from worldloop.server.metrics import RECENT, Metrics
from worldloop.session.arena import reason_of
from worldloop.session.host import HostReport
from worldloop.session.observer import REASONS, Levels

WAIT_S = 60
LEVELS = Levels(
    ready=True, live=1, held=2, pictures=3, requests=4, stash=5, stash_bytes=6, host=HostReport(switches=7)
)


def values(text: str) -> dict[str, float]:
    """Every sample by its name with its labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def shown(metrics: Metrics) -> dict[str, float]:
    return values(metrics.render().decode())


@pytest.mark.anyio
async def test_a_scrape_shows_games_work_and_what_is_held(site) -> None:
    async with site(slots=2, resume_s=600) as s:
        ann, bob = await s.playing("ann"), await s.playing("bob")
        await ann.leave(1006)
        await bob.say({"pressed": {"w": True}, "seq": 1})
        await bob.text("ack")
        s.host.gate.clear()
        s.host.encoding.clear()
        # Ann has a held game of her own, so she may send a picture.
        uploading = asyncio.ensure_future(s.upload("ann"))
        assert await asyncio.to_thread(s.host.encoding.wait, WAIT_S)
        now = values((await s.http.get("/metrics")).text)
        status = (await s.http.get("/status")).status_code
        s.host.gate.set()
        assert (await uploading).status_code == 200
    assert status == 200, "and /status does not wait for the device either"
    expected = {
        "worldloop_ready": 1,
        "worldloop_games_live": 1,
        "worldloop_games_held": 1,
        "worldloop_requests_inflight": 1,
        "worldloop_start_pictures": 2,
        "worldloop_device_sessions": 2,
        "worldloop_device_inputs_queued": 1,
        'worldloop_held_bytes{what="weights"}': 1000,
        'worldloop_held_bytes{what="sessions"}': 100,
        'worldloop_held_bytes{what="stash"}': 2 * 48 * 64 * 3,
        "worldloop_switches_total": 0,
        "worldloop_reprefills_total": 5,
        "worldloop_drift_reprefills_total": 3,
        "worldloop_games_resumed_total": 0,
        "worldloop_key_to_picture_seconds_count": 1,
    }
    assert {name: now[name] for name in expected} == expected
    assert now["worldloop_pictures_sent_total"] >= 2
    assert 0 < now['worldloop_key_to_picture_recent_seconds{quantile="0.5"}'] < 10
    assert now["process_resident_memory_bytes"] > 0
    assert now["process_start_time_seconds"] > 0


def test_recent_quantiles_forget() -> None:
    metrics = Metrics()
    metrics.watch(lambda: LEVELS)
    p50, p95 = (f'worldloop_key_to_picture_recent_seconds{{quantile="{q}"}}' for q in ("0.5", "0.95"))
    assert math.isnan(shown(metrics)[p50])
    for milliseconds in range(1, 101):
        metrics.key_to_picture(milliseconds / 1000)
    assert (shown(metrics)[p50], shown(metrics)[p95]) == (0.051, 0.096)
    for _ in range(RECENT):
        metrics.key_to_picture(2.0)
    assert (shown(metrics)[p50], shown(metrics)[p95]) == (2.0, 2.0)
    assert shown(metrics)["worldloop_key_to_picture_seconds_count"] == 100 + RECENT


def test_reasons_are_a_fixed_set_whatever_comes() -> None:
    metrics = Metrics()
    before = set(shown(metrics))
    for reason in (*REASONS, *(f"made-up-{k}" for k in range(50))):
        metrics.refused(reason)
    after = shown(metrics)
    assert {name for name in set(after) - before if "_created" not in name} == set()
    assert after['worldloop_refusals_total{reason="other"}'] == 50


def test_every_error_of_the_package_has_a_reason_of_its_own() -> None:
    found = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, WorldloopError)
    ]
    assert len(found) > 10
    missing = {
        error.__name__
        for error in found
        if reason_of(error("x", "y") if error is errors.CheckpointError else error("x")) not in REASONS
    }
    assert missing == set()


def test_levels_are_asked_for_at_each_scrape_only() -> None:
    asked = []
    metrics = Metrics()
    metrics.watch(lambda: asked.append(1) or LEVELS)
    assert asked == []
    first = shown(metrics)
    assert len(asked) == 1
    names = ("games_live", "games_held", "pictures_queued", "requests_inflight", "start_pictures")
    assert [first[f"worldloop_{name}"] for name in names] == [1, 2, 3, 4, 5]
    assert first['worldloop_held_bytes{what="stash"}'] == 6
    assert first["worldloop_switches_total"] == 7


def test_every_metric_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "serve.md").read_text()
    metrics = Metrics()
    metrics.watch(lambda: LEVELS)
    metrics.watch_images(lambda: 0, lambda: 0)
    names = {
        family.name.removeprefix("worldloop_") + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(metrics.render().decode())
        if family.name.startswith("worldloop_") and not family.name.endswith("_created")
    }
    assert len(names) > 15
    assert sorted(name for name in names if f"`{name}" not in guide) == []
