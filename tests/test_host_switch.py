"""Switching: in place when the architecture agrees, all or nothing, and always honest about what is served."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from worldloop.core.errors import CheckpointError, NotReadyError
from worldloop.core.types import Controls
from worldloop.host import WorldHost
from worldloop.loops import served as served_module
from worldloop.loops import switch as switch_module
from worldloop.loops.model import WorldModel
from worldloop.loops.switch import WeightsLostError, fits
from worldloop.models import fp8
from worldloop.models.summaryformer import Summaryformer
from worldloop.models.weights import Weights
from worldloop.session.host import GameOptions
from worldloop.testing import tiny_world

from .models.files import config_changed, parts, rewrite

PICTURE = np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8)
WAIT_S = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three worlds for one autoencoder: `a-3r`, `b-4nr` with a bias, and `c-3r` without a focus embedding."""
    folder = tiny_world(tmp_path / "worlds", name="a-3r")
    tiny_world(folder, name="b-4nr", seed=1, steps=4, cache_mode="last_step_writes", jump_sprint=True)
    bias = {"flat_until": 1, "decay_end": 6, "beta": 3.0, "gamma": 1.5}
    config_changed(folder / "b-4nr.safetensors", recency=bias, sink_gap_max=4)
    tiny_world(folder, name="c-3r", seed=2, focus_region=False)
    return folder


def opened(folder: Path, **choices: Any) -> WorldHost:
    return WorldHost.open(str(folder), **{"dtype": "fp32", "threads": 1, "warmup": False, **choices})


@pytest.fixture
def host(folder: Path) -> Iterator[WorldHost]:
    host = opened(folder)
    yield host
    host.close()


def played(host: WorldHost, latents: int = 8) -> bytes:
    """Long enough that summaries and their bias count."""
    game = host.start(host.encode(PICTURE), options=GameOptions(), seed=1)
    emits = [game.submit(Controls(pressed=frozenset("w"))).result(WAIT_S) for _ in range(1 + latents)]
    game.close()
    return b"".join(emit.frames.tobytes() for emit in emits)


def addresses(host: WorldHost) -> list[int]:
    return [value.data_ptr() for value in host.model.network.parameters()]


def test_a_switch_changes_the_weights_where_they_are(
    host: WorldHost, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = {}
    for model_id in ("a-3r", "b-4nr", "c-3r"):
        other = opened(folder, model_id=model_id)
        fresh[model_id] = played(other)
        other.close()
    model, before = host.model, addresses(host)
    built: list[Summaryformer] = []
    monkeypatch.setattr(Summaryformer, "__init__", lambda self, _: built.append(self))
    seen = {"a-3r": played(host)}
    facts = []

    for model_id in ("b-4nr", "c-3r", "a-3r", "c-3r", "b-4nr"):
        host.switch(model_id)
        seen[model_id] = played(host)
        facts.append((host.active_model_id, host.model.focus, host.active_profile["jump_sprint"]))
        assert seen[model_id] == fresh[model_id], "as if it had been loaded alone"

    assert len(set(fresh.values())) == 3
    assert facts == [
        ("b-4nr", True, True), ("c-3r", False, False), ("a-3r", True, False), ("c-3r", False, False),
        ("b-4nr", True, True),
    ]  # fmt: skip
    assert host.model is model
    assert addresses(host) == before
    assert not built, "no second network, not even for a while"
    assert host.report().switches == 5


def tensor_bytes() -> int:
    gc.collect()
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) in (
        torch.Tensor, torch.nn.Parameter)}  # fmt: skip
    return sum(found.values())


def test_twenty_switches_hold_no_more_than_none(host: WorldHost) -> None:
    for model_id in ("b-4nr", "a-3r"):
        host.switch(model_id)
    before = tensor_bytes()
    for _ in range(10):
        host.switch("b-4nr")
        host.switch("a-3r")

    after = tensor_bytes()
    kept = [value.clone() for value in host.model.network.parameters()]

    # What earlier tests left may be let go meanwhile.
    assert after <= before
    assert tensor_bytes() > after + 1000 * len(kept), "control: a copy that is kept is seen"


def test_weights_with_and_without_a_focus_embedding_share_a_network(host: WorldHost) -> None:
    mask = ((True, False, False, False),) * 3
    told = host.configure(GameOptions(focus=mask))["mode"]
    host.switch("c-3r")

    assert (told, host.configure(GameOptions())["mode"]) == ("custom", "none")
    with pytest.raises(ValueError, match="trained without a focus region"):
        host.configure(GameOptions(focus=mask))
    assert not host.model.network.z0_focus_region_embed.any()
    assert host.describe()["focus"]["trained"] is False


