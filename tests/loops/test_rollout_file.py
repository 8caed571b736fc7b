"""The file of a recorded rollout: there and back, and every way in which it can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from worldloop.core.errors import InvalidInputError, SnapshotError
from worldloop.engine.contract import Plan
from worldloop.loops.rollout import Profile, Rollout
from worldloop.loops.rollout_file import load_rollout, pack_rollout, save_rollout, unpack_rollout
from worldloop.loops.snapshot import KEY, pack
from worldloop.loops.tape import TapeFacts
from worldloop.loops.units import run_unit
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_request import VideoRequest
from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.testing import ScriptedPlayer, play, random_video_model

Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


def video_rollout(**choices: Any) -> Rollout:
    record, loop = Rollout(**choices), VideoLoop(random_video_model())
    text = loop.model.encode_text("a lake")
    request = VideoRequest(prompt=text, seed=3, latent_frames=4, guidance=2.0, profile=Profile(record=record))
    state = loop.init(request)
    while isinstance(loop.next(state), Plan):
        run_unit(loop, state)
    return record


@pytest.fixture(scope="module")
def record(one_thread: None) -> Rollout:
    return video_rollout()


def same(found: Rollout, expected: Rollout) -> bool:
    """Whether everything in them is equal."""

    def parts(rollout: Rollout) -> tuple[list[Any], list[Tensor]]:
        facts: list[Any] = [rollout.family, rollout.seed, rollout.full, rollout.nbytes]
        tensors: list[Tensor] = []
        for chunk in rollout.chunks:
            facts += [chunk.frame, [*chunk.told]]
            tensors += [chunk.latents, *chunk.told.values()]
            for step in chunk.steps:
                facts += [step.step, step.timestep, step.alpha, step.sigma, step.given, [*step.branches]]
                tensors += [step.x_t, step.v, step.x0, *step.branches.values()]
        assert tensors
        return facts, tensors

    (mine, own), (theirs, others) = parts(found), parts(expected)
    return mine == theirs and all(torch.equal(a, b) for a, b in zip(own, others, strict=True))


def test_a_file_holds_all_of_a_video(record: Rollout, tmp_path: Path) -> None:
    save_rollout(tmp_path / "video.rollout", record)
    found = load_rollout(tmp_path / "video.rollout")

    assert same(found, record)
    assert len(found.chunks) == 2
    assert pack_rollout(found) == pack_rollout(record)
    assert found.chunks[0].told["cond"] is found.chunks[1].told["cond"], "stored once"
    found.chunks[1].steps[0].v[0, 0, 0, 0] += 1.0
    assert not same(found, record), "control"
    with safe_open(tmp_path / "video.rollout", framework="pt") as file:  # type: ignore[no-untyped-call]
        assert json.loads(file.metadata()[KEY])["format"] == "worldloop-rollout-1"


def test_a_file_holds_all_of_a_world(ask: Callable[..., WorldRequest], model: Any) -> None:
    record = Rollout()
    play(WorldLoop(model), ask(seed=4, profile=Profile(record=record)), ScriptedPlayer.of("w", ""), 3)

    found = unpack_rollout(pack_rollout(record))

    assert same(found, record)
    assert (found.family, len(found.chunks)) == ("world", 4)


def test_a_full_record_says_so_in_its_file() -> None:
    record = video_rollout(max_bytes=20_000)
    assert record.full
    assert len(record.chunks) == 1
    assert unpack_rollout(pack_rollout(record)).full


def changed(data: bytes, change: Change) -> bytes:
    """The file with other facts or tensors."""
    size = int.from_bytes(data[:8], "little")
    facts, tensors = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][KEY]), load(data)
    change(facts, tensors)
    return save(tensors, metadata={KEY: json.dumps(facts)})


def without(name: str) -> Change:
    def change(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return change


def put(name: str, tensor: Tensor) -> Change:
    return lambda _, tensors: tensors.update({name: tensor})


def say(values: Mapping[str, Any]) -> Change:
    return lambda facts, _: facts.update(values)


WRONG: dict[str, tuple[Change, str]] = {
    "a latent is missing": (without("chunk1.latents"), r"tensor 'chunk1.latents' is missing"),
    "a step is missing": (without("chunk0.step2.v"), r"tensor 'chunk0.step2.v' is missing"),
    "a branch is missing": (without("chunk0.step2.branch.uncond"), r"branch.uncond' is missing"),
    "a text is missing": (without("told1"), r"tensor 'told1' is missing"),
    "another shape": (put("chunk0.step0.x_t", torch.zeros(2, 8, 3, 3)), r"is \(2, 8, 3, 3\); \(2, 8, 3, 4\) is needed"),
    "one too many": (put("extra", torch.zeros(1)), r"tensor 'extra' is unexpected"),
    "not finite": (put("chunk0.latents", torch.full((2, 8, 3, 4), torch.nan)), r"not finite"),
    "another format": (say({"format": "worldloop-rollout-2"}), r"format is '"),
    "no chunks": (say({"chunks": []}), r"chunks: "),
    "another type": (say({"seed": "3"}), r"seed: "),
    "an unknown fact": (say({"more": 1}), r"more: "),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_by_name(wrong: str, record: Rollout) -> None:
    change, words = WRONG[wrong]
    data = pack_rollout(record)
    assert same(unpack_rollout(changed(data, lambda *_: None)), record), "control: unchanged, it is read"

    with pytest.raises(SnapshotError, match=words):
        unpack_rollout(changed(data, change))


@pytest.mark.parametrize("data", [b"", b"nothing", bytes(1000)])
def test_what_is_no_rollout_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError, match="a worldloop rollout is needed"):
        unpack_rollout(data)


def test_a_damaged_file_another_kind_and_no_file_are_refused(record: Rollout, tmp_path: Path) -> None:
    data = pack_rollout(record)
    with pytest.raises(SnapshotError, match="damaged"):
        unpack_rollout(data[:-10])
    other = pack(TapeFacts.model_construct(start=None, runs=(), sha256=""), {})
    with pytest.raises(SnapshotError, match="format is '"):
        unpack_rollout(other)
    with pytest.raises(InvalidInputError, match=r"none\.rollout cannot be read"):
        load_rollout(tmp_path / "none.rollout")


def test_nothing_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing was recorded"):
        save_rollout(tmp_path / "empty.rollout", Rollout())
    assert not any(tmp_path.iterdir())
    with pytest.raises(ValueError, match="nothing was recorded"):
        _ = Rollout().latents
