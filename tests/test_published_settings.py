"""The published server's configuration in our settings: its values are taken, what it refuses is refused, and its
defaults are ours unless the difference is stated here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from worldloop.core.errors import SettingsError
from worldloop.core.settings import Settings
from worldloop.testing import tiny_world

RECENCY = {"flat_until": 5, "decay_end": 17, "beta": 6.0, "gamma": 2.0}

TAKEN: dict[str, list[Any]] = {
    "world": ["./serve_ckpts", "meadow"],
    "default_model_id": [None, "latest", "gta_model"],
    "dtype": ["bf16", "autocast"],
    "rope_table_len": [2048, 4096, 5000],
    "serve_window_frames": [None, 1, 16, 128],
    "serve_recency": [RECENCY, {"flat_until": 0, "decay_end": 9, "beta": 3.0, "gamma": 1.0}],
    "recency_enabled": [True, False],
    "reprefill_every": [0, 1, 4096],
    "seed": [None, 0, 2**32 - 1],
    "fps_embedding": [None, 1, 12, 120],
    "compile": ["off", "default", "max-autotune-no-cudagraphs", "max-autotune+cudagraphs"],
    "compile_dynamic": [True, False],
    "compile_decoder": ["off", "default", "max-autotune-no-cudagraphs"],
    "decoder_dtype": ["bf16", "fp32"],
    "recompile_limit": [8, 64],
    "warmup": [True, False],
    "warmup_frames": [3, 8, 64],
    "profile_frames": [0, 64],
    "profile_exit": [True, False],
    "fp8_linears": ["off", "row", "tensor"],
    "device": ["cuda:0", "cuda:7"],
    "nfe_max": [1, 32],
    "stream_fps": [1, 35, 120, 23.976],
    "h264_encoder": ["libx264", "h264_nvenc"],
    "h264_bitrate": [4_000_000],
    "h264_gop": [120],
    "frames_low_watermark": [0, 2, 4],
    "log_streaming": [True, False],
    "host": ["0.0.0.0"],
    "port": [3002],
    "session_limit_s": [0, 180],
    "session_limit_message": ["x" * 123],
    "cors_allow_origins": [("http://localhost:3000", "https://example.org"), "http://127.0.0.1:3000"],
}
REFUSED: dict[str, list[Any]] = {
    "world": [""],
    "dtype": ["fp16", "bf16_with_fp32_islands"],
    "rope_table_len": [0, "many"],
    "serve_window_frames": [0, 129, True, 1.5],
    "serve_recency": [
        None,
        True,
        {**RECENCY, "flat_until": 17},
        {**RECENCY, "beta": -1},
        {**RECENCY, "more": 1},
    ],
    "recency_enabled": ["perhaps", 3],
    "reprefill_every": [-1, 4097],
    "seed": [-1, 2**32, True],
    "fps_embedding": [0, 121, "fast"],
    "compile": ["max-autotune", True],
    "compile_decoder": ["max-autotune+cudagraphs"],
    "decoder_dtype": ["fp16"],
    "recompile_limit": [7],
    "warmup_frames": [2, 65],
    "profile_frames": [-1, 65],
    "fp8_linears": ["on", "ROW"],
    "device": ["cuda:-1", "gpu", 0],
    "nfe_max": [0, 33],
    "stream_fps": [0.9, 121],
    "frames_low_watermark": [-1, 5],
    "session_limit_s": [-1],
    "session_limit_message": ["", "x" * 124],
    "cors_allow_origins": ["http://a.example/", "a.example", ["*"]],
}
SAME_DEFAULT: dict[str, Any] = {
    "default_model_id": None, "rope_table_len": 4096, "reprefill_every": 0, "seed": None, "fps_embedding": 12,
    "compile_dynamic": False, "recompile_limit": 64, "warmup": True, "warmup_frames": 8, "profile_frames": 0,
    "profile_exit": False, "fp8_linears": "off", "stream_fps": 35, "h264_encoder": "libx264",
    "h264_bitrate": 4_000_000, "h264_gop": 120, "frames_low_watermark": 2, "log_streaming": True,
    "session_limit_s": 180, "lease_stale_s": 20, "pending_z0_s": 45, "nfe_max": 32, "slots": 1,
}  # fmt: skip
OTHER_DEFAULT: dict[str, tuple[Any, Any]] = {
    "world": ("./serve_ckpts", "meadow"),
    "dtype": ("bf16", "auto"),
    "decoder_dtype": ("bf16", "auto"),
    "device": ("cuda:0", "auto"),
    "compile": ("max-autotune+cudagraphs", "off"),
    "compile_decoder": ("max-autotune-no-cudagraphs", "off"),
    "serve_window_frames": (16, None),
    "recency_enabled": (False, True),
    "host": ("0.0.0.0", "127.0.0.1"),
    "port": (3002, 8000),
    "cors_allow_origins": (("http://localhost:3000", "http://127.0.0.1:3000"), ()),
}
"""(published, ours)"""
VARIABLES = {
    "WORLDLOOP_DEFAULT_MODEL_ID": ("latest", "default_model_id", "latest"),
    "WORLDLOOP_PROFILE_FRAMES": ("8", "profile_frames", 8),
    "WORLDLOOP_PROFILE_EXIT": ("1", "profile_exit", True),
    "WORLDLOOP_FP8_LINEARS": ("row", "fp8_linears", "row"),
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WORLDLOOP_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in TAKEN.items() for value in values], ids=str
)
def test_what_the_published_server_takes_is_taken(name: str, value: Any) -> None:
    assert name in Settings.load(**{name: value}).model_fields_set


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values], ids=str
)
def test_what_the_published_server_refuses_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.load(**{name: value})


@pytest.mark.parametrize("name", SAME_DEFAULT)
def test_a_default_is_the_published_one(name: str) -> None:
    assert getattr(Settings.load(), name) == SAME_DEFAULT[name]


def test_the_served_bias_is_the_published_one() -> None:
    assert Settings.load().serve_recency.model_dump() == RECENCY


@pytest.mark.parametrize("name", OTHER_DEFAULT)
def test_a_default_that_differs_differs_as_stated_and_can_be_set_back(name: str) -> None:
    published, ours = OTHER_DEFAULT[name]
    assert getattr(Settings.load(), name) == ours
    assert getattr(Settings.load(**{name: published}), name) == published


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_sets_what_the_published_one_set(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, name, value = VARIABLES[variable]
    monkeypatch.setenv(variable, text)
    assert getattr(Settings.load(), name) == value


def test_both_ticket_variables_or_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLOOP_TICKET_SECRET", "hush")
    with pytest.raises(SettingsError, match="server_id is not set"):
        Settings.load()
    monkeypatch.setenv("WORLDLOOP_SERVER_ID", "box-1")
    assert Settings.load().tickets_required
    monkeypatch.setenv("WORLDLOOP_TICKET_SECRET", "")
    with pytest.raises(SettingsError, match="ticket_secret is not set"):
        Settings.load()
    monkeypatch.setenv("WORLDLOOP_SERVER_ID", "")
    assert not Settings.load().tickets_required


@pytest.mark.parametrize("dtype", ["autocast", "fp32"])
def test_fp8_with_another_number_format_is_refused(dtype: str) -> None:
    with pytest.raises(SettingsError, match="fp8_linears=row needs dtype bf16"):
        Settings.load(fp8_linears="row", dtype=dtype)


@pytest.mark.parametrize("fact", ["timesteps", "timestep_shift", "cache_mode", "num_layers", "latent_grid"])
def test_a_fact_of_the_checkpoint_is_no_setting(fact: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting '{fact}'"):
        Settings.load(**{fact: 1})


def test_a_profile_is_printed_and_kept_and_the_server_may_end_after_it(tmp_path: Path) -> None:
    given = {
        "world": tiny_world(tmp_path / "tiny"), "profile_frames": 2, "profile_exit": True, "profile_dir": tmp_path,
        "warmup_frames": 3, "port": 0, "threads": 1, "log_level": "error",
    }  # fmt: skip
    words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    answer = subprocess.run(
        [sys.executable, "-m", "worldloop", "play", "--no-browser", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "%" in answer.stdout
    assert "ready" not in answer.stdout, "no port was opened"
    assert (tmp_path / "profile_tiny-3r.json").stat().st_size > 1000
