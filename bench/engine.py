"""Many games on one engine, and a long job beside a game: `python -m bench.engine`.

    players    games that ask for a frame every 4/35 s, due 4/35 s later, in mode exact and in mode fast
    job        a video without an end beside one game, against the same game without it
    choosing   what the engine itself takes: to choose a plan, to find nothing to do, to wait

No server, no encoder. The bench ticks the engine and plays the players, so one thread computes, and whatever is
compared takes turns in one process. An input that comes while a plan runs is taken after it, as on the engine's own
thread, and its time counts from when it came.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.report import Row, environment, percentile, publish
from worldloop.core.memory import lasting
from worldloop.core.types import Controls, LiveControls
from worldloop.engine.contract import Emit, Op, Plan, Result
from worldloop.engine.engine import Engine
from worldloop.engine.handle import Handle
from worldloop.loops.model import WorldModel
from worldloop.loops.timing import STREAM_FPS
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import VideoRequest
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.models.autoencoder import GROUP
from worldloop.models.causal import CausalConfig
from worldloop.models.device import pick_device, set_threads, synchronize
from worldloop.models.precision import Precision
from worldloop.models.registry import find_world, scan
from worldloop.testing import WALKING, random_model, random_video_model

FRAME_S = GROUP / STREAM_FPS
HOLD_S = (0.4, 1.2)
ROUNDS = 4
"""Turns that each side of a comparison takes."""
MODES = {"exact": 1, "fast": 32}
SESSIONS = (1, 8, 64)
IDLE = 64
MOMENT_S = 1e-6
"""The shortest wait; less could be lost in rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """Where times and waits come from, both in seconds."""

    now: Callable[[], float] = time.perf_counter
    wait: Callable[[float], None] = time.sleep


@dataclass(kw_only=True)
class Player:
    """Asks for the next frame when the last one's pictures begin to play; changes keys by a seeded schedule.

    Attributes:
        asks_at, changes_at: when it next does; first at a random moment of a frame.
        frames: (asked, there) of every frame.
        late: how many were not there when they were due.
        seen_after: seconds from each change of keys to the frame that shows it.
    """

    handle: Handle[WorldState]
    seed: int
    now: Callable[[], float]
    frames: list[tuple[float, float]] = field(default_factory=list)
    late: int = 0
    seen_after: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._held = ""
        self._live = LiveControls(Controls())
        self._asked = 0.0
        self._shown: list[float] = []
        """Changes that the frame in the making shows, and those that the next will."""
        self._unshown: list[float] = []
        self.handle.on_emit = self._there
        self.asks_at = self.now() + self._draw.uniform(0, FRAME_S)
        self.changes_at = self.asks_at + self._draw.uniform(0, HOLD_S[0])

    @property
    def acts_at(self) -> float:
        """When it next does something by itself."""
        return self.changes_at if self.handle.waiting else min(self.asks_at, self.changes_at)

    def pause(self, seconds: float) -> None:
        """The time did not count."""
        self.asks_at += seconds
        self.changes_at += seconds
        self._unshown = [change + seconds for change in self._unshown]

    def act(self) -> None:
        """Do what is to be done by now."""
        while self.changes_at <= self.now():
            self._held = self._draw.choice([key for key in WALKING if key != self._held])
            in_time = self.handle.waiting and self._live.replace(self._controls())
            (self._shown if in_time else self._unshown).append(self.changes_at)
            self.changes_at += self._draw.uniform(*HOLD_S)
        if not self.handle.waiting and self.asks_at <= self.now():
            self._asked = self.asks_at
            self._live = LiveControls(self._controls())
            self._shown, self._unshown = self._unshown, []
            self.handle.submit(self._live, due=self._asked + FRAME_S)

    def _controls(self) -> Controls:
        return Controls(pressed=frozenset(self._held), fps=12.0)

    def _there(self, _: Emit) -> None:
        now, due = self.now(), self._asked + FRAME_S
        self.frames.append((self._asked, now))
        self.late += now > due
        self.seen_after += [now - change for change in self._shown]
        self._shown = []
        self.asks_at = max(due, now)