def test_fp8_copies_follow_the_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bf16(model_id: str) -> WorldHost:
        host = opened(folder, dtype="bf16", model_id=model_id)
        host.engine.call(lambda: fp8.apply(host.model.network, "row"))
        return host

    host, fresh = bf16("a-3r"), bf16("b-4nr")
    try:
        host.switch("b-4nr")
        followed, wanted = played(host), played(fresh)
        with monkeypatch.context() as patch:
            patch.setattr(WorldModel, "after_load", lambda _: None)
            host.switch("a-3r")
            stale = played(host)
        host.switch("b-4nr")
        host.switch("a-3r")
        true = played(host)
    finally:
        host.close()
        fresh.close()

    assert followed == wanted
    assert stale != true, "control: with old copies the picture is another"


class FailsAt(dict[str, torch.Tensor]):
    """Weights of which the `k`-th cannot be had."""

    def __init__(self, tensors: dict[str, torch.Tensor], k: int) -> None:
        super().__init__(tensors)
        self.left = k

    def __getitem__(self, key: str) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            raise OSError("the disk is gone")
        return super().__getitem__(key)


def fail_in_copy(k: int) -> Callable[[pytest.MonkeyPatch], None]:
    def arrange(patch: pytest.MonkeyPatch) -> None:
        real = switch_module.read_weights

        def read(path: Path, network: Summaryformer) -> Weights:
            weights = real(path, network)
            return replace(weights, tensors=FailsAt(weights.tensors, k))

        patch.setattr(switch_module, "read_weights", read)

    return arrange


def fail_in_requantise(patch: pytest.MonkeyPatch) -> None:
    real, calls = WorldModel.after_load, [0]

    def after_load(self: WorldModel) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("no kernel")
        real(self)

    patch.setattr(WorldModel, "after_load", after_load)


@pytest.mark.parametrize("arrange", [fail_in_copy(0), fail_in_copy(1), fail_in_copy(17), fail_in_requantise])
def test_a_switch_that_fails_half_way_leaves_the_old_model(
    arrange: Callable[[pytest.MonkeyPatch], None], host: WorldHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, described, profile = played(host), host.describe(), host.active_profile
    with monkeypatch.context() as patch:
        arrange(patch)
        with pytest.raises((OSError, RuntimeError), match=r"the disk is gone|no kernel"):
            host.switch("b-4nr")

    assert (host.active_model_id, host.active_profile, host.report().switches) == ("a-3r", profile, 0)
    assert played(host) == before
    assert {**host.describe(), "reprefill": 0} == {**described, "reprefill": 0}
    host.switch("b-4nr")  # control: unharmed, it goes through
    assert played(host) != before


def test_a_way_back_that_fails_too_leaves_nothing_served_until_the_next_switch(
    host: WorldHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, frame = played(host), host.encode(PICTURE)

    def after_load(_: WorldModel) -> None:
        raise RuntimeError("no kernel")

    with monkeypatch.context() as patch:
        patch.setattr(WorldModel, "after_load", after_load)
        with pytest.raises(
            WeightsLostError, match=r"b-4nr\.safetensors: the switch failed \(no kernel\), and so did"
        ):
            host.switch("b-4nr")

    assert host.active_model_id is None
    with pytest.raises(NotReadyError, match="no model is loaded"):
        host.encode(PICTURE)
    with pytest.raises(NotReadyError, match="None is served now"):
        host.start(frame, options=GameOptions(), seed=1)
    host.switch("a-3r")
    assert (host.active_model_id, played(host)) == ("a-3r", before)


def test_nothing_is_served_while_a_switch_is_under_way(
    host: WorldHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, inside, go = switch_module.read_weights, threading.Event(), threading.Event()

    def slow(path: Path, network: Summaryformer) -> Weights:
        inside.set()
        assert go.wait(WAIT_S)
        return real(path, network)

    monkeypatch.setattr(switch_module, "read_weights", slow)
    thread = threading.Thread(target=host.switch, args=("b-4nr",))
    thread.start()
    assert inside.wait(WAIT_S)
    during, told, report = host.active_model_id, host.describe()["nfe"]["ckpt_steps"], host.report()
    go.set()
    thread.join(WAIT_S)

    assert (during, told, report.switches) == (None, 3, 0)
    assert (host.active_model_id, host.describe()["nfe"]["ckpt_steps"]) == ("b-4nr", 4)


def spoiled(folder: Path, how: str) -> None:
    path = folder / "b-4nr.safetensors"
    tensors, config = parts(path)
    key = "blocks.1.visual_feed_forward.out.weight"
    match how:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-64])
        case "gone":
            path.unlink()
        case "shape":
            rewrite(path, {**tensors, key: tensors[key][:, :-1].contiguous()}, config)
        case "nan":
            rewrite(path, {**tensors, key: tensors[key].fill_(float("nan"))}, config)
        case "dtype":
            rewrite(path, {**tensors, key: tensors[key].to(torch.int16)}, config)
        case "missing":
            rewrite(path, {k: v for k, v in tensors.items() if k != key}, config)
        case "config":
            config_changed(path, cache_mode="none")
        case "name":
            config_changed(path, cache_mode="recache")


@pytest.mark.parametrize("how", ["truncated", "gone", "shape", "nan", "dtype", "missing", "config", "name"])
def test_a_file_that_was_spoiled_since_the_start_is_refused_before_the_first_copy(
    how: str, host: WorldHost, folder: Path
) -> None:
    before = {key: value.clone() for key, value in host.model.network.state_dict().items()}
    spoiled(folder, how)

    with pytest.raises(CheckpointError, match=r"^b-4nr\.safetensors: "):
        host.switch("b-4nr")

    assert host.active_model_id == "a-3r"
    assert load_file(folder / "a-3r.safetensors").keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in host.model.network.state_dict().items())


