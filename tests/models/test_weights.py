"""Weight files: round trips, the published layout, and every kind of file that is refused by name."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from worldloop.core.errors import CheckpointError
from worldloop.models.memory import Memory
from worldloop.models.summaryformer import Summaryformer
from worldloop.models.weights import (
    file_hash,
    load_autoencoder,
    load_weights,
    parameter_count,
    read_config,
    read_weights,
    save_autoencoder,
)  # fmt: skip

from .driving import TINY
from .files import autoencoder, parts, rewrite, world, write_autoencoder, write_world


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def blank() -> Summaryformer:
    return Summaryformer(TINY)


def test_safetensors_round_trip(tmp_path: Path) -> None:
    path = write_world(tmp_path / "w-3r.safetensors")
    loaded = blank()

    assert not same(loaded, world())
    load_weights(path, loaded)

    assert same(loaded, world())
    config = read_config(path)
    assert config.model == TINY
    assert (config.timesteps, config.cache_mode, config.step) == ((999, 878, 669), "recache", 7)
    assert [p.name for p in tmp_path.iterdir()] == ["w-3r.safetensors"]


def test_bfloat16_round_trip_is_one_rounding(tmp_path: Path) -> None:
    path = write_world(tmp_path / "w.safetensors", dtype=torch.bfloat16)
    loaded = blank()
    load_weights(path, loaded)

    rounded = {key: value.bfloat16().float() for key, value in world().state_dict().items()}
    assert all(torch.equal(value, rounded[key]) for key, value in loaded.state_dict().items())
    assert not same(loaded, world())


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "module.model."])
def test_the_published_layout_loads(tmp_path: Path, prefix: str) -> None:
    tensors, config = parts(write_world(tmp_path / "w.safetensors"))
    path = rewrite(tmp_path / "w.pt", {prefix + key: value for key, value in tensors.items()}, config)
    loaded = blank()
    load_weights(path, loaded)

    assert same(loaded, world())
    assert read_config(path) == read_config(tmp_path / "w.safetensors")


def test_a_prefix_that_is_none_is_refused(tmp_path: Path) -> None:
    tensors, config = parts(write_world(tmp_path / "w.safetensors"))
    path = rewrite(tmp_path / "w.pt", {"ema." + key: value for key, value in tensors.items()}, config)

    with pytest.raises(CheckpointError, match=r"w\.pt: weights do not fit: missing .*, unexpected \['ema\."):
        load_weights(path, blank())


class Runs:
    """Unpickled, makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.mark), "w")


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path: Path, form: str) -> None:
    mark, path = tmp_path / "ran", tmp_path / "w.pt"
    whole = {"model": Runs(mark), "config": {}, "step": 0}
    torch.save(whole, path) if form == "torch" else path.write_bytes(pickle.dumps(whole))

    for act in (read_config, lambda p: load_weights(p, blank())):
        with pytest.raises(CheckpointError, match=r"w\.pt: not a weights-only torch file"):
            act(path)
    assert not mark.exists()
    if form == "pickle":  # control: it would have run
        pickle.loads(path.read_bytes())["model"].close()  # noqa: S301 -- written above
        assert mark.exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str, share: float) -> None:
    tensors, config = parts(write_world(tmp_path / "whole.safetensors"))
    path = rewrite(tmp_path / f"w{suffix}", tensors, config)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

    with pytest.raises(CheckpointError, match=rf"w{suffix}: not a "):
        read_config(path)
    with pytest.raises(CheckpointError, match=rf"w{suffix}: not a "):
        load_weights(path, blank())


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for name in ("w.safetensors", "w.pt"):
        with pytest.raises(CheckpointError, match=name):
            read_config(tmp_path / name)


@pytest.mark.parametrize("whole", [[1, 2], {"model": {}}, {"config": {}}, {"model": {}, "config": []}])
def test_another_layout_is_refused(tmp_path: Path, whole: Any) -> None:
    path = tmp_path / "w.pt"
    torch.save(whole, path)

    with pytest.raises(CheckpointError, match=r"must hold \{'model', 'config', 'step'\}"):
        read_config(path)


