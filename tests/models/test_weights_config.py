"""What a checkpoint's config must hold; whatever is missing or wrong is refused with its name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from worldloop.core.errors import CheckpointError
from worldloop.models.config import OPTIONAL, REQUIRED
from worldloop.models.memory import Recency
from worldloop.models.weights import read_config

from .files import config_changed, parts, rewrite, write_world

SPECIFIED = {
    "format", "timesteps", "timestep_shift", "noise_schedule", "shifted_cosine_ratio", "cache_mode", "recency",
    "sink_gap_max", "summary_tokens", "raw_window_frames", "summary_window_frames", "focus_region", "profile",
    "jump_sprint", "dim", "ffn_dim", "num_heads", "num_layers",
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_world(tmp_path / "w.safetensors")


def test_the_required_keys_are_those_of_the_published_server() -> None:
    assert set(REQUIRED) == SPECIFIED


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("key", sorted(SPECIFIED))
def test_a_missing_key_is_refused_by_name(path: Path, key: str, suffix: str) -> None:
    tensors, config = parts(path)
    del config[key]
    spoiled = rewrite(path.with_name(f"x{suffix}"), tensors, config)

    with pytest.raises(CheckpointError, match=rf"x{suffix}: config (lacks '{key}'|format=None)") as refused:
        read_config(spoiled)

    assert (refused.value.file, refused.value.key, refused.value.found) == (f"x{suffix}", key, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": "summaryformer-inference-2"},
            "config format='summaryformer-inference-2'; this server reads",
        ),
        (
            {"timesteps": [999, 880, 669]},
            r"timesteps=\[999, 880, 669\] but timestep_shift=3 gives \[999, 878, 669\]",
        ),
        ({"timestep_shift": 2.0}, r"timestep_shift=2 gives \[999, 820, 548\]"),
        ({"timestep_shift": None}, "timestep_shift=None must be a number"),
        ({"timestep_shift": math.nan}, "timestep_shift=nan must be a number"),
        ({"timestep_shift": 0}, "timestep_shift=0.0 must be a finite number above 0"),
        ({"timesteps": []}, r"timesteps=\[\] must be a non-empty list"),
        ({"timesteps": [669, 878, 999]}, "high to low"),
        ({"timesteps": [999, 878, 669.5]}, "list of integers"),
        ({"timesteps": 3}, "timesteps=3 must be"),
        ({"noise_schedule": "linear"}, "noise_schedule='linear' must be 'cosine'"),
        ({"shifted_cosine_ratio": 0}, "shifted_cosine_ratio=0.0 must be"),
        ({"shifted_cosine_ratio": "1"}, "shifted_cosine_ratio='1' must be a number"),
        ({"cache_mode": "none"}, r"cache_mode='none' must be one of \('recache', 'last_step_writes'\)"),
        ({"focus_region": 1}, "focus_region=1 must be true or false"),
        ({"jump_sprint": "no"}, "jump_sprint='no' must be true or false"),
        ({"grid_embedding": None}, "grid_embedding=None must be true or false"),
        ({"sink_gap_max": None}, "sink_gap_max=None must be an integer"),
        ({"sink_gap_max": 1}, r"sink_gap_max=1 must be an integer in \[2, 64\]"),
        ({"sink_gap_max": 65}, r"sink_gap_max=65 must be an integer in \[2, 64\]"),
        ({"sink_gap_max": True}, "sink_gap_max=True must be an integer"),
        ({"sink_gap_max": 5.0}, "sink_gap_max=5.0 must be an integer"),
        ({"num_layers": "2"}, "num_layers='2' must be an integer"),
        ({"num_heads": 0}, "num_heads=0 must be an integer, at least 1"),
        ({"num_heads": 3}, "dim=128 must be a multiple of num_heads=3"),
        ({"num_heads": 4}, "two slowest of 6 time planes"),
        ({"summary_tokens": -1}, "summary_tokens=-1 must be an integer, at least 0"),
        ({"raw_window_frames": 6}, r"raw_window_frames=6 must be in 1\.\.summary_window_frames=5"),
        ({"latent_hw": [24]}, r"latent_hw=\[24\] must be two integers"),
        ({"latent_hw": None}, "latent_hw=None must be two integers"),
        ({"latent_hw": [0, 4]}, r"latent_hw=\[0, 4\] must be two integers above 0"),
        ({"encode_fps": 0}, "encode_fps=0 must be an integer, at least 1"),
        ({"autoencoder": "a.safetensors"}, "autoencoder='a.safetensors' must be null or hold"),
        ({"recency": True}, "recency=True must be null or hold"),
        ({"rope_spatial_base": 0}, "rope_spatial_base=0 must be a number above 0"),
        (
            {"recency": {"flat_until": 2.5, "decay_end": 5, "beta": 6.0, "gamma": 2.0}},
            "flat_until=2.5 must be",
        ),
        (
            {"recency": {"flat_until": 2, "decay_end": 5, "beta": "6", "gamma": 2.0}},
            "beta='6' must be a number",
        ),
        ({"recency": {"flat_until": 2}}, "must be null or hold flat_until, decay_end, beta and gamma"),
        (
            {"recency": {"flat_until": 2, "decay_end": 7, "beta": 6.0, "gamma": 2.0}},
            r"decay_end=7 .* W \+ 1 = 6",
        ),
        ({"recency": {"flat_until": 2, "decay_end": 2, "beta": 6.0, "gamma": 2.0}}, "flat_until < decay_end"),
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused(path: Path, changes: dict[str, Any], message: str) -> None:
    read_config(path)  # control: as it is, it is taken

    with pytest.raises(CheckpointError, match=rf"w\.safetensors: .*{message}") as refused:
        read_config(config_changed(path, **changes))

    error, (key, value) = refused.value, next(iter(changes.items()))
    told = {"timestep_shift": ("timestep_shift", "timesteps")}.get(key, (key,))
    assert error.key in told or key in ("num_heads", "recency"), "the key that is wrong"
    assert error.allowed
    assert error.found == value or key in ("timestep_shift", "recency", "num_heads")


def test_optional_keys_have_the_published_models_constants(path: Path) -> None:
    assert OPTIONAL["latent_channels"] == 48
    assert OPTIONAL["latent_hw"] == [24, 42]

    config = read_config(config_changed(path, **dict.fromkeys(OPTIONAL, ...)))

    assert (config.model.latent_channels, config.model.latent_hw) == (48, (24, 42))
    assert config.model.raw_tokens == 1008
    assert (config.encode_fps, config.saved["autoencoder"], config.saved["license"]) == (12, None, None)


def test_recency_ends_at_eviction_when_nothing_else_is_said(path: Path) -> None:
    law = {"flat_until": 2, "decay_end": None, "beta": 6.0, "gamma": 2.0}

    config = read_config(config_changed(path, recency=law))

    assert config.recency == Recency(flat_until=2, decay_end=6, beta=6.0, gamma=2.0)


def test_the_window_is_capacity_and_can_be_replaced(path: Path) -> None:
    config = read_config(path, window=9, rope_table_len=64)

    assert config.model.summary_window_frames == 9
    assert config.model.rope_table_len == 64
    assert config.trained_window == config.saved["summary_window_frames"] == 5
    with pytest.raises(CheckpointError, match="serve_window_frames=1 must be at least raw_window_frames=2"):
        read_config(path, window=1)


def test_every_fact_comes_back(tmp_path: Path) -> None:
    law = Recency(flat_until=1, decay_end=6, beta=3.0, gamma=1.5)
    path = write_world(
        tmp_path / "w.safetensors", timesteps=(999,), cache_mode="last_step_writes", recency=law, encode_fps=15,
        license="Apache-2.0", trained_on="walks", step=None, jump_sprint=True, profile="gta5",
    )  # fmt: skip

    config = read_config(path)

    assert (config.timesteps, config.cache_mode, config.recency) == ((999,), "last_step_writes", law)
    assert (config.encode_fps, config.step, config.jump_sprint, config.profile) == (15, None, True, "gta5")
    assert (config.saved["license"], config.saved["trained_on"]) == ("Apache-2.0", "walks")
