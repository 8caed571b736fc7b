"""`/metrics` of a server with a real world behind it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from .client import Live
from .conftest import Serve


def scrape(live: Live) -> dict[str, float]:
    """Every sample by name, with the value of its one label behind a slash."""
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(live.get("/metrics").text)
        for sample in family.samples
    }


def test_a_scrape_follows_a_real_game(serve: Serve) -> None:
    live = serve(slots=2)
    before = scrape(live)
    assert before["worldloop_held_bytes/weights"] > 10_000
    assert before["worldloop_held_bytes/sessions"] == 0
    with live.playing("ann", model_id="tiny-3r", reprefill_every="2") as stream:
        stream.text("hello")
        stream.hold("w", seq=1)
        stream.text("ack")
        # A picture is counted before the next one is sent.
        while len(stream.units) < 41:
            stream.unit()
        during = scrape(live)
    assert during["worldloop_games_live"] == during["worldloop_device_sessions"] == 1
    assert during["worldloop_held_bytes/sessions"] > 1000
    assert during["worldloop_held_bytes/stash"] > 100
    assert during["worldloop_switches_total"] == before["worldloop_switches_total"] + 1
    assert during["worldloop_pictures_sent_total"] >= 40
    assert during["worldloop_reprefills_total"] > before["worldloop_reprefills_total"]
    assert during["worldloop_key_to_picture_recent_seconds/0.95"] > 0
    for stage in ("generate", "denoise", "decode", "encode", "send"):
        assert during[f"worldloop_stage_seconds_count/{stage}"] > 0
