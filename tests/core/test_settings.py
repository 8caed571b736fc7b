"""Settings: sources, refusals, and what each refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from worldloop.core.errors import SettingsError
from worldloop.core.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("WORLDLOOP_")]:
        monkeypatch.delenv(name)


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "worldloop.toml"
    path.write_text(text)
    return path


def test_the_published_defaults() -> None:
    settings = Settings.load()
    assert (settings.stream_fps, settings.fps_embedding) == (35, 12)
    assert (settings.h264_encoder, settings.h264_bitrate, settings.h264_gop) == ("libx264", 4_000_000, 120)
    assert (settings.frames_low_watermark, settings.session_limit_s, settings.rope_table_len) == (
        2,
        180,
        4096,
    )
    assert (settings.lease_stale_s, settings.pending_z0_s, settings.nfe_max) == (20, 45, 32)
    assert not settings.tickets_required


def test_each_source_beats_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toml(tmp_path, "port = 1\nslots = 2\nthreads = 3\n")
    monkeypatch.setenv("WORLDLOOP_PORT", "4")
    monkeypatch.setenv("WORLDLOOP_SLOTS", "5")
    settings = Settings.load(path, port=6)
    assert (settings.port, settings.slots, settings.threads) == (6, 5, 3)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLOOP_CONFIG", str(toml(tmp_path, "port = 7")))
    assert Settings.load().port == 7


@pytest.mark.parametrize("source", ["file", "environment", "flag"])
def test_an_unknown_name_is_refused_with_what_is_near(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toml(tmp_path, "strem_fps = 3") if source == "file" else None
    if source == "environment":
        monkeypatch.setenv("WORLDLOOP_STREM_FPS", "3")
    flags = {"strem_fps": 3} if source == "flag" else {}
    with pytest.raises(SettingsError, match=rf"(?i)strem_fps.*{source}.*did you mean stream_fps"):
        Settings.load(path, **flags)


def test_variables_of_the_browser_tests_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLOOP_CHROMIUM", "/usr/bin/chromium")
    assert Settings.load().port == 8000


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 70000}, "port"),
        ({"port": "http"}, "port"),
        ({"slots": 0}, "slots"),
        ({"stream_fps": 0.5}, "stream_fps"),
        ({"stream_fps": float("nan")}, "stream_fps"),
        ({"stream_fps": True}, "stream_fps"),
        ({"fps_embedding": 121}, "fps_embedding"),
        ({"frames_low_watermark": 5}, "frames_low_watermark"),
        ({"dtype": "fp8"}, "dtype"),
        ({"session_limit_s": -1}, "session_limit_s"),
        ({"session_limit_message": "é" * 62}, "124 bytes"),
        ({"cors_allow_origins": "http://a.example/"}, "not an origin"),
        ({"cors_allow_origins": ["*"]}, "not an origin"),
        ({"api_key": "short"}, "api_key"),
        ({"api_key_hashes": "a" * 63}, "api_key_hashes.*64 of 0-9 a-f"),
        ({"api_key_hashes": ["b" * 64, "B" * 64]}, "api_key_hashes"),
        ({"server_id": "a.b", "ticket_secret": "s"}, "server_id"),
        ({"ticket_secret": "hush"}, "server_id is not set"),
        ({"server_id": "box"}, "ticket_secret is not set"),
    ],
)
def test_a_bad_value_is_named(flags: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refusal:
        Settings.load(**flags)
    assert "hush" not in str(refusal.value)


def test_none_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLOOP_FPS_EMBEDDING", "none")
    monkeypatch.setenv("WORLDLOOP_SEED", "")
    settings = Settings.load(default_model_id="None")
    assert (settings.fps_embedding, settings.seed, settings.default_model_id) == (None, None, None)


def test_origins_by_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDLOOP_CORS_ALLOW_ORIGINS", "http://a.example:3000, https://b.example")
    assert Settings.load().cors_allow_origins == ("http://a.example:3000", "https://b.example")
    monkeypatch.setenv("WORLDLOOP_API_KEY_HASHES", f"{'a' * 64},{'0' * 64}")
    assert Settings.load().api_key_hashes == ("a" * 64, "0" * 64)


def test_a_file_that_cannot_be_read_says_so_without_its_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", toml(tmp_path, "port = ")):
        with pytest.raises(SettingsError, match=path.name) as refusal:
            Settings.load(path)
        assert str(tmp_path) not in str(refusal.value)


def test_settings_are_frozen_and_hide_the_secret() -> None:
    settings = Settings.load(ticket_secret="hush", server_id="box")
    with pytest.raises(ValidationError):
        settings.port = 1
    assert "hush" not in repr(settings)
    assert settings.tickets_required


def test_every_knob_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
