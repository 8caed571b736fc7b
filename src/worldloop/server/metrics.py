"""Prometheus metrics of one server, in a registry of its own.

Implements `session.observer.Observer` for what happens; what there is at a moment is asked for when `GET /metrics` is.
Nothing here touches the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worldloop.session.observer import REASONS, ImageEvent, Levels, Stage
from worldloop.session.socket import EndingKind

LATENCY_BUCKETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0)
IMAGE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STAGE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

RECENT = 256
"""Key presses that the recent quantiles are taken over."""

QUANTILES = (0.5, 0.95)


class Metrics:
    """Counters and histograms, by the names that `/metrics` shows."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._games = Counter(
            "worldloop_games", "Games that have ended, by how.", ["ending"], registry=self.registry
        )
        self._resumed = Counter(
            "worldloop_games_resumed",
            "Times that a game was taken up again, or moved to another socket.",
            registry=self.registry,
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
        self._images = Counter(
            "worldloop_images",
            "Pictures on order: queued, made, failed, or cancelled.",
            ["event"],
            registry=self.registry,
        )
        self._image_phases = Histogram(
            "worldloop_image_seconds",
            "Time of one picture on order by phase: in the queue, of the device, of writing its file.",
            ["phase"],
            buckets=IMAGE_BUCKETS,
            registry=self.registry,
        )
        self._recent: deque[float] = deque(maxlen=RECENT)
        for event in get_args(ImageEvent):
            self._images.labels(event)
        for reason in (*REASONS, "other"):
            self._refusals.labels(reason)
        ProcessCollector(registry=self.registry)

    def watch(self, levels: Callable[[], Levels]) -> None:
        """Ask `levels` at every scrape. Once."""
        self.registry.register(_AtScrape(levels, self._recent))

    def watch_images(self, waiting: Callable[[], float], kept_bytes: Callable[[], float]) -> None:
        """Ask these at every scrape. Once."""
        for name, text, ask in (
            ("worldloop_images_waiting", "Requests for pictures that wait.", waiting),
            ("worldloop_images_kept_bytes", "Main memory of finished pictures.", kept_bytes),
        ):
            Gauge(name, text, registry=self.registry).set_function(ask)

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason if reason in REASONS else "other").inc()

    def game_resumed(self) -> None:
        self._resumed.inc()

    def game_ended(self, kind: EndingKind) -> None:
        self._games.labels(kind).inc()

    def picture_sent(self) -> None:
        self._pictures.inc()

    def stage(self, name: Stage, seconds: float) -> None:
        self._stages.labels(name).observe(seconds)

    def key_to_picture(self, seconds: float) -> None:
        self._key_to_picture.observe(seconds)
        self._recent.append(seconds)

    def images(self, event: ImageEvent, count: int) -> None:
        self._images.labels(event).inc(count)

    def image_phase(self, phase: str, seconds: float) -> None:
        self._image_phases.labels(phase).observe(seconds)

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)


class _AtScrape(Collector):
    """What there is at this moment."""

    def __init__(self, levels: Callable[[], Levels], recent: deque[float]) -> None:
        self._levels, self._recent = levels, recent

    def describe(self) -> list[Metric]:
        # Else the registry would ask for everything while it registers this.
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._levels()
        host = now.host
        yield GaugeMetricFamily("worldloop_ready", "1 while games may begin, as /readyz.", int(now.ready))
        yield GaugeMetricFamily("worldloop_games_live", "Games with an open socket.", now.live)
        yield GaugeMetricFamily("worldloop_games_held", "Games that wait for a broken socket.", now.held)
        yield GaugeMetricFamily(
            "worldloop_pictures_queued", "Pictures that are made and not sent yet.", now.pictures
        )
        yield GaugeMetricFamily(
            "worldloop_requests_inflight", "Uploads and switches under way.", now.requests
        )
        yield GaugeMetricFamily("worldloop_start_pictures", "Encoded start pictures that wait.", now.stash)
        yield GaugeMetricFamily("worldloop_device_sessions", "Sessions on the device.", host.sessions)
        yield GaugeMetricFamily("worldloop_device_inputs_queued", "Inputs that wait there.", host.queued)
        yield GaugeMetricFamily(
            "worldloop_device_load", "Share of the device's time that games need to keep up.", host.load
        )
        held = {"weights": host.weights_bytes, "sessions": host.session_bytes, "stash": now.stash_bytes}
        yield _labelled("worldloop_held_bytes", "Bytes held, by what for.", "what", held)
        yield CounterMetricFamily("worldloop_switches", "Changes of the model.", host.switches)
        yield CounterMetricFamily("worldloop_reprefills", "Rebuilds of a game's memory.", host.reprefills)
        yield CounterMetricFamily(
            "worldloop_drift_reprefills", "Those because the dream had drifted.", host.drift_reprefills
        )
        yield _labelled(
            "worldloop_key_to_picture_recent_seconds",
            f"Quantiles of key to picture over the latest {RECENT} key presses.",
            "quantile",
            {f"{share:g}": _quantile(self._recent, share) for share in QUANTILES},
        )


def _labelled(name: str, text: str, label: str, values: dict[str, int] | dict[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _quantile(values: deque[float], share: float) -> float:
    """The nearest rank; NaN when there is nothing, as Prometheus has it."""
    if not values:
        return float("nan")
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
