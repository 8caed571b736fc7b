"""The benches: what they compute from what they measure, and that each runs to its end on a tiny world."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worldloop.core.clock import ManualClock
from worldloop.engine import engine as engine_module
from worldloop.host import WorldHost
from worldloop.loops.model import WorldModel
from worldloop.loops.video_model import VideoModel
from worldloop.loops.world import WorldLoop
from worldloop.testing import random_model, random_video_model, tiny_picture, tiny_world

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bench() -> Any:
    """Imports a bench by name; they are no part of the package."""
    sys.path.insert(0, str(ROOT))
    yield lambda name: importlib.import_module(f"bench.{name}")
    sys.path.remove(str(ROOT))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Time that only passes takes: 10 ms of a world, 12 ms of several at once, 30 ms of a video."""
    clock = ManualClock()

    def slowed(owner: type, name: str, seconds: float) -> None:
        original = getattr(owner, name)

        def run(self: Any, what: Any, *rest: Any, **named: Any) -> Any:
            clock.shift(0.0 if name == "run_passes" and len(what) == 1 else seconds)
            return original(self, what, *rest, **named)

        monkeypatch.setattr(owner, name, run)

    slowed(WorldModel, "run_pass", 0.010)
    slowed(WorldModel, "run_passes", 0.012)
    slowed(VideoModel, "run_pass", 0.030)
    return clock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_world(tmp_path_factory.mktemp("tiny"), latent_hw=(6, 10))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_percentile_is_one_of_the_values(bench: Any) -> None:
    percentile = bench("report").percentile

    assert [percentile([4, 1, 3, 2], p) for p in (50, 75, 95, 100)] == [2, 3, 4, 4]
    assert percentile([], 50) != percentile([], 50), "NaN"


def test_the_roofline_takes_the_slower_of_the_two_limits(bench: Any) -> None:
    roofline = bench("roofline").Roofline(multiply_adds=100.0, shape=(1, 1, 1), bytes_read=10.0)

    assert roofline.seconds(200, 10) == 2.0
    assert roofline.seconds(200, 50) == 5.0


def test_a_roofline_is_measured(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench("roofline"), "SHAPES", ((8, 8, 8), (64, 64, 64)))

    found = bench("roofline").measure(torch.float32, torch.device("cpu"), copy_mb=1)

    assert found.shape == (64, 64, 64)
    assert found.multiply_adds > 1e6
    assert found.bytes_read > 1e6


def test_the_step_bench_writes_its_numbers_and_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "step.json"

    answer = run("bench.step", "--size", "tiny", "--frames", "2", "--threads", "1", "--json", str(file))

    assert answer.returncode == 0, answer.stderr
    report = json.loads(file.read_text())
    assert set(report["environment"]) >= {"cpu", "cores", "threads", "torch", "dtype", "commit", "load"}
    result = report["result"]
    assert result["frame_ms"] == pytest.approx(result["passes_ms"] + result["decode_ms"], rel=0.2)
    assert 0 < result["passes_share"] < 1
    assert "share of the roofline: passes" in answer.stdout


def test_an_unknown_size_is_refused() -> None:
    answer = run("bench.step", "--size", "huge")

    assert answer.returncode == 2
    assert "must be one of" in answer.stderr


