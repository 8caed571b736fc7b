"""The embedded picture model: loading and refusing, sizes, bytes, and where its parts lie."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worldloop.core.errors import CheckpointError
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.picture_model import PHASES, one_by_one, resident
from worldloop.testing import random_picture_model, tiny_picture, tiny_video

CPU = torch.device("cpu")


def load(path: Path, **choices: Any) -> CausalPictures:
    formats = {"dtype": torch.float32, "decoder": torch.float32, **choices}
    return CausalPictures.load(path, path.parent / "autoencoder.safetensors", device=CPU, **formats)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_picture(tmp_path_factory.mktemp("picture"))


def test_it_makes_the_sizes_of_its_file(checkpoint: Path) -> None:
    model = load(checkpoint)

    assert model.sizes == ((48, 64), (64, 48), (32, 32), (64, 96))
    assert model.defaults.size == (48, 64)
    assert model.max_pixels == 64 * 96
    assert model.multiple == 16


def test_without_grids_it_makes_one_size(tmp_path: Path, one_thread: None) -> None:
    model = load(tiny_picture(tmp_path, facts={}))

    assert model.sizes == ((48, 64),)


@pytest.mark.parametrize("grids", [[[3]], [3, 4], [[0, 4]], "3x4", 7])
def test_grids_that_are_none_are_refused(tmp_path: Path, one_thread: None, grids: Any) -> None:
    with pytest.raises(CheckpointError, match=r"tiny-picture\.safetensors: grids="):
        load(tiny_picture(tmp_path, facts={"grids": grids}))


def test_a_video_model_of_longer_chunks_is_refused(tmp_path: Path, one_thread: None) -> None:
    with pytest.raises(CheckpointError, match="chunk_frames=1"):
        load(tiny_video(tmp_path))


def test_another_autoencoder_than_it_was_trained_on_is_refused(tmp_path: Path, one_thread: None) -> None:
    facts = {"autoencoder": {"sha256": "0" * 64}}
    with pytest.raises(CheckpointError, match="another autoencoder"):
        load(tiny_picture(tmp_path, facts=facts))


def test_the_hash_is_of_both_files(checkpoint: Path, tmp_path: Path) -> None:
    one = load(checkpoint)
    other_network = load(tiny_picture(tmp_path / "a", seed=1))
    mixed = tiny_picture(tmp_path / "b", seed=1)
    mixed.write_bytes(checkpoint.read_bytes())
    other_coder = load(mixed)

    assert len({one.file_hash, other_network.file_hash, other_coder.file_hash}) == 3
    assert one.file_hash == load(checkpoint).file_hash
    assert one.autoencoder_hash != other_coder.autoencoder_hash


class Peak(TorchDispatchMode):
    """Counts bytes of tensors that live at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)
        }
        for leaf in tree_leaves(out):
            if torch.is_tensor(leaf) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                if storage._cdata not in given | self._seen:
                    self._seen.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return out

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


@pytest.mark.parametrize("size", [(48, 64), (64, 96), (512, 768)])
def test_the_stated_bytes_hold_what_a_phase_makes(one_thread: None, size: tuple[int, int]) -> None:
    model = random_picture_model()
    needs = model.bytes_of(size)
    with torch.inference_mode():
        x = model.noise(0, size)
        with Peak() as denoise:
            readings = [model.condition(model.encode_text(text), size) for text in ("a lake", "")]
            for negative, reading in enumerate(readings):
                x = x + model.predict(x, 1.0, reading, step=0, steps=1, negative=bool(negative))
        del readings, reading
        with Peak() as decode:
            model.decode(x, 0, size)

    for peak, phase in ((denoise, "denoise"), (decode, "decode")):
        stated = needs[phase].scratch  # type: ignore[index]
        assert stated / 4 < peak.peak <= stated, phase


def test_sums_of_phases(one_thread: None) -> None:
    needs = random_picture_model().bytes_of((48, 64))

    assert resident(needs) == sum(n.weights for n in needs.values()) + needs["decode"].scratch
    assert one_by_one(needs) == needs["decode"].weights + needs["decode"].scratch
    assert one_by_one(needs) < resident(needs)


def test_parts_move_with_their_phase(one_thread: None) -> None:
    model = random_picture_model()
    model.device = torch.device("meta")
    model.place(frozenset({"denoise"}))
    assert next(model.network.parameters()).is_meta
    assert not next(model.autoencoder.parameters()).is_meta
    model = random_picture_model()
    before = model.decode(model.noise(1, (48, 64)), 0, (48, 64))
    model.place(frozenset({"encode"}))
    model.place(frozenset(PHASES))
    assert torch.equal(before, model.decode(model.noise(1, (48, 64)), 0, (48, 64)))
