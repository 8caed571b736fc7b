"""Video checkpoints: round trips in both layouts, the architecture read off shapes, and every refusal by name."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.models.causal_weights import (
    VideoConfig,
    architecture_of,
    load_video_weights,
    plain_name,
    read_video_config,
    save_video,
)  # fmt: skip

from .causal_driving import WORDS

FACTS = {"license": "Apache-2.0", "trained_on": "nothing"}
CONFIG = replace(WORDS, step=7, facts=FACTS)
WAN = CausalConfig(dim=128, ffn_dim=64, num_heads=1, num_layers=2, channels=4, text_dim=6, freq_dim=8)
"""One published head, a patch of 2 x 2, vectors as text."""


def network(config: CausalConfig = WORDS.model) -> CausalTransformer:
    torch.manual_seed(0)
    return CausalTransformer(config)


def same(a: CausalTransformer, b: CausalTransformer) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def write(path: Path, config: VideoConfig = CONFIG) -> Path:
    save_video(path, network(config.model), config, dtype=torch.float32)
    return path


def changed(path: Path, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """The file with other tensors or facts in its config; `...` drops one."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    config = {key: value for key, value in {**config, **changes}.items() if value is not ...}
    save_file(tensors or load_file(path), path, metadata={"config": json.dumps(config)})
    return path


def published(path: Path, prefix: str = "model.", branch: str = "generator_ema", **more: Any) -> Path:
    weights = {prefix + key: value for key, value in network(WAN).state_dict().items()}
    torch.save({branch: weights, **more}, path)
    return path


def test_round_trip(tmp_path: Path) -> None:
    path = write(tmp_path / "v.safetensors")
    blank = CausalTransformer(WORDS.model)

    assert not same(blank, network())
    load_video_weights(path, blank)

    assert same(blank, network())
    assert read_video_config(path) == CONFIG
    assert [p.name for p in tmp_path.iterdir()] == ["v.safetensors"]


def test_bfloat16_is_one_rounding(tmp_path: Path) -> None:
    save_video(tmp_path / "v.safetensors", network(), CONFIG)
    blank = CausalTransformer(WORDS.model)
    load_video_weights(tmp_path / "v.safetensors", blank)

    rounded = {key: value.bfloat16().float() for key, value in network().state_dict().items()}
    assert all(torch.equal(value, rounded[key]) for key, value in blank.state_dict().items())
    assert not same(blank, network())


def test_equal_checkpoints_are_equal_files(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.safetensors"), write(tmp_path / "2.safetensors")

    assert one.read_bytes() == two.read_bytes()


def test_facts_may_be_changed_on_loading(tmp_path: Path) -> None:
    config = read_video_config(write(tmp_path / "v.safetensors"), window_frames=11, sink_frames=2)

    assert (config.window_frames, config.sink_frames) == (11, 2)
    assert replace(config, window_frames=7, sink_frames=1) == CONFIG


PREFIXES = ["model.", "", "model._fsdp_wrapped_module.", "module.model."]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_published_layout(prefix: str, tmp_path: Path) -> None:
    path = published(tmp_path / "self_forcing.pt", prefix)
    config = read_video_config(path, latent_hw=(4, 6))
    blank = CausalTransformer(config.model)
    load_video_weights(path, blank)

    assert config == VideoConfig(model=WAN, latent_hw=(4, 6))
    assert (config.steps, config.shift, config.solver, config.guidance) == (4, 5.0, "renoise", 1.0)
    assert (config.chunk_frames, config.window_frames, config.sink_frames, config.fps) == (3, 21, 0, 16)
    assert same(blank, network(WAN))


def test_the_moving_average_comes_first(tmp_path: Path) -> None:
    other = {f"model.{key}": value + 1 for key, value in network(WAN).state_dict().items()}
    path = published(tmp_path / "both.pt", generator=other)
    blank = CausalTransformer(WAN)
    load_video_weights(path, blank)

    assert same(blank, network(WAN))
    load_video_weights(published(tmp_path / "one.pt", branch="generator"), CausalTransformer(WAN))


def test_a_published_file_may_bring_a_config(tmp_path: Path) -> None:
    path = write(tmp_path / "v.safetensors")
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    torch.save(
        {"generator": {f"model.{k}": v for k, v in network().state_dict().items()}, "config": config},
        tmp_path / "v.pt",
    )

    assert read_video_config(tmp_path / "v.pt") == CONFIG


def test_names_are_the_published_ones() -> None:
    parts = ("q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias", "o.weight", "o.bias")
    attention = {*parts, "norm_q.weight", "norm_k.weight"}
    block = {f"{name}.{part}" for name in ("self_attn", "cross_attn") for part in attention}
    block |= {
        "modulation",
        "norm3.weight",
        "norm3.bias",
        "ffn.0.weight",
        "ffn.0.bias",
        "ffn.2.weight",
        "ffn.2.bias",
    }
    outside = {"head.modulation", "head.head.weight", "head.head.bias"}
    texts = {"text_embedding.0", "text_embedding.2"}
    for name in {"patch_embedding", *texts, "time_embedding.0", "time_embedding.2", "time_projection.1"}:
        outside |= {f"{name}.weight", f"{name}.bias"}

    assert set(network(WAN).state_dict()) == outside | {
        f"blocks.{n}.{part}" for n in (0, 1) for part in block
    }
    assert set(network().state_dict()) - set(network(WAN).state_dict()) == {"words.weight"}


def test_published_shapes() -> None:
    with torch.device("meta"):
        state = CausalTransformer(CausalConfig.named("wan-1.3b")).state_dict()

    assert len(state) == 825
    assert sum(value.numel() for value in state.values()) == 1_418_996_800
    assert tuple(state["patch_embedding.weight"].shape) == (1536, 16, 1, 2, 2)
    assert tuple(state["time_projection.1.weight"].shape) == (9216, 1536)
    assert tuple(state["head.head.weight"].shape) == (64, 1536)
    assert architecture_of(state) == CausalConfig.named("wan-1.3b")


def test_wrapped_names() -> None:
    assert (
        plain_name("model._fsdp_wrapped_module.blocks.3._fsdp_wrapped_module.ffn.0.weight")
        == "blocks.3.ffn.0.weight"
    )
    assert plain_name("head.head.bias") == "head.head.bias"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "causal-video-9"}, "config format='causal-video-9'; a video model's is 'causal-video-1'"),
        ({"format": ...}, "config format=None"),
        ({"dim": ..., "shift": ...}, r"config lacks 'shift' \(also \['dim'\]\)"),
        ({"colour": 3}, "config has an unknown key 'colour'"),
        ({"dim": "128"}, "dim='128' must be an integer, at least 1"),
        ({"num_heads": 3}, "dim=128 must be a multiple of num_heads=3"),
        ({"sink_frames": -1}, "sink_frames=-1 must be an integer, at least 0"),
        ({"chunk_frames": 9}, "chunk_frames=9 must be in 1..window_frames=7"),
        ({"latent_hw": [2]}, r"latent_hw=\[2\] must be two integers above 0"),
        ({"solver": "heun"}, "solver='heun' must be euler or renoise"),
        ({"shift": True}, "shift=True must be a number"),
        ({"guidance": -1}, "guidance=-1.0 must be a finite number of at least 0"),
        ({"vocabulary": "walk"}, "vocabulary='walk' must be a list of words"),
        ({"steps": 0}, "steps=0 must be an integer, at least 1"),
    ],
)
def test_a_config_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "v.safetensors")
    read_video_config(path)

    with pytest.raises(CheckpointError, match=rf"^v\.safetensors: {message}"):
        read_video_config(changed(path, **changes))