def test_the_play_bench_plays_a_real_game(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "play.json"

    answer = run("bench.play", "--world", str(folder), "--seconds", "2", "--fast", "1", "--json", str(file))

    assert answer.returncode == 0, answer.stderr
    result = json.loads(file.read_text())["result"]
    assert result["decoded"] == result["pictures"] > 60
    assert result["keys"] >= 1
    assert 0 < result["key_to_picture_p50_ms"] <= result["key_to_picture_p95_ms"]
    assert all(result[f"{stage}_ms"] > 0 for stage in ("model", "decode", "encode", "memory"))
    assert result["server_peak_bytes"] > 50 * 2**20


def test_stages_are_read_from_the_metrics_and_counted_by_latent(bench: Any) -> None:
    text = "\n".join(
        f'worldloop_stage_seconds_{kind}{{stage="{stage}"}} {value}'
        for stage, total, count in (
            ("generate", 1.0, 10), ("denoise", 0.5, 10), ("decode", 0.2, 10), ("memory", 0.1, 10),
            ("encode", 0.4, 40), ("send", 0.04, 40),
        )
        for kind, value in (("sum", total), ("count", float(count)))
    )  # fmt: skip
    after = bench("play").parse_stages(text)

    result = bench("play").summary({}, after, [0.1, 0.3])

    assert after["encode"] == (0.4, 40.0)
    assert result["latents"] == 10
    assert [round(result[f"{name}_ms"], 6) for name in ("model", "decode", "encode", "else")] == [
        60,
        20,
        40,
        34,
    ]
    assert result["key_to_picture_p50_ms"] == 100


def test_a_long_game_keeps_its_size(bench: Any, folder: Path) -> None:
    host = WorldHost.open(str(folder), dtype="fp32", threads=1, on_table_end="reprefill")
    try:
        found = bench("endurance").endure(host, latents=400)
    finally:
        host.close()

    assert (len(found.seconds), len(found.late), len(found.young)) == (400, 100, 100)
    assert found.session[0] == found.session[1] > 0
    assert abs(found.resident[1] / found.resident[0] - 1) < 0.05


def test_a_target_is_met_below_its_limit_only(bench: Any) -> None:
    target = bench("report").Target

    found = [target(name="p99", found=value, limit=50, unit="ms") for value in (49.9, 50, float("nan"))]

    assert [each.met for each in found] == [True, False, False]
    assert str(found[0]) == "49.90 ms, target below 50 ms: met"
    assert str(found[1]) == "50.00 ms, target below 50 ms: MISSED"


def test_a_thread_is_told_from_its_process(bench: Any) -> None:
    report = bench("report")
    begun, stop, ids = threading.Event(), threading.Event(), []

    def wait() -> None:
        ids.append(threading.get_native_id())
        begun.set()
        stop.wait(10)

    other = threading.Thread(target=wait)
    other.start()
    begun.wait(10)
    before = report.thread_seconds(os.getpid(), threading.get_native_id())
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass

    assert report.thread_seconds(os.getpid(), threading.get_native_id()) - before > 0.05
    assert report.thread_seconds(os.getpid(), ids[0]) < 0.05
    stop.set()
    other.join()


def test_the_servers_share_is_a_part_of_what_a_frame_costs(bench: Any) -> None:
    spent = {"latents": 100.0, "model_ms": 30.0, "decode_ms": 5.0, "encode_ms": 10.0}

    found = bench("serve").cost(spent, 0.5)

    assert (found["loop_ms"], found["frame_ms"]) == (5.0, 50.0)
    assert (found["server_percent"], found["server_and_encoder_percent"]) == (10.0, 30.0)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"status_p99_ms": 51.0}, ["GET /status, p99, 2 players"]),
        ({"server_percent": 10.1}, ["server's share of a frame, 2 players"]),
        ({"growth_percent": 2.1}, ["memory of the process, 50 to 2000 games"]),
    ],
)
def test_what_the_serve_bench_misses_is_named(
    changes: dict[str, float], missed: list[str], bench: Any
) -> None:
    good = {"status_p99_ms": 49.0, "server_percent": 9.9}
    many = {"settled": 50, "games": 2000, "growth_percent": 1.9}

    found = bench("serve").targets({1: good, 2: {**good, **changes}}, {**many, **changes})

    assert len(found) == 5
    assert [target.name for target in found if not target.met] == missed


def test_the_serve_bench_serves_one_two_and_many(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "serve.json"

    answer = run("bench.serve", "--world", str(folder), "--quick", "--threads", "1", "--json", str(file))

    assert answer.returncode == 0, answer.stderr
    result = json.loads(file.read_text())["result"]
    for figures in result["players"].values():
        assert figures["pictures_per_s"] > 0
        assert 0 < figures["status_p50_ms"] <= figures["status_p99_ms"]
        parts = [figures[f"{part}_ms"] for part in ("model", "decode", "encode", "loop")]
        assert figures["frame_ms"] == pytest.approx(sum(parts))
        assert 0 < figures["server_percent"] < figures["server_and_encoder_percent"] < 100
    assert (result["many"]["games"], result["many"]["uploads"]) == (6, 6)
    assert all(size > 50 * 2**20 for size in result["many"]["memory_bytes"])
    assert "memory after 2 / 6 games" in answer.stdout


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"resident": (1000, 1011)}, ["memory of the process changed by +1.10%, allowed 1%"]),
        ({"session": (1000, 989)}, ["memory of the session changed by -1.10%, allowed 1%"]),
        ({"late": (0.112,) * 100}, ["time of a latent changed by +12.00%, allowed 10%"]),
    ],
)
def test_growth_and_slowing_down_are_found(changes: dict[str, Any], says: list[str], bench: Any) -> None:
    times = {"seconds": (0.1,) * 400, "late": (0.1,) * 100, "young": (0.1,) * 100}
    flat = {**times, "resident": (1000, 1009), "session": (1000, 1000)}

    assert bench("endurance").Endurance(**{**flat, **changes}).missed() == says