@pytest.mark.parametrize("metadata", [None, {"config": "{"}, {"config": "[]"}])
def test_metadata_without_a_config_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(1)}, path, metadata=metadata)

    with pytest.raises(
        CheckpointError, match=r"metadata lacks 'config'|config is not JSON|must be a JSON object"
    ):
        read_config(path)


def test_keys_and_shapes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors, config = parts(write_world(tmp_path / "w.safetensors"))
    key = "blocks.1.visual_feed_forward.out.weight"
    cases = {
        rf"missing \['{key}'\]": {k: v for k, v in tensors.items() if k != key},
        r"unexpected \['extra'\]": {**tensors, "extra": torch.zeros(1)},
        rf"'{key}' is \(128, 191\), \(128, 192\) is needed": {
            **tensors,
            key: tensors[key][:, :-1].contiguous(),
        },
    }
    for message, changed in cases.items():
        loaded = blank()
        before = copy.deepcopy(loaded)
        with pytest.raises(CheckpointError, match=message):
            load_weights(rewrite(tmp_path / "x.safetensors", changed, config), loaded)
        assert same(loaded, before)  # nothing is half loaded


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda t: t.fill_(1).index_fill_(0, torch.tensor([3]), torch.nan),
            "holds numbers that are not finite",
        ),
        (lambda t: t.fill_(-torch.inf), "holds numbers that are not finite"),
        (lambda t: t.to(torch.int8), "is torch.int8, numbers of floating point are needed"),
        (lambda t: t.bool(), "is torch.bool, numbers of floating point are needed"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_the_first_copy(
    tmp_path: Path, spoil: Any, message: str, suffix: str
) -> None:
    tensors, config = parts(write_world(tmp_path / "w.safetensors"))
    last = sorted(tensors)[-1]
    spoiled = rewrite(tmp_path / f"x{suffix}", {**tensors, last: spoil(tensors[last].clone())}, config)
    loaded = blank()
    before = copy.deepcopy(loaded)

    with pytest.raises(CheckpointError, match=rf"x{suffix}: '{last}' {message}") as refused:
        load_weights(spoiled, loaded)
    assert refused.value.key == last
    assert same(loaded, before)
    load_weights(rewrite(tmp_path / f"y{suffix}", tensors, config), loaded)  # control: unspoiled, it is taken


def test_what_is_no_tensor_or_no_text_is_refused(tmp_path: Path) -> None:
    tensors, config = parts(write_world(tmp_path / "w.safetensors"))
    key = "summary_tokens"
    cases = {
        f"{key!r} is int, numbers": {**tensors, key: 3},
        f"{key!r} is torch.float32, numbers": {**tensors, key: tensors[key].to_sparse()},
        "every key of 'model' and 'config' must be text": {**tensors, 3: tensors[key]},
        "a key is there twice, with and without a prefix": {**tensors, f"module.{key}": tensors[key]},
    }
    for message, changed in cases.items():
        with pytest.raises(CheckpointError, match=rf"x\.pt: .*{message}"):
            load_weights(rewrite(tmp_path / "x.pt", changed, config), blank())


def test_what_was_read_does_not_change_with_the_file(tmp_path: Path) -> None:
    for suffix in (".safetensors", ".pt"):
        tensors, config = parts(write_world(tmp_path / "w.safetensors"))
        path = rewrite(tmp_path / f"x{suffix}", tensors, config)
        weights = read_weights(path, blank())
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)

        assert all(torch.equal(weights.tensors[key], value) for key, value in tensors.items())


@pytest.mark.parametrize(
    ("step", "read"), [(7, 7), (None, None), (7.0, 7), (float("nan"), None), ("7", None)]
)
def test_a_training_step_is_a_number_or_unknown(tmp_path: Path, step: Any, read: int | None) -> None:
    tensors, config = parts(write_world(tmp_path / "w.safetensors"))
    path = tmp_path / "x.pt"
    torch.save({"model": tensors, "config": config, "step": step}, path)

    assert read_config(path).step == read