def test_a_file_of_another_architecture_is_built_anew(host: WorldHost, folder: Path) -> None:
    first, model = played(host), host.model
    (folder / "b-4nr.safetensors").unlink()
    tiny_world(folder, name="b-4nr", seed=1, steps=4, cache_mode="last_step_writes", num_layers=3)

    host.switch("b-4nr")
    other = played(host)
    assert host.model is not model
    assert len(host.model.network.blocks) == 3
    assert host.describe()["details"]["b-4nr"]["recency"] is None, "told as it is now"

    host.switch("a-3r")
    assert played(host) == first != other


def test_a_new_model_that_cannot_be_warmed_up_is_not_served(
    host: WorldHost, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, model = played(host), host.model
    (folder / "b-4nr.safetensors").unlink()
    tiny_world(folder, name="b-4nr", seed=1, steps=4, cache_mode="last_step_writes", num_layers=3)

    def warm_up(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(served_module, "warm_up", warm_up)
    monkeypatch.setattr(host._served, "_loading", replace(host._served._loading, warmup=True))
    with pytest.raises(RuntimeError, match="no compiler"):
        host.switch("b-4nr")

    assert (host.active_model_id, host.model) == ("a-3r", model)
    assert played(host) == before


def test_what_fits_is_decided_by_every_size_and_by_nothing_else(host: WorldHost) -> None:
    config = host.model.config

    def changed(**facts: Any) -> bool:
        return fits(host.model, replace(config, model=replace(config.model, **facts)))

    assert changed(sink_gap_max=9, focus_region=False)
    assert fits(host.model, replace(config, timesteps=(999,), cache_mode="last_step_writes"))
    assert not any(
        changed(**{key: value})
        for key, value in {
            "num_layers": 3,
            "ffn_dim": 128,
            "summary_window_frames": 6,
            "rope_table_len": 99,
        }.items()
    )


def test_a_number_of_passes_stays_where_it_fits_and_falls_away_where_not(
    host: WorldHost, caplog: pytest.LogCaptureFixture
) -> None:
    def nfe(options: GameOptions, model_id: str) -> tuple[Any, ...]:
        host.switch("a-3r")
        host.configure(options)
        host.switch(model_id)
        said = host.describe()["nfe"]
        played(host, 1)
        return said["override"], said["mode"], said["active_steps"]

    assert nfe(GameOptions(nfe=6), "b-4nr") == (6, "repeat", 6)
    assert nfe(GameOptions(nfe=4), "b-4nr") == (None, "repeat", 4)
    assert nfe(GameOptions(nfe=2, nfe_mode="grid"), "b-4nr") == (2, "grid", 2)
    assert nfe(GameOptions(nfe=3), "c-3r") == (None, "repeat", 3)
    with caplog.at_level("INFO", "worldloop.host"):
        assert nfe(GameOptions(nfe=3), "b-4nr") == (None, "repeat", 4)
    assert [r.fields["why"] for r in caplog.records if r.message == "nfe.dropped"] == [
        "nfe=3 in mode 'repeat' must be at least the checkpoint's own 4 calls"
    ]
