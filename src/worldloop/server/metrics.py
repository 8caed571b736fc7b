"""Prometheus metrics of one server, in a registry of its own.

Implements `session.observer.Observer`. Shown by `GET /metrics`.
"""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from worldloop.session.observer import Stage

LATENCY_BUCKETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0)
STAGE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counters and histograms, by the names that `/metrics` shows."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._live = Gauge("worldloop_games_live", "Games being played now.", registry=self.registry)
        self._games = Counter(
            "worldloop_games", "Games that have ended, by how.", ["ending"], registry=self.registry
        )
        self._pictures = Counter(
            "worldloop_pictures_sent", "Pictures sent to players.", registry=self.registry
        )
        self._refusals = Counter(
            "worldloop_refusals",
            "Requests, sockets and messages refused, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._key_to_picture = Histogram(
            "worldloop_key_to_picture_seconds",
            "From the arrival of changed keys to the sending of the first picture made with them.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._stages = Histogram(
            "worldloop_stage_seconds",
            "Time of one stage: generate, denoise, decode, memory (a latent frame); encode, send (a picture).",
            ["stage"],
            buckets=STAGE_BUCKETS,
            registry=self.registry,
        )

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def game_opened(self) -> None:
        self._live.inc()

    def game_ended(self, kind: str) -> None:
        self._live.dec()
        self._games.labels(kind).inc()

    def picture_sent(self) -> None:
        self._pictures.inc()

    def stage(self, name: Stage, seconds: float) -> None:
        self._stages.labels(name).observe(seconds)

    def key_to_picture(self, seconds: float) -> None:
        self._key_to_picture.observe(seconds)

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)
