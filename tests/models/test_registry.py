"""A folder of checkpoints: names, agreement, the default, and every folder that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldloop.core.errors import CheckpointError
from worldloop.models.memory import Recency
from worldloop.models.registry import SERVE_RECENCY, Name, Registry, scan

from .files import config_changed, parts, rewrite, write_autoencoder, write_world

NO_RECACHE: dict[str, Any] = {"cache_mode": "last_step_writes"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_autoencoder(tmp_path / "autoencoder.safetensors")
    return tmp_path


def test_names_are_taken_apart() -> None:
    assert Name.parse("gta-rec-3nr.pt") == Name(
        model_id="gta-rec-3nr", labels=("gta", "rec"), steps=3, cache_mode="last_step_writes"
    )
    name = Name.parse("Meadow-12r.safetensors")
    assert (name.model_id, name.labels, name.recipe) == ("meadow-12r", ("meadow",), "12r")
    assert Name.parse("meadow.safetensors").recipe is None
    assert Name.parse("a-3x.safetensors").labels == ("a", "3x")


@pytest.mark.parametrize("file", ["a b-3r.pt", "-3r.pt", "å-3r.pt", "a+b.safetensors"])
def test_names_that_are_no_ids_are_refused(file: str) -> None:
    with pytest.raises(CheckpointError, match="a model id is made of letters"):
        Name.parse(file)


def test_a_folder_is_read_sorted(folder: Path) -> None:
    write_world(folder / "b-3r.safetensors")
    write_world(folder / "a-3nr.safetensors", **NO_RECACHE)
    (folder / "notes.txt").write_text("not a checkpoint")

    registry = scan(folder)

    assert list(registry.entries) == ["a-3nr", "b-3r"]
    assert registry.autoencoder == folder / "autoencoder.safetensors"
    assert registry.entries["a-3nr"].config.cache_mode == "last_step_writes"
    assert registry.default() == "a-3nr"
    assert registry.default("b-3r") == "b-3r"
    with pytest.raises(CheckpointError, match=r"c-3r: no such model; have \['a-3nr', 'b-3r'\]"):
        registry.default("c-3r")


@pytest.mark.parametrize(("steps", "latest"), [((5, 9), "b"), ((9, 5), "a"), ((5, None), "a"), ((4, 4), "b")])
def test_latest_is_the_highest_step(folder: Path, steps: tuple[int, int | None], latest: str) -> None:
    for name, step in zip("ab", steps, strict=True):
        write_world(folder / f"{name}.safetensors", step=step)

    assert scan(folder).default("latest") == latest


@pytest.mark.parametrize(
    ("file", "facts", "message"),
    [
        ("a-6r", {}, "the name says 6 steps, recache; the config says 3, recache"),
        ("a-3nr", {}, "the name says 3 steps, last_step_writes; the config says 3, recache"),
        ("a-3r", NO_RECACHE, "the name says 3 steps, recache; the config says 3, last_step_writes"),
    ],
)
def test_a_token_that_disagrees_is_refused(
    folder: Path, file: str, facts: dict[str, Any], message: str
) -> None:
    write_world(folder / f"{file}.safetensors", **facts)

    with pytest.raises(CheckpointError, match=rf"{file}\.safetensors: {message}"):
        scan(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dim", 192), ("ffn_dim", 128), ("num_heads", 1), ("num_layers", 3), ("summary_tokens", 5),
        ("raw_window_frames", 1), ("summary_window_frames", 6), ("latent_channels", 9), ("latent_hw", [4, 3]),
    ],
)  # fmt: skip
def test_architectures_that_disagree_are_refused(folder: Path, key: str, value: Any) -> None:
    write_world(folder / "a.safetensors")
    changes = {key: value} if key != "dim" else {"dim": 192, "num_heads": 2}
    config_changed(write_world(folder / "b.safetensors"), **changes)

    with pytest.raises(CheckpointError, match=rf"b\.safetensors: {key}=.* but a\.safetensors has"):
        scan(folder)


def test_other_facts_may_differ(folder: Path) -> None:
    write_world(folder / "a.safetensors")
    config_changed(write_world(folder / "b.safetensors"), sink_gap_max=9, profile="gta5", jump_sprint=True)
    tensors, config = parts(folder / "a.safetensors")
    rewrite(folder / "c.pt", tensors, {**config, "latent_hw": tuple(config["latent_hw"])})

    assert [entry.config.model.sink_gap_max for entry in scan(folder).entries.values()] == [3, 9, 3]


def test_one_window_for_all_settles_a_disagreement(folder: Path) -> None:
    write_world(folder / "a.safetensors")
    config_changed(write_world(folder / "b.safetensors"), summary_window_frames=6)

    entries = scan(folder, window=4, rope_table_len=99).entries.values()

    assert [entry.config.model.summary_window_frames for entry in entries] == [4, 4]
    assert [entry.config.model.rope_table_len for entry in entries] == [99, 99]


def test_another_autoencoder_is_refused(folder: Path) -> None:
    autoencoder = folder / "autoencoder.safetensors"
    write_world(folder / "a.safetensors", autoencoder=autoencoder)
    scan(folder)
    autoencoder.write_bytes(autoencoder.read_bytes() + b"\0")

    with pytest.raises(CheckpointError, match=r"a\.safetensors: was trained on another autoencoder"):
        scan(folder)


def test_folders_without_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no autoencoder\.safetensors"):
        scan(tmp_path)
    write_autoencoder(tmp_path / "autoencoder.safetensors")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        scan(tmp_path)


@pytest.mark.parametrize("second", ["a-3r.pt", "A-3r.safetensors"])
def test_two_files_of_one_id_are_refused(folder: Path, second: str) -> None:
    tensors, config = parts(write_world(folder / "a-3r.safetensors"))
    rewrite(folder / second, tensors, config)

    with pytest.raises(CheckpointError, match="a second file with model id 'a-3r'"):
        scan(folder)


def recency(registry: Registry, *, enabled: bool = True) -> tuple[Recency | None, str]:
    return next(iter(registry.entries.values())).recency(enabled=enabled)


def test_recency_is_trained_then_asked_for_by_name_then_off(folder: Path) -> None:
    law = Recency(flat_until=1, decay_end=6, beta=3.0, gamma=1.5)
    path = folder / "a-rec-3r.safetensors"

    write_world(path, recency=law)
    assert recency(scan(folder)) == (law, "trained")
    write_world(path)
    assert recency(scan(folder, window=16)) == (SERVE_RECENCY, "serve")
    assert Recency(flat_until=5, decay_end=17, beta=6.0, gamma=2.0) == SERVE_RECENCY
    assert recency(scan(folder, recency_enabled=False), enabled=False) == (None, "off (disabled)")
    with pytest.raises(CheckpointError, match=r"recency \(serve\) decay_end=17 is past eviction"):
        scan(folder)
    path.rename(folder / "a-3r.safetensors")
    assert recency(scan(folder)) == (None, "off")


def test_details_say_what_the_published_server_says(folder: Path) -> None:
    write_world(folder / "a-b-3r.safetensors", jump_sprint=True)

    details = scan(folder).entries["a-b-3r"].details()

    assert details == {
        "recipe": "3r", "steps": 3, "cache_mode": "recache", "timesteps": [999, 878, 669], "summary_tokens": 4,
        "raw_window_frames": 2, "summary_window_frames": 5, "sink_gap_max": 3, "recency": None,
        "recency_source": "off", "noise_schedule": "cosine:1.0", "train_step": 7, "file": "a-b-3r.safetensors",
        "labels": ["a", "b"], "focus": "diamond",
        "profile": {
            "name": "meadow", "jump_sprint": True,
            "controls": ["w", "a", "s", "d", "left", "right", "space", "shift"],
        },
    }  # fmt: skip
