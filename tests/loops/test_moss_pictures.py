"""MOSS-Image as a picture model: whole pictures against float64 in one line, passes counted, residency, bytes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from worldloop.engine.contract import Done
from worldloop.loops.moss_pictures import MossPictures
from worldloop.loops.picture import PictureLoop, PictureRequest, PictureResult
from worldloop.loops.picture_model import PHASES, PictureModel, one_by_one, resident
from worldloop.loops.rollout import Profile, Rollout
from worldloop.loops.units import run_unit
from worldloop.models.portable_noise import portable_rows
from worldloop.testing_moss import SKIPPED, TINY, tiny_moss

from ..models.moss import reference

SIZE, GRID, STEPS = (48, 64), (3, 4), 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_moss(tmp_path_factory.mktemp("moss"))


@pytest.fixture(scope="module")
def pictures(checkpoint: Path, one_thread: None) -> MossPictures:
    return MossPictures.load(checkpoint, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def passes(pictures: MossPictures) -> Iterator[list[tuple[str, int]]]:
    """What ran: ("network", text rows) for each pass and ("block", its number) for each block."""
    ran: list[tuple[str, int]] = []

    def saw(kind: str, number: int) -> Callable[..., None]:
        return lambda module, args, made: ran.append((kind, number if number >= 0 else len(args[2].text)))

    network = pictures.network
    hooks = [network.register_forward_hook(saw("network", -1))]
    hooks += [block.register_forward_hook(saw("block", i)) for i, block in enumerate(network.blocks)]
    yield ran
    for hook in hooks:
        hook.remove()


def request(**choices: Any) -> PictureRequest:
    plain = {
        "prompt": "a lake",
        "negative": "use less",
        "size": SIZE,
        "seed": 4,
        "steps": STEPS,
        "guidance": 3.0,
        "shift": 5.0,
    }
    return PictureRequest(**{**plain, **choices})


def make(model: PictureModel, wanted: PictureRequest) -> PictureResult:
    loop = PictureLoop(model)
    state = loop.init(wanted)
    while not isinstance(loop.next(state), Done):
        run_unit(loop, state)
    result = loop.finalize(state)
    assert result is not None
    return result


def straight(checkpoint: Path, pictures: MossPictures, *, guidance: float = 3.0, fault: str = "") -> Any:
    """The same picture in one line of float64: encode, denoise, decode; pixels before rounding."""
    from diffusers import AutoencoderKLFlux2

    network = reference.Network(
        w=reference.weights_of(checkpoint), heads=TINY.heads, layers=TINY.layers, text_layers=TINY.text_layers,
        axes=TINY.rope_axes, base=TINY.rope_base, eps=TINY.eps, time_dim=TINY.time_dim,
    )  # fmt: skip
    cond, uncond = (pictures.encode_text(text).double().numpy() for text in ("a lake", "use less"))
    if fault == "branches":
        cond, uncond = uncond, cond
    x = portable_rows(GRID, TINY.channels, seed=4).double().numpy()
    grid = [*reference.timesteps(STEPS, 5.0), 0]
    for i, (t, after) in enumerate(itertools.pairwise(grid)):
        skipped = SKIPPED if i >= (0 if fault == "skip_from_the_start" else 1) and fault != "no_skip" else ()
        c = network.velocity(x, t, cond, GRID, SKIPPED if fault == "skip_both" and i else ())
        u = network.velocity(x, t, uncond, GRID, skipped) if guidance != 1 else c
        x = x + (after - t) / 1000 * (u + guidance * (c - u))
    vae = AutoencoderKLFlux2.from_pretrained(
        checkpoint / "vae", torch_dtype=torch.float64, local_files_only=True, low_cpu_mem_usage=False
    ).eval()
    packed = x * np.sqrt(vae.bn.running_var.numpy() + 1e-4) + vae.bn.running_mean.numpy()
    with torch.inference_mode():
        shown = vae.decode(torch.from_numpy(reference.unpacked(packed, GRID, 4))[None]).sample[0]
    return np.clip(shown.permute(1, 2, 0).numpy() / 2 + 0.5, 0, 1) * 255


# -- whole pictures ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_picture_is_the_one_of_the_formulas(
    guidance: float, checkpoint: Path, pictures: MossPictures
) -> None:
    result = make(pictures, request(guidance=guidance))

    off = np.abs(result.pixels - straight(checkpoint, pictures, guidance=guidance)).max()

    assert result.pixels.shape == (*SIZE, 3)
    assert off < 0.5 + 0.02
    assert result.pixels.std() > 10


@pytest.mark.parametrize("fault", ["branches", "no_skip", "skip_both", "skip_from_the_start"])
def test_a_planted_mistake_shows_in_the_picture(fault: str, checkpoint: Path, pictures: MossPictures) -> None:
    off = np.abs(make(pictures, request()).pixels - straight(checkpoint, pictures, fault=fault)).max()

    assert off > 2


def test_a_folder_that_the_libraries_wrote_makes_the_same_picture(
    checkpoint: Path, pictures: MossPictures, tmp_path: Path
) -> None:
    from diffusers import AutoencoderKLFlux2, ConfigMixin
    from diffusers.configuration_utils import register_to_config
    from transformers import AutoTokenizer, Qwen3_5Model

    class MOSSImageScheduler(ConfigMixin):
        config_name = "scheduler_config.json"

        @register_to_config
        def __init__(self, num_train_timesteps: int = 1000, shift: float = 5.0) -> None:
            pass

    for kept in ("model_index.json", "transformer"):
        copy = shutil.copytree if (checkpoint / kept).is_dir() else shutil.copy
        copy(checkpoint / kept, tmp_path / kept)
    vae = AutoencoderKLFlux2.from_pretrained(checkpoint / "vae")
    vae.save_pretrained(tmp_path / "vae", max_shard_size="40KB")
    encoder = Qwen3_5Model.from_pretrained(checkpoint / "text_encoder")
    encoder.save_pretrained(tmp_path / "text_encoder", max_shard_size="40KB")
    AutoTokenizer.from_pretrained(checkpoint / "tokenizer").save_pretrained(tmp_path / "tokenizer")
    MOSSImageScheduler().save_config(tmp_path / "scheduler")
    for part in ("vae", "text_encoder"):
        assert len(list((tmp_path / part).glob("*-of-*.safetensors"))) > 1

    again = MossPictures.load(tmp_path, device=torch.device("cpu"), dtype=torch.float32)

    assert np.array_equal(make(again, request()).pixels, make(pictures, request()).pixels)


def test_the_same_request_gives_the_same_bytes(pictures: MossPictures) -> None:
    first, again, other = (make(pictures, request(seed=seed)).pixels for seed in (4, 4, 5))

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_bfloat16_makes_nearly_the_same_picture(checkpoint: Path, pictures: MossPictures) -> None:
    coarse = MossPictures.load(checkpoint, device=torch.device("cpu"), dtype=torch.bfloat16)

    off = make(coarse, request()).pixels.astype(float) - make(pictures, request()).pixels

    assert {part.dtype for part in coarse.decoder.vae.parameters()} == {torch.float32}
    assert next(coarse.encoder.model.parameters()).dtype == torch.bfloat16
    assert 0 < np.abs(off).mean() < 8


# -- passes, counted --------------------------------------------------------------------------------------------------
def test_at_guidance_1_there_is_no_pass_without_the_prompt(
    pictures: MossPictures, passes: list[tuple[str, int]]
) -> None:
    make(pictures, request(guidance=1.0))

    assert [number for kind, number in passes if kind == "network"] == [
        len(pictures.encode_text("a lake"))
    ] * STEPS
    assert [number for kind, number in passes if kind == "block"] == [0, 1, 2] * STEPS


def test_the_pass_without_the_prompt_leaves_out_a_block_after_step_0(
    pictures: MossPictures, passes: list[tuple[str, int]]
) -> None:
    make(pictures, request(guidance=3.0))

    cond, uncond = (len(pictures.encode_text(text)) for text in ("a lake", "use less"))
    assert [number for kind, number in passes if kind == "network"] == [cond, uncond] * STEPS
    blocks = [number for kind, number in passes if kind == "block"]
    assert blocks == [0, 1, 2, 0, 1, 2] + [0, 1, 2, 0, 2] * (STEPS - 1)


def test_the_window_is_of_i_over_n(pictures: MossPictures) -> None:
    skip = pictures.checkpoint.skip

    assert [bool(skip.at(i, 50)) for i in (0, 1, 49)] == [False, True, True]
    assert [bool(skip.at(i, 101)) for i in (0, 1, 2, 100)] == [False, False, True, True]


def test_refinement_and_phases_are_made_once_a_branch(
    pictures: MossPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    real = pictures.network.condition
    monkeypatch.setattr(
        pictures.network, "condition", lambda text, grid: made.append(len(text)) or real(text, grid)
    )

    make(pictures, request())

    assert len(made) == 2


# -- facts ------------------------------------------------------------------------------------------------------------
def test_facts_come_from_the_checkpoint(pictures: MossPictures) -> None:
    model: PictureModel = pictures

    assert (model.defaults.size, model.defaults.steps) == ((64, 64), 50)
    assert (model.defaults.guidance, model.defaults.shift) == (3.0, 5.0)
    assert (model.multiple, model.sizes, model.max_pixels) == (16, None, 6144)
    assert len(model.file_hash) == 64
    assert model.machine["dtype"] == "float32"
    assert {"transformers", "diffusers"} < set(model.machine)
    assert model.noise(4, SIZE).shape == (12, 16)
    assert torch.equal(model.noise(4, SIZE), portable_rows(GRID, 16, seed=4))


def test_bytes_grow_with_the_picture(pictures: MossPictures) -> None:
    small, large = (pictures.bytes_of(size) for size in ((48, 64), (64, 96)))

    assert all(large[phase].weights == small[phase].weights > 0 for phase in PHASES)
    assert large["encode"] == small["encode"]
    assert all(large[phase].scratch > small[phase].scratch > 0 for phase in ("denoise", "decode"))
    assert one_by_one(large) < resident(large)


class Part(nn.Module):
    """A part that says where it is told to go."""

    def __init__(self, name: str, moves: list[tuple[str, str]]) -> None:
        super().__init__()
        self.name, self.moves, self.where = name, moves, "cpu"

    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(device=torch.device(self.where))])

    def to(self, device: Any) -> Part:  # type: ignore[override]
        self.where = torch.device(device).type
        self.moves.append((self.name, self.where))
        return self


def test_parts_leave_before_others_come(pictures: MossPictures) -> None:
    moves: list[tuple[str, str]] = []
    encoder, network, vae = (Part(name, moves) for name in ("encoder", "network", "vae"))
    model = MossPictures(
        checkpoint=pictures.checkpoint, prompts=pictures.prompts, encoder=SimpleNamespace(model=encoder),
        network=network, decoder=SimpleNamespace(vae=vae), device=torch.device("cuda"), dtype=torch.float32,
    )  # type: ignore[arg-type]  # fmt: skip

    for phase in PHASES:
        model.place(frozenset({phase}))
    model.place(frozenset({"decode"}))

    assert moves == [
        ("encoder", "cuda"), ("encoder", "cpu"), ("network", "cuda"), ("network", "cpu"), ("vae", "cuda"),
    ]  # fmt: skip
    model.place(frozenset(PHASES))
    assert moves[5:] == [("encoder", "cuda"), ("network", "cuda")]


def test_its_recorded_predictions_make_it_again_without_a_pass(
    pictures: MossPictures, passes: list[tuple[str, int]]
) -> None:
    record = Rollout()
    made = make(pictures, request(profile=Profile(record=record)))
    passes.clear()

    again = make(pictures, request(profile=Profile(override=record.predictions())))

    assert passes == []
    assert made.pixels.tobytes() == again.pixels.tobytes() == make(pictures, request()).pixels.tobytes()
    assert [step.timestep for step in record.chunks[0].steps] == reference.timesteps(STEPS, 5.0)