class Games:
    """Games with full memories on one engine, played in turns.

    Args:
        largest: sessions in a batch, as the engine's.
    """

    def __init__(self, loop: WorldLoop, players: int, *, largest: int, time: Time) -> None:
        self._time = time
        self.engine = Engine(threaded=False, timer=time.now, largest_batch=largest)
        handles = [self.engine.open(loop, request(loop.model, seed)) for seed in range(players)]
        for handle in handles:
            for _ in range(loop.model.config.model.summary_window_frames + 2):
                handle.submit(Controls())
        while self.engine.tick():
            pass
        self.players = [Player(handle=handle, seed=seed, now=time.now) for seed, handle in enumerate(handles)]
        self._elapsed, self._ended = 0.0, time.now()
        self._spent = dict.fromkeys(("busy_s", "choosing_s", "plans", "batches"), 0.0)

    def play(self, seconds: float) -> None:
        """One turn; the frames that are asked for by its end are made, too."""
        before = {name: getattr(self.engine, name) for name in self._spent}
        began = self._time.now()
        for player in self.players:
            player.pause(began - self._ended)
        while (now := self._time.now()) < began + seconds:
            for player in self.players:
                player.act()
            if not self.engine.tick():
                soonest = min(player.acts_at for player in self.players)
                self._time.wait(max(MOMENT_S, min(soonest, began + seconds) - now))
        while any(player.handle.waiting for player in self.players):
            self.engine.tick()
        self._ended = self._time.now()
        self._elapsed += self._ended - began
        for name, value in before.items():
            self._spent[name] += getattr(self.engine, name) - value

    def figures(self) -> dict[str, float]:
        """Of all turns, times in milliseconds."""
        frames = [there - asked for player in self.players for asked, there in player.frames]
        keys = [seconds for player in self.players for seconds in player.seen_after]
        spent = self._spent
        return {
            "frames": len(frames),
            "keys": len(keys),
            "device_ms": 1000 * spent["busy_s"] / len(frames),
            "frame_p50_ms": 1000 * percentile(frames, 50),
            "frame_p95_ms": 1000 * percentile(frames, 95),
            "key_to_picture_p50_ms": 1000 * percentile(keys, 50),
            "key_to_picture_p95_ms": 1000 * percentile(keys, 95),
            "late_percent": 100 * sum(player.late for player in self.players) / len(frames),
            "pictures_per_s": GROUP * len(frames) / self._elapsed / len(self.players),
            "device_percent": 100 * spent["busy_s"] / self._elapsed,
            "choosing_percent": 100 * spent["choosing_s"] / spent["busy_s"],
            "plans_a_call": spent["plans"] / spent["batches"],
        }


def request(model: WorldModel, seed: int) -> WorldRequest:
    """A game from a start picture of random latents."""
    latent = torch.randn(1, *model.latent_shape, generator=torch.Generator().manual_seed(seed))
    return WorldRequest(latent=latent.to(model.device), seed=seed)


def play_players(loop: WorldLoop, players: int, seconds: float, time: Time) -> dict[str, dict[str, float]]:
    """Figures of both modes, which take turns."""
    games = {mode: Games(loop, players, largest=largest, time=time) for mode, largest in MODES.items()}
    for _ in range(ROUNDS):
        for each in games.values():
            each.play(seconds / ROUNDS)
    return {mode: each.figures() for mode, each in games.items()}


class Watched(VideoLoop):
    """A video loop that keeps when each of its units ran, as (began, ended)."""

    def __init__(self, model: VideoModel, now: Callable[[], float]) -> None:
        super().__init__(model)
        self.units: list[tuple[float, float]] = []
        self._now = now

    @property
    def ops(self) -> Mapping[str, Op]:
        return {name: self._watch(op) for name, op in super().ops.items()}

    def _watch(self, op: Op) -> Op:
        def run(plan: Plan) -> Result:
            began = self._now()
            result = op(plan)
            synchronize(self.model.device)
            self.units.append((began, self._now()))
            return result

        return run


def play_beside(loop: WorldLoop, video: VideoModel, seconds: float, time: Time) -> dict[str, float]:
    """One game alone and beside an endless video, in turns; times in milliseconds."""
    alone, beside = (Games(loop, 1, largest=1, time=time) for _ in range(2))
    watched = Watched(video, time.now)
    chunks = 0

    def count(_: Emit) -> None:
        nonlocal chunks
        chunks += 1

    for _ in range(ROUNDS):
        alone.play(seconds / ROUNDS)
        job = beside.engine.open(watched, VideoRequest(prompt=video.encode_text("walk"), seed=1))
        job.on_emit = count
        beside.play(seconds / ROUNDS)
        job.close()
        beside.engine.tick()
    units = [ended - began for began, ended in watched.units]
    inside = [delays(frame, watched.units) for frame in beside.players[0].frames]
    largest = max(units, default=math.nan)
    without, with_job = alone.figures(), beside.figures()
    return {
        "frames": len(inside),
        "units": len(units),
        "chunks": chunks,
        "largest_unit_ms": 1000 * largest,
        "median_unit_ms": 1000 * percentile(units, 50),
        "largest_delay_ms": 1000 * max(sum(each) for each in inside),
        "median_delay_ms": 1000 * percentile([sum(each) for each in inside], 50),
        "units_in_a_frame": max(len(each) for each in inside),
        "delay_over_unit": max(sum(each) for each in inside) / largest,
        **{f"alone_{name}": without[name] for name in ("frame_p50_ms", "frame_p95_ms", "late_percent")},
        **{f"beside_{name}": with_job[name] for name in ("frame_p50_ms", "frame_p95_ms", "late_percent")},
    }