@torch.inference_mode()
def test_a_checkpoint_without_focus_is_the_identical_model(tmp_path: Path) -> None:
    tensors, config = parts(write_world(tmp_path / "w.safetensors"))
    del tensors["z0_focus_region_embed"]
    loaded = world()
    load_weights(rewrite(tmp_path / "x.safetensors", tensors, config), loaded)

    latent = torch.randn(1, TINY.raw_tokens, TINY.latent_channels, generator=torch.Generator().manual_seed(0))
    film = loaded.condition(torch.zeros(1), None, torch.zeros(1), start=True).at(0)
    tables = loaded.tables()
    plain, marked, before = (
        model.pass_record(latent, film, tables.record(0), Memory(TINY.memory, tables), focus_N=focus)
        for model, focus in (
            (loaded, None),
            (loaded, torch.ones(TINY.raw_tokens, dtype=torch.bool)),
            (world(), torch.ones(TINY.raw_tokens, dtype=torch.bool)),
        )
    )

    assert torch.equal(plain, marked)
    assert not torch.equal(plain, before)  # control: with the embedding the region is seen


def test_autoencoder_round_trip(tmp_path: Path) -> None:
    path = write_autoencoder(tmp_path / "autoencoder.safetensors")

    model, stats = load_autoencoder(path)

    expected, expected_stats = autoencoder()
    assert same(model, expected)
    for name in ("first_mean", "first_std", "rest_mean", "rest_std"):
        assert torch.equal(getattr(stats, name), getattr(expected_stats, name))
    assert not model.training
    assert load_autoencoder(path, torch.bfloat16)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("dec.second.weight", None, "autoencoder key 'dec.second.weight' does not fit"),
        ("dec.third.weight", torch.zeros(1), "autoencoder key 'dec.third.weight' does not fit"),
        ("enc.linear.bias", torch.zeros(9), r"'enc.linear.bias' is \(9,\), \(8,\) is needed"),
        ("stats.rest_std", None, "lacks 'stats.rest_std'"),
        (
            "stats.rest_std",
            torch.tensor([1.0] * 7 + [torch.nan]),
            "'stats.rest_std' holds numbers that are not",
        ),
        (
            "stats.first_std",
            torch.zeros(8),
            "a deviation in 'stats.first_std' or 'stats.rest_std' is not above 0",
        ),
        (
            "enc.linear.bias",
            torch.full((8,), torch.inf),
            "'enc.linear.bias' holds numbers that are not finite",
        ),
        ("stats.rest_std", torch.ones(9), r"'stats.rest_std' is \(9,\), \(8,\) is needed"),
    ],
)
def test_an_autoencoder_that_does_not_fit_is_refused(
    tmp_path: Path, key: str, value: torch.Tensor | None, message: str
) -> None:
    path = write_autoencoder(tmp_path / "autoencoder.safetensors")
    tensors, config = load_file(path), parts(path)[1]
    changed = {**tensors, key: value} if value is not None else {k: v for k, v in tensors.items() if k != key}
    rewrite(path, changed, config)

    with pytest.raises(CheckpointError, match=rf"autoencoder\.safetensors: {message}"):
        load_autoencoder(path)


def test_an_autoencoder_names_the_first_key_of_many(tmp_path: Path) -> None:
    path = write_autoencoder(tmp_path / "a.safetensors")
    tensors, config = parts(path)
    rewrite(path, {k: v for k, v in tensors.items() if not k.startswith(("dec.", "enc.out"))}, config)

    with pytest.raises(CheckpointError, match=r"'dec\.first\.bias'"):
        load_autoencoder(path)


@pytest.mark.parametrize(
    "config", [{}, {"model": {"channels": 8}}, {"model": {"depth": 3, "latent_hw": [3, 4]}}]
)
def test_an_autoencoder_config_that_is_none_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    path = write_autoencoder(tmp_path / "a.safetensors")
    rewrite(path, load_file(path), config)

    with pytest.raises(CheckpointError, match="autoencoder config is not readable"):
        load_autoencoder(path)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_autoencoder(tmp_path / "absent.safetensors")


def test_hash_and_size(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")

    assert file_hash(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert parameter_count(torch.nn.Linear(3, 4)) == 16


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_autoencoder(tmp_path / "a.safetensors")
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError("disk full")))

    with pytest.raises(OSError, match="disk full"):
        save_autoencoder(path, *autoencoder(), {})
    assert path.read_bytes() == before
