"""Every knob of the settings reaches what it turns."""

from __future__ import annotations

import inspect
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import worldloop
from worldloop.core.errors import InvalidInputError
from worldloop.core.settings import Settings
from worldloop.host import WorldHost
from worldloop.loops import served as served_module
from worldloop.models.memory import Recency
from worldloop.models.registry import Rules
from worldloop.session.host import GameOptions
from worldloop.testing import tiny_world

SOURCES = Path(worldloop.__file__).parent
PICTURE = np.zeros((48, 64, 3), np.uint8)
CHANGED: dict[str, Any] = {
    "world": "elsewhere", "default_model_id": "latest", "device": "cpu", "dtype": "fp32", "decoder_dtype": "fp32",
    "compile": "default", "compile_decoder": "default", "compile_dynamic": True, "recompile_limit": 9,
    "fp8_linears": "row", "threads": 3, "reprefill_every": 9, "rope_table_len": 99, "on_table_end": "stop",
    "drift_limit": 2.5, "recency_enabled": False, "serve_recency": {"beta": 1.0}, "serve_window_frames": 4,
    "warmup": False, "warmup_frames": 3, "profile_frames": 4, "profile_dir": "there", "batching": "fast",
    "load_limit": 0.5, "memory_limit_mib": 100, "rewind_s": 3.0, "rewind_bytes": 1000,
}  # fmt: skip
"""A value that is not the default, for each knob of a host."""
OF_THE_SERVER = {"seed", "nfe_max", "profile_exit"}
"""Knobs beside them that a host has no use for."""


def asked(monkeypatch: pytest.MonkeyPatch, **flags: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `from_settings` opens."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    with monkeypatch.context() as patch:
        patch.setattr(WorldHost, "open", lambda *args, **choices: seen.append((args, choices)))
        WorldHost.from_settings(Settings.load(**flags))
    return seen[0]


def test_no_knob_of_a_host_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(Settings.model_fields)
    served = set(names[: names.index("slots")])
    untouched = asked(monkeypatch)

    assert served == set(CHANGED) | OF_THE_SERVER
    for name, value in CHANGED.items():
        assert asked(monkeypatch, **{name: value}) != untouched, f"{name} changes nothing"
    for name in OF_THE_SERVER:
        assert asked(monkeypatch, **{name: True if name == "profile_exit" else 5}) == untouched


def test_opening_has_the_same_knobs_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    _, given = asked(monkeypatch)
    takes = {
        name: p.default for name, p in inspect.signature(WorldHost.open).parameters.items() if name != "world"
    }

    # In Python nobody waits for pictures at a rate.
    assert given | {"rate": 0.0, "load_limit": 0.0} == takes
    assert (given["rate"], given["load_limit"]) == (8.75, 1.25)


def test_every_setting_is_read_somewhere() -> None:
    texts = [
        path.read_text(encoding="utf-8")
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).as_posix() != "core/settings.py"
    ]

    def read(name: str) -> bool:
        return any(re.search(rf"settings\.{name}\b|\"{name}\"", text) for text in texts)

    assert [name for name in Settings.model_fields if not read(name)] == []
    assert not read("no_such_setting")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_world(tmp_path, name="a-rec-3r")
    return tiny_world(tmp_path, name="b-3r", seed=1, step=9)


def test_what_is_asked_for_is_what_is_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(served_module, "warm_up", lambda _, *, frames, seen: warmed.append(frames))
    threads = torch.get_num_threads()
    bias = {"flat_until": 0, "decay_end": 4, "beta": 2.0, "gamma": 1.0}
    settings = Settings.load(
        world=str(folder), device="cpu", dtype="fp32", threads=1, rope_table_len=99, serve_window_frames=4,
        serve_recency=bias, reprefill_every=9, drift_limit=2.5, on_table_end="stop", warmup_frames=3,
    )  # fmt: skip
    host = WorldHost.from_settings(settings)
    try:
        game = host.start(host.encode(PICTURE), options=GameOptions(), seed=1)
        state, model = game.state, host.model
        assert state is not None
        assert torch.get_num_threads() == 1
        assert (model.device.type, model.dtype) == ("cpu", torch.float32)
        assert (model.config.model.rope_table_len, model.config.model.summary_window_frames) == (99, 4)
        assert state.memory.recency == Recency(**bias)
        assert state.request.reprefill_every == 9
        assert (state.request.drift_limit, state.request.on_table_end) == (2.5, "stop")
        assert warmed == [3]
        assert host.active_model_id == "a-rec-3r"
    finally:
        host.close()
        torch.set_num_threads(threads)


def test_the_other_value_of_each_is_served_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(served_module, "warm_up", lambda _, *, frames, seen: warmed.append(frames))
    settings = Settings.load(
        world=str(folder), device="cpu", dtype="bf16", threads=1, recency_enabled=False, warmup=False,
        default_model_id="latest",
    )  # fmt: skip
    host = WorldHost.from_settings(settings)
    try:
        details = host.describe()["details"]
        assert (host.active_model_id, host.default_model_id) == ("b-3r", "b-3r")
        assert (host.model.dtype, host.model.network.dtype) == (torch.bfloat16, torch.bfloat16)
        assert {entry["recency_source"] for entry in details.values()} == {"off (disabled)"}
        assert warmed == []
    finally:
        host.close()


def test_the_start_says_every_checkpoint_in_one_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "worldloop.loops.served"):
        rules = {"window": 4, "serve_recency": Recency(flat_until=0, decay_end=4, beta=2.0, gamma=1.0)}
        WorldHost.open(str(folder), dtype="fp32", threads=1, warmup=False, **rules).close()

    lines = [(r.message, r.fields["id"]) for r in caplog.records if r.message.startswith("checkpoint.")]
    assert lines == [
        ("checkpoint.found", "a-rec-3r"), ("checkpoint.window", "a-rec-3r"), ("checkpoint.found", "b-3r"),
        ("checkpoint.window", "b-3r"),
    ]  # fmt: skip
    fields = next(r.fields for r in caplog.records if r.message == "checkpoint.found")
    assert fields["recency"] == "0 to age 0, -2 at 4, gamma 1 (serve)"
    windows = [r.fields for r in caplog.records if r.message == "checkpoint.window"]
    assert [(w["trained"], w["served"]) for w in windows] == [(5, 4), (5, 4)]


def test_a_host_that_cannot_begin_leaves_no_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warm_up(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(served_module, "warm_up", warm_up)
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="no compiler"):
        WorldHost.open(str(folder), dtype="fp32", threads=1, window=16)
    assert set(threading.enumerate()) <= before


def test_a_profile_is_written_where_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "traces"
    host = WorldHost.open(
        str(folder),
        dtype="fp32",
        threads=1,
        window=16,
        warmup=False,
        profile_frames=1,
        profile_dir=str(there),
    )
    host.close()
    in_the_way = tmp_path / "file"
    in_the_way.touch()

    assert host.profile is not None
    assert host.profile.table().startswith("a-rec-3r: ")
    assert (there / "profile_a-rec-3r.json").is_file()
    with pytest.raises(InvalidInputError, match="profile_dir cannot be written to: "):
        WorldHost.open(
            str(folder),
            threads=1,
            window=16,
            warmup=False,
            profile_frames=1,
            profile_dir=str(in_the_way / "x"),
        )


def test_rules_are_the_settings_own() -> None:
    settings = Settings.load()
    rules = Rules()

    assert rules.recency_enabled == settings.recency_enabled
    assert rules.rope_table_len == settings.rope_table_len
    assert rules.window == settings.serve_window_frames
    assert rules.serve_recency == Recency(**settings.serve_recency.model_dump())