def without(tensors: dict[str, Tensor]) -> None:
    del tensors["blocks.1.modulation"]


def with_more(tensors: dict[str, Tensor]) -> None:
    tensors["blocks.2.modulation"] = torch.zeros(1)


def with_another_shape(tensors: dict[str, Tensor]) -> None:
    tensors["words.weight"] = torch.zeros(8, 12)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without, r"weights do not fit: missing \['blocks.1.modulation'\], unexpected \[\]"),
        (with_more, r"weights do not fit: missing \[\], unexpected \['blocks.2.modulation'\]"),
        (with_another_shape, r"'words.weight' is \(8, 12\), \(7, 12\) is needed"),
    ],
)
def test_weights_are_refused_by_name(spoil: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "v.safetensors")
    tensors = load_file(path)
    spoil(tensors)
    blank = CausalTransformer(WORDS.model)
    before = {key: value.clone() for key, value in blank.state_dict().items()}

    with pytest.raises(CheckpointError, match=message):
        load_video_weights(changed(path, tensors), blank)

    assert all(torch.equal(value, before[key]) for key, value in blank.state_dict().items()), (
        "nothing was copied"
    )


def wan_state(**changes: Tensor) -> dict[str, Tensor]:
    return {**network(WAN).state_dict(), **{key.replace("__", "."): value for key, value in changes.items()}}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"fc.weight": torch.zeros(2, 2)}, "lacks 'patch_embedding.weight': these are no weights of a Wan"),
        (
            wan_state(patch_embedding__weight=torch.zeros(128, 9, 1, 2, 2)),
            "reads 9 channels and writes 16 / 4",
        ),
        (wan_state(patch_embedding__weight=torch.zeros(128, 4, 2, 2, 2)), "patches are 2 x 2 x 2"),
        (wan_state(patch_embedding__weight=torch.zeros(96, 4, 1, 2, 2)), "width 96 is not a multiple of 128"),
        (wan_state(head__head__weight=torch.zeros(16)), "'head.head.weight' has 1 axes, 2 are needed"),
    ],
)
def test_weights_of_another_kind_are_refused(
    weights: dict[str, Tensor], message: str, tmp_path: Path
) -> None:
    torch.save({"generator": weights}, tmp_path / "x.pt")

    with pytest.raises(CheckpointError, match=rf"^x\.pt: {message}"):
        read_video_config(tmp_path / "x.pt")


class Code:
    def __reduce__(self) -> Any:
        return print, ("code ran",)


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {}}, tmp_path / "a.pt")
    torch.save({"generator": {"x": 3}}, tmp_path / "b.pt")
    torch.save({"generator": {}, "config": 3}, tmp_path / "c.pt")
    (tmp_path / "d.pt").write_bytes(pickle.dumps(Code()))
    save_file({"x": torch.zeros(1)}, tmp_path / "e.safetensors")
    (tmp_path / "f.safetensors").write_bytes(b"nothing")
    save_file({"x": torch.zeros(1)}, tmp_path / "g.safetensors", metadata={"config": "{"})
    save_file({"x": torch.zeros(1)}, tmp_path / "h.safetensors", metadata={"config": "[]"})
    messages = {
        "a.pt": "must hold 'generator_ema' or 'generator'",
        "b.pt": r"generator\['x'\] is not a tensor",
        "c.pt": "config must be an object; got int",
        "d.pt": "not a weights-only torch file",
        "e.safetensors": "metadata lacks 'config': this is not a video checkpoint",
        "f.safetensors": "not a readable safetensors file",
        "g.safetensors": "config is not JSON",
        "h.safetensors": "config must be a JSON object",
    }

    for name, message in messages.items():
        with pytest.raises(CheckpointError, match=message):
            read_video_config(tmp_path / name)
    assert capsys.readouterr().out == ""