def delays(frame: tuple[float, float], units: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds that each unit of other work took of a frame's time, from when it was asked for until it was there."""
    asked, there = frame
    shared = [min(ended, there) - max(began, asked) for began, ended in units]
    return [seconds for seconds in shared if seconds > 0]


def choosing(loop: WorldLoop, sessions: int, plans: int, time: Time) -> dict[str, float]:
    """Microseconds that the engine takes to choose a plan while all sessions have work, and to find none."""
    engine = Engine(threaded=False, timer=time.now)
    handles = [engine.open(loop, request(loop.model, seed)) for seed in range(sessions)]
    while engine.plans < plans:
        for handle in handles:
            if not handle.waiting:
                handle.submit(Controls())
        engine.tick()
    chosen = engine.choosing_s / engine.plans
    while engine.tick():
        pass
    began = time.now()
    for _ in range(plans):
        engine.tick()
    return {"plan_us": 1e6 * chosen, "nothing_us": 1e6 * (time.now() - began) / plans}


def idle_percent(loop: WorldLoop, sessions: int, seconds: float) -> float:
    """Processor time of this process while an engine's own thread waits, in percent of one core."""
    engine = Engine()
    try:
        for seed in range(sessions):
            engine.open(loop, request(loop.model, seed))
        before = time.process_time()
        time.sleep(seconds)
        return 100 * (time.process_time() - before) / seconds
    finally:
        engine.close()


def load(world: str, dtype: str = "auto") -> WorldModel:
    """A world's first checkpoint, as it is served."""
    registry = scan(find_world(world))
    entry = registry.entries[registry.default()]
    device = pick_device()
    precision = Precision.choose(dtype=dtype, device=device)
    model = WorldModel.load(entry.path, registry.autoencoder, device=device, precision=precision)
    model.config = entry.config
    return model


def video_model(size: str, world: WorldModel) -> VideoModel:
    """Random weights of a named size, on the world's device, in its format and at its size of picture."""
    config = CausalConfig.named(size, vocabulary=("walk",))
    facts: dict[str, Any] = {"chunk_frames": 3, "window_frames": 21, "sink_frames": 0, "steps": 4}
    return random_video_model(
        config, dtype=world.dtype, device=world.device, latent_hw=world.config.model.latent_hw, **facts
    )


def rows(result: dict[str, Any]) -> list[Row]:
    """For people."""
    found: list[Row] = []
    for players, modes in result["players"].items():
        for mode, each in modes.items():
            found.append(
                (
                    f"{players} players, {mode}",
                    f"frame {each['frame_p50_ms']:.1f} / {each['frame_p95_ms']:.1f} ms, key to picture "
                    f"{each['key_to_picture_p50_ms']:.0f} / {each['key_to_picture_p95_ms']:.0f} ms, "
                    f"late {each['late_percent']:.1f}%, {each['pictures_per_s']:.1f} pictures/s each, "
                    f"{each['plans_a_call']:.2f} plans a call, device {each['device_percent']:.0f}%",
                )
            )
    job = result["job"]
    for which in ("alone", "beside"):
        p50, p95, late = (job[f"{which}_{name}"] for name in ("frame_p50_ms", "frame_p95_ms", "late_percent"))
        found.append((f"one game {which}", f"frame {p50:.1f} / {p95:.1f} ms, late {late:.1f}%"))
    found += [
        ("the job beside it", f"{job['units']} units, {job['chunks']} chunks"),
        (
            "largest delay of a frame / largest unit",
            f"{job['largest_delay_ms']:.1f} / {job['largest_unit_ms']:.1f} ms = {job['delay_over_unit']:.2f}, "
            f"at most {job['units_in_a_frame']} unit(s) of it in a frame",
        ),
    ]
    for sessions, each in result["choosing"].items():
        found.append(
            (
                f"{sessions} sessions: a plan is chosen in",
                f"{each['plan_us']:.0f} us; nothing to do is found in {each['nothing_us']:.0f} us",
            )
        )
    return [*found, (f"{IDLE} sessions that wait", f"{result['idle_percent']:.2f}% of a core")]


def main(
    players: Annotated[list[int] | None, typer.Option(min=1, help="Games at once; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of play, for each mode and number.")] = 10.0,
    world: Annotated[str, typer.Option(help="A shipped world's name, or a path.")] = "meadow",
    video: Annotated[str, typer.Option(help="Named size of the job's video model.")] = "embedded",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds, to see that it runs.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Play many games on one engine, and one beside a video."""
    set_threads(threads)
    clock, model = Time(), load(world)
    counts = players or ([2] if quick else [1, 2, 4, 8])
    each_s, plans, waits_s = (1.2, 64, 0.1) if quick else (seconds, 512, 2.0)
    loop, small = WorldLoop(model), WorldLoop(random_model("tiny", device=model.device))
    job = video_model("tiny" if quick else video, model)
    with lasting():  # as a server does: no frame waits for a look through every module
        result = {
            "players": {count: play_players(loop, count, each_s, clock) for count in counts},
            "job": play_beside(loop, job, each_s, clock),
            "choosing": {sessions: choosing(small, sessions, plans, clock) for sessions in SESSIONS},
            "idle_percent": idle_percent(small, IDLE, waits_s),
        }
    publish(f"engine: {world}", environment(dtype=model.dtype), rows(result), result, json_file)


if __name__ == "__main__":
    typer.run(main)