def test_a_short_game_shows_nothing_and_is_refused(bench: Any) -> None:
    with pytest.raises(ValueError, match="latents=399 must be at least 400"):
        bench("endurance").endure(None, latents=399)


def test_equality_with_a_card_is_a_bound_that_another_world_breaks(bench: Any, tmp_path: Path) -> None:
    gpu, cpu = bench("gpu"), torch.device("cpu")
    folder = tiny_world(tmp_path)
    once, again = (gpu.play_on(folder, cpu, "fp32") for _ in range(2))
    rounded = gpu.play_on(folder, cpu, "bf16")
    other = gpu.play_on(folder, cpu, "fp32", seed=2)

    assert gpu.difference(once, again) == gpu.Difference(largest=0.0, mean=0.0)
    assert not gpu.difference(once, rounded).within((0.0, 0.0))
    assert gpu.difference(once, rounded).within(gpu.BOUNDS["bf16"])
    assert not gpu.difference(once, other).within(gpu.BOUNDS["bf16"])
    with pytest.raises(ValueError, match="9 and 0 chunks"):
        gpu.difference(once, [])


def test_every_way_to_run_a_step_makes_a_row_or_says_why_not(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, cpu = bench("gpu"), torch.device("cpu")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    limits = bench("roofline").Roofline(multiply_adds=1e9, shape=(1, 1, 1), bytes_read=1e9)
    checks = dict(gpu.step_checks("tiny", cpu, limits, frames=1, compiled=True))
    later = time.monotonic() + 600
    rows = [gpu.guarded(name, make, later) for name, make in checks.items()]

    assert len(rows) == len(gpu.WAYS)
    assert "error 0.00%" in rows[0]
    for (name, (precision, how)), row in zip(gpu.WAYS.items(), rows, strict=True):
        assert row.startswith(f"| one latent frame, tiny, {name} |")
        assert ("needs a CUDA device" in row) == row.endswith("| NO |") == how.records
        if precision.fp8 != "off" and not how.records:
            assert 0.1 < float(row.split("error ")[1].split("%")[0]) < 20
    assert "no time left" in gpu.guarded("late", checks.popitem()[1], time.monotonic() - 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_the_gpu_check_says_so() -> None:
    answer = subprocess.run(
        ["bash", "bench/gpu_check.sh"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )

    assert answer.returncode == 3
    assert answer.stdout == ""
    assert answer.stderr == "gpu check: no CUDA device on this machine; nothing was run\n"


def test_players_of_the_engine_bench_get_what_the_passes_take(bench: Any, slow: ManualClock) -> None:
    engine = bench("engine")
    clock, loop = engine.Time(now=slow.monotonic, wait=slow.shift), WorldLoop(random_model())

    few, many = (engine.play_players(loop, players, 4.0, clock) for players in (1, 4))

    assert few["exact"] == pytest.approx(few["fast"])
    assert few["exact"]["device_ms"] == pytest.approx(40, rel=0.01), "less what was left at the end"
    assert few["exact"]["frame_p50_ms"] == pytest.approx(30)
    assert few["exact"]["frame_p95_ms"] == pytest.approx(30)
    assert few["exact"]["keys"] > 2
    assert 30 < few["exact"]["key_to_picture_p50_ms"] < few["exact"]["key_to_picture_p95_ms"] < 114.3 + 30
    assert few["exact"]["pictures_per_s"] == pytest.approx(35, rel=0.05)
    assert (few["exact"]["late_percent"], few["exact"]["plans_a_call"]) == (0, 1)
    assert many["exact"]["late_percent"] > 50, "four need 160 ms of each 114"
    assert many["exact"]["device_percent"] > 99
    assert many["exact"]["pictures_per_s"] == pytest.approx(4 / 0.160, rel=0.05)
    assert many["fast"]["plans_a_call"] > 1.2
    assert many["fast"]["pictures_per_s"] > 1.1 * many["exact"]["pictures_per_s"]


def test_a_change_of_keys_does_not_wait_while_the_other_mode_has_its_turn(
    bench: Any, slow: ManualClock
) -> None:
    shown: list[Any] = []
    handle = SimpleNamespace(waiting=0, submit=lambda controls, due: shown.append(controls))
    player = bench("engine").Player(handle=handle, seed=1, now=slow.monotonic)
    player.changes_at, player.asks_at = slow.monotonic(), slow.monotonic() + 1
    player.act()
    slow.shift(50)
    player.pause(50)
    slow.shift(1)
    player.act()
    player._there(None)

    assert len(shown) == 1
    assert 1 in [pytest.approx(seconds) for seconds in player.seen_after]
    assert max(player.seen_after) < 2


def test_a_job_takes_one_unit_of_a_frame_at_most_and_more_where_nothing_is_urgent(
    bench: Any, slow: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench("engine")
    clock, loop, video = (
        engine.Time(now=slow.monotonic, wait=slow.shift),
        WorldLoop(random_model()),
        random_video_model(),
    )

    right = engine.play_beside(loop, video, 4.0, clock)
    monkeypatch.setattr(engine_module, "pick", lambda ready, largest: [min(ready, key=lambda c: c.last_tick)])
    wrong = engine.play_beside(loop, video, 4.0, clock)

    assert right["largest_unit_ms"] == pytest.approx(30)
    assert right["units_in_a_frame"] == 1
    assert 15 < right["largest_delay_ms"] <= 30.001
    assert right["beside_frame_p95_ms"] <= 60.001
    assert right["alone_frame_p95_ms"] == pytest.approx(30)
    assert min(right["frames"], right["units"], right["chunks"]) > 10
    assert wrong["units_in_a_frame"] >= 3  # control
    assert wrong["delay_over_unit"] > 2


def test_what_other_work_takes_of_a_frame_is_what_falls_into_it(bench: Any) -> None:
    delays = bench("engine").delays

    assert delays((1.0, 2.0), [(0.0, 0.9), (0.5, 1.2), (1.5, 1.6), (1.9, 3.0), (2.0, 4.0)]) == pytest.approx(
        [0.2, 0.1, 0.1]
    )


def test_the_engine_bench_measures_players_a_job_and_the_engine_itself(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.json"

    answer = run("bench.engine", "--world", str(folder), "--quick", "--threads", "1", "--json", str(file))

    assert answer.returncode == 0, answer.stderr
    result = json.loads(file.read_text())["result"]
    for mode in ("exact", "fast"):
        figures = result["players"]["2"][mode]
        assert min(figures["frames"], figures["keys"]) > 0
        assert 0 < figures["frame_p50_ms"] <= figures["frame_p95_ms"]
        assert 0 < figures["key_to_picture_p50_ms"] <= figures["key_to_picture_p95_ms"]
    assert result["players"]["2"]["exact"]["plans_a_call"] == 1
    assert min(result["job"]["frames"], result["job"]["units"]) > 0
    assert result["job"]["units_in_a_frame"] <= 1
    assert all(each["plan_us"] > each["nothing_us"] > 0 for each in result["choosing"].values())
    assert "largest delay of a frame" in answer.stdout


def test_the_picture_bench_tells_what_a_pass_costs_and_what_is_in_a_frames_way(
    folder: Path, tmp_path: Path
) -> None:
    file, model = tmp_path / "picture.json", tiny_picture(tmp_path / "pictures")

    answer = run(
        "bench.picture",
        "--world",
        str(folder),
        "--picture",
        str(model),
        "--quick",
        "--threads",
        "1",
        "--json",
        str(file),
    )

    assert answer.returncode == 0, answer.stderr
    result = json.loads(file.read_text())["result"]
    (alone,) = result["alone"].values()
    assert alone["passes"] == 6
    assert alone["picture_ms"] > 6 * alone["pass_ms"] * 0.5
    beside = result["beside"]
    assert beside["frames"] > 2
    assert beside["units_in_a_frame"] <= 2
    assert "at most" in answer.stdout
