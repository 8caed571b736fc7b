"""A folder of checkpoints: names, agreement, the default, and every folder that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldloop.core.errors import CheckpointError
from worldloop.models.memory import Recency
from worldloop.models.registry import SERVE_RECENCY, Entry, Name, Rules, read_entry, scan, scan_report

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

    entries = scan(folder, Rules(window=4, rope_table_len=99)).entries.values()

    assert [entry.config.model.summary_window_frames for entry in entries] == [4, 4]
    assert [entry.config.model.rope_table_len for entry in entries] == [99, 99]
    assert [entry.config.trained_window for entry in entries] == [5, 6]


def test_a_window_below_the_raw_one_is_refused(folder: Path) -> None:
    write_world(folder / "a.safetensors")
    assert next(iter(scan(folder, Rules(window=2)).entries.values())).config.model.summary_window_frames == 2

    with pytest.raises(
        CheckpointError, match=r"a\.safetensors: serve_window_frames=1 must be at least raw_window_frames=2"
    ):
        scan(folder, Rules(window=1))


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


def only(folder: Path, **rules: Any) -> Entry:
    return next(iter(scan(folder, Rules(**rules)).entries.values()))


def recency(folder: Path, **rules: Any) -> tuple[Recency | None, str]:
    entry = only(folder, **rules)
    return entry.config.recency, entry.recency_source


def test_recency_is_trained_then_asked_for_by_name_then_off(folder: Path) -> None:
    law = Recency(flat_until=1, decay_end=6, beta=3.0, gamma=1.5)
    other = Recency(flat_until=0, decay_end=2, beta=1.0, gamma=1.0)
    path = folder / "a-rec-3r.safetensors"

    write_world(path, recency=law)
    assert recency(folder, serve_recency=other) == (law, "trained")
    assert recency(folder, recency_enabled=False) == (None, "off (disabled)")
    write_world(path)
    assert recency(folder, window=16) == (SERVE_RECENCY, "serve")
    assert recency(folder, serve_recency=other) == (other, "serve")
    assert Recency(flat_until=5, decay_end=17, beta=6.0, gamma=2.0) == SERVE_RECENCY
    assert recency(folder, recency_enabled=False) == (None, "off (disabled)")
    path.rename(folder / "a-3r.safetensors")
    assert recency(folder, serve_recency=other) == (None, "off")
    assert only(folder).details()["recency_source"] == only(folder).line()["recency"] == "off"


@pytest.mark.parametrize("source", ["serve", "trained"])
def test_a_bias_that_ends_after_eviction_is_refused_unless_disabled(folder: Path, source: str) -> None:
    law = Recency(flat_until=1, decay_end=6, beta=3.0, gamma=1.5)
    write_world(folder / "a-rec-3r.safetensors", recency=law if source == "trained" else None)
    rules = {"window": 4, "serve_recency": law}

    with pytest.raises(
        CheckpointError,
        match=rf"a-rec-3r\.safetensors: recency \({source}\) decay_end=6 is past eviction: served with a memory window "
        "of 4, it must be at most 5",
    ):
        scan(folder, Rules(**rules))

    assert recency(folder, **{**rules, "window": 5}) == (law, source)
    assert recency(folder, **rules, recency_enabled=False) == (None, "off (disabled)")


def test_an_open_end_of_the_bias_is_the_served_window(folder: Path) -> None:
    law = {"flat_until": 2, "decay_end": None, "beta": 6.0, "gamma": 2.0}
    config_changed(write_world(folder / "a.safetensors"), recency=law)

    assert [recency(folder, window=window)[0] for window in (None, 4)] == [
        Recency(flat_until=2, decay_end=end, beta=6.0, gamma=2.0) for end in (6, 5)
    ]


def test_a_line_of_the_log_has_what_an_operator_compares(folder: Path) -> None:
    law = Recency(flat_until=1, decay_end=6, beta=3.0, gamma=1.5)
    write_world(folder / "a-b-3r.safetensors", jump_sprint=True, recency=law)

    assert only(folder).line() == {
        "id": "a-b-3r", "t": [999, 878, 669], "cache_mode": "recache",
        "recency": "0 to age 1, -3 at 6, gamma 1.5 (trained)", "gap": 3, "focus": "diamond", "X": 4, "Y": 2, "W": 5,
        "schedule": "cosine:1.0", "step": 7, "profile": "meadow jump+sprint", "file": "a-b-3r.safetensors",
    }  # fmt: skip


def test_a_report_goes_on_past_what_is_wrong(folder: Path) -> None:
    whole = write_world(folder / "b-3r.safetensors")
    tensors, config = parts(whole)
    (folder / "a-3r.safetensors").write_bytes(whole.read_bytes()[:100])
    config_changed(write_world(folder / "c-3r.safetensors"), sink_gap_max=65)
    config_changed(write_world(folder / "d-3r.safetensors"), num_layers=3)
    rewrite(folder / "b-3r.pt", tensors, config)
    write_world(folder / "e-4r.safetensors")
    rewrite(folder / "f-3r.pt", tensors, config)

    report = scan_report(folder)

    assert list(report.entries) == ["b-3r", "f-3r"]
    assert report.entries["b-3r"].path.name == "b-3r.pt"
    assert [(e.file, e.key, e.found, e.allowed) for e in report.refusals] == [
        ("a-3r.safetensors", None, None, None),
        ("b-3r.safetensors", "name", "b-3r.safetensors", "one file an id"),
        ("c-3r.safetensors", "sink_gap_max", 65, "an integer in [2, 64]"),
        ("d-3r.safetensors", "num_layers", 3, "2"),
        ("e-4r.safetensors", "name", "4r", "3r"),
    ]
    with pytest.raises(CheckpointError) as first:
        scan(folder)
    assert str(first.value) == str(report.refusals[0])


def test_a_report_of_an_empty_folder_says_all_that_is_missing(tmp_path: Path) -> None:
    report = scan_report(tmp_path)

    assert [error.problem.split(",")[0] for error in report.refusals] == [
        "holds no autoencoder.safetensors",
        "holds no checkpoint (*.safetensors or *.pt)",
    ]
    assert not report.entries


def test_a_file_is_read_again_as_it_is_now(folder: Path) -> None:
    autoencoder = folder / "autoencoder.safetensors"
    path = write_world(folder / "a-3r.safetensors", autoencoder=autoencoder)
    registry = scan(folder, Rules(window=4))

    write_world(path, autoencoder=autoencoder, step=9)
    assert registry.reread("a-3r").config.step == 9
    assert registry.reread("a-3r") == read_entry(path, Rules(window=4))
    assert registry.entries["a-3r"].config.step == 7
    autoencoder.write_bytes(autoencoder.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match="another autoencoder"):
        registry.reread("a-3r")


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
