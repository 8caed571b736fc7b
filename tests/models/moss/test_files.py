"""A checkpoint's files: what is read, what is refused and by which name, and that nothing runs or is fetched."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from worldloop.core.errors import CheckpointError
from worldloop.loops.moss_pictures import MossPictures
from worldloop.models.moss.files import (
    INDEX,
    WEIGHTS,
    checkpoint_hash,
    load_transformer,
    read_checkpoint,
)
from worldloop.testing_moss import SKIPPED, TINY, tiny_moss

PART = "diffusion_pytorch_model-00001-of-00002.safetensors"
CPU = torch.device("cpu")


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    saved = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in saved.items() if value is not None}))


def edit_part(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "transformer" / PART
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_a_checkpoint_is_known_by_its_index(copy: Path) -> None:
    edit(copy / INDEX, _class_name="FluxPipeline")

    with pytest.raises(
        CheckpointError, match=r"model_index.json: _class_name='FluxPipeline' must be 'MOSSImagePipeline'"
    ):
        read_checkpoint(copy)


def test_configs_are_read(checkpoint: Path) -> None:
    found = read_checkpoint(checkpoint)

    assert found.transformer == TINY
    assert (found.schedule.train_steps, found.schedule.shift) == (1000, 5.0)
    assert (found.skip.layers, found.skip.start, found.skip.stop) == (SKIPPED, 0.01, 1.0)
    assert (found.decoder.channels, found.decoder.scale, found.decoder.sample_size) == (16, 16, 64)
    assert found.decoder.widths == (4, 8, 8, 16)


def test_the_published_block_is_skipped_where_the_index_is_silent(copy: Path) -> None:
    edit(copy / INDEX, skip_guidance_layers=None)

    with pytest.raises(
        CheckpointError, match=r"skip_guidance_layers=\(22,\) must be a list of blocks in 0\.\.2"
    ):
        read_checkpoint(copy)
    edit(copy / "transformer" / "config.json", num_layers=23)
    assert read_checkpoint(copy).skip.layers == (22,)


TRANSFORMER = "transformer/config.json"
SCHEDULER = "scheduler/scheduler_config.json"
VAE = "vae/config.json"


@pytest.mark.parametrize(
    ("file", "changes", "problem"),
    [
        (INDEX, {"text_encoder": ["a", "GPT2Model"]}, r"text_encoder=\['a', 'GPT2Model'\] must be"),
        (INDEX, {"vae": None}, r"vae=None must be \['diffusers', 'AutoencoderKLFlux2'\]"),
        (INDEX, {"skip_guidance_layers": [3]}, r"skip_guidance_layers=\[3\] must be a list of blocks in 0\.\.2"),
        (INDEX, {"skip_layer_guidance_start": "0"}, "skip_layer_guidance_start='0' must be a number"),
        (TRANSFORMER, {"num_layers": None}, "lacks 'num_layers'"),
        (TRANSFORMER, {"dropout": 0.1}, "has an unknown key 'dropout'"),
        (TRANSFORMER, {"num_layers": True}, "num_layers=True must be an integer, at least 1"),
        (TRANSFORMER, {"eps": 0}, "eps=0 must be a number above 0"),
        (TRANSFORMER, {"timestep_channels": 15}, "timestep_channels=15 must be an even number"),
        (TRANSFORMER, {"axes_dims_rope": [8, 8]}, "axes_dims_rope=.* must be four even numbers"),
        (TRANSFORMER, {"axes_dims_rope": [4, 4, 4, 2]}, "axes_dims_rope=.* whose sum is head_dim=16"),
        (TRANSFORMER, {"bias": 0}, "bias=0 must be true or false"),
        (TRANSFORMER, {"in_channels": 8}, "makes 8 channels; vae/config.json packs 16"),
        (TRANSFORMER, {"joint_attention_dim": 48}, "reads text 48 wide; text_encoder/config.json gives 32"),
        (SCHEDULER, {"shift": "5"}, "shift='5' must be a number"),
        (SCHEDULER, {"use_karras_sigmas": True}, "has an unknown key 'use_karras_sigmas'"),
        (SCHEDULER, {"num_train_timesteps": None}, "lacks 'num_train_timesteps'"),
        (VAE, {"patch_size": [2, 1]}, r"patch_size=\[2, 1\] must be two equal numbers"),
        (VAE, {"batch_norm_eps": None}, "lacks 'batch_norm_eps'"),
        (VAE, {"decoder_block_out_channels": "x"}, "decoder_block_out_channels='x' must be a list of numbers"),
        ("text_encoder/config.json", {"text_config": None}, "text_config.hidden_size=None must be an integer"),
    ],
)  # fmt: skip
def test_a_config_is_refused_by_file_and_key(
    file: str, changes: dict[str, Any], problem: str, copy: Path
) -> None:
    edit(copy / file, **changes)

    with pytest.raises(CheckpointError, match=f"^{file}: .*{problem}"):
        read_checkpoint(copy)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object; got list"),
        ("[" * 100_000, "is not JSON"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_config_is_refused(content: str | None, problem: str, copy: Path) -> None:
    path = copy / TRANSFORMER
    if content is None:
        path.unlink()
    else:
        path.write_text(content)

    with pytest.raises(CheckpointError, match=f"^{TRANSFORMER}: {problem}"):
        read_checkpoint(copy)


def renamed(tensors: dict[str, torch.Tensor]) -> None:
    tensors["x_embedder.gain"] = tensors.pop("x_embedder.weight")


def wider(tensors: dict[str, torch.Tensor]) -> None:
    tensors["x_embedder.weight"] = torch.zeros(32, 17)


def whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["x_embedder.weight"] = torch.zeros(32, 16, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (renamed, f"{PART}: does not hold what the index says of 'x_embedder.gain'"),
        (wider, rf"{PART}: 'x_embedder.weight' is \(32, 17\); \(32, 16\) is needed"),
        (whole_numbers, f"{PART}: 'x_embedder.weight' is torch.int32; floats are needed"),
    ],
)
def test_a_tensor_is_refused_by_name(change: Any, problem: str, copy: Path) -> None:
    edit_part(copy, change)

    with pytest.raises(CheckpointError, match=problem):
        load_transformer(read_checkpoint(copy), dtype=torch.float32)


def test_one_file_does_as_well_as_parts(checkpoint: Path, copy: Path) -> None:
    whole: dict[str, torch.Tensor] = {}
    for path in (copy / "transformer").glob("*.safetensors"):
        whole |= load_file(path)
        path.unlink()
    (copy / "transformer" / f"{WEIGHTS}.index.json").unlink()
    save_file(whole, copy / "transformer" / WEIGHTS)

    one, two = (load_transformer(read_checkpoint(each), dtype=torch.float32) for each in (checkpoint, copy))

    assert all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )
    missing = dict(whole)
    del missing["proj_out.bias"], missing["proj_out.weight"]
    save_file(missing, copy / "transformer" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"transformer: lacks the tensor 'proj_out.bias' and 1 more"):
        load_transformer(read_checkpoint(copy), dtype=torch.float32)
    save_file({**whole, "proj_out.scale": torch.zeros(1)}, copy / "transformer" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"has an unknown tensor 'proj_out.scale'"):
        load_transformer(read_checkpoint(copy), dtype=torch.float32)


@pytest.mark.parametrize("file", ["../vae/diffusion_pytorch_model.safetensors", "evil.bin", "/etc/passwd"])
def test_an_index_names_files_beside_it_only(file: str, copy: Path) -> None:
    edit(copy / "transformer" / f"{WEIGHTS}.index.json", weight_map={"x_embedder.weight": file})

    with pytest.raises(CheckpointError, match=r"weight_map has .*; files are \.safetensors beside it"):
        load_transformer(read_checkpoint(copy), dtype=torch.float32)


@pytest.mark.parametrize(("part", "file"), [("text_encoder", "model.safetensors"), ("vae", WEIGHTS)])
def test_parts_of_libraries_are_checked_too(part: str, file: str, copy: Path) -> None:
    path = copy / part / file
    tensors = load_file(path)
    first = next(name for name in tensors if name.endswith("norm.weight") or name.endswith("conv_in.weight"))
    for change, problem in (
        ({}, f"{part}: lacks the tensor"),
        (
            {first: tensors[first], "odd.weight": torch.zeros(1)},
            f"{part}: has an unknown tensor 'odd.weight'",
        ),
        ({first: torch.zeros(3)}, f"{part}: has another shape for"),
    ):
        left = {name: value for name, value in tensors.items() if name != first}
        save_file({**left, **change}, path, metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=problem):
            MossPictures.load(copy, device=CPU, dtype=torch.float32)
    path.unlink()
    torch.save(tensors, path.with_name("pytorch_model.bin"))  # pickles are not read
    torch.save(tensors, path.with_name("diffusion_pytorch_model.bin"))
    with pytest.raises(CheckpointError, match=f"{part}: cannot be loaded"):
        MossPictures.load(copy, device=CPU, dtype=torch.float32)


def test_loading_asks_no_network(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert MossPictures.load(checkpoint, device=CPU, dtype=torch.float32).max_pixels == 6144


def test_a_hash_is_over_every_file(checkpoint: Path, copy: Path) -> None:
    assert checkpoint_hash(copy) == checkpoint_hash(checkpoint)
    edit_part(copy, lambda tensors: tensors["x_embedder.weight"].mul_(2))
    changed = checkpoint_hash(copy)
    assert changed != checkpoint_hash(checkpoint)
    (copy / "tokenizer" / "chat_template.jinja").write_text("other")
    assert checkpoint_hash(copy) != changed


def test_a_seed_makes_the_weights(checkpoint: Path, tmp_path: Path) -> None:
    assert checkpoint_hash(tiny_moss(tmp_path / "same")) == checkpoint_hash(checkpoint)
    assert checkpoint_hash(tiny_moss(tmp_path / "other", seed=1)) != checkpoint_hash(checkpoint)


def test_the_libraries_are_only_imported_for_a_checkpoint() -> None:
    code = (
        "import sys, worldloop.loops.moss_pictures, worldloop.testing_moss\n"
        "print({'transformers', 'diffusers', 'tokenizers', 'huggingface_hub'} & set(sys.modules))\n"
    )

    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )

    assert answer.stdout.strip() == "set()"
