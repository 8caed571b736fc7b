"""Snapshots: taken after any unit of work and put into another session, the same bytes follow; misfits are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from worldloop.core.errors import SnapshotError
from worldloop.core.types import Controls
from worldloop.engine.contract import Emit, Idle
from worldloop.loops.model import WorldModel
from worldloop.loops.snapshot import KEY, Origin, Snapshot, put_back, take
from worldloop.loops.world import WorldLoop, WorldRequest, WorldState
from worldloop.models.memory import Recency
from worldloop.testing import ScriptedPlayer, random_model, run_unit

Ask = Callable[..., WorldRequest]
PLAYER = ScriptedPlayer.of("w", "wd", "", "a", "s", ["left"])
ORIGIN = Origin(model_id="tiny-3r", checkpoint="a" * 64, autoencoder="b" * 64, recency=None, table=4096)
LATENTS = 10


@pytest.fixture(scope="module")
def biased(one_thread: None) -> WorldModel:
    """A random tiny world whose summaries are biased by age, so that the bias shapes the pictures."""
    model = random_model("tiny", raw_window_frames=1, summary_window_frames=4, rope_table_len=64)
    model.config = replace(model.config, recency=Recency(flat_until=1, decay_end=5, beta=6.0, gamma=1.0))
    return model


def go_on(loop: WorldLoop, state: WorldState, made: int) -> bytes:
    """Pictures of the latent frames from number `made` on, up to `LATENTS`."""
    emits: list[Emit] = []
    while made + len(emits) <= LATENTS:
        if isinstance(loop.next(state), Idle):
            frame = made + len(emits)
            loop.offer(state, PLAYER.controls(frame - 1) if frame else Controls())
        emits += run_unit(loop, state)
    return b"".join(emit.frames.tobytes() for emit in emits)


def after_units(loop: WorldLoop, request: WorldRequest, units: int) -> tuple[WorldState, int]:
    """A session after so many units of work, and the number of frames that it has shown."""
    state, shown = loop.init(request), 0
    for _ in range(units):
        if isinstance(loop.next(state), Idle):
            loop.offer(state, PLAYER.controls(shown - 1) if shown else Controls())
        shown += len(run_unit(loop, state))
    return state, shown


def elsewhere(loop: WorldLoop, snapshot: Snapshot, ask: Ask) -> WorldState:
    """Another session that was elsewhere, put to the snapshot by way of a file."""
    state, _ = after_units(loop, ask(seed=99), 7)
    while not isinstance(loop.next(state), Idle):
        run_unit(loop, state)
    read = Snapshot.unpack(snapshot.pack())
    read.check(loop, ORIGIN)
    put_back(loop, state, read)
    return state


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"reprefill_every": 3, "drift_limit": 50.0},
        {"sphere": "all", "nfe": 4},
        {"focus": torch.arange(12) % 3 == 0},
    ],
    ids=["plain", "rebuilt", "sphere", "focus"],
)
def test_the_same_bytes_follow_whatever_unit_it_was_taken_after(
    choices: dict[str, Any], biased: WorldModel, ask: Ask
) -> None:
    loop, request = WorldLoop(biased), ask(**choices)
    whole = go_on(loop, loop.init(request), 0)
    start, body = 48 * 64 * 3, 4 * 48 * 64 * 3
    cuts = (0, 1, 2, 3, 5, 6, 7, 27, 28, 29, 30, 31, 32, 33, 34, 35)
    for units in cuts:
        state, shown = after_units(loop, request, units)
        snapshot = take(state, ORIGIN)
        there = elsewhere(loop, snapshot, ask)

        assert snapshot.made == shown
        assert take(there, ORIGIN).pack() == snapshot.pack()
        after = go_on(loop, there, shown)
        assert after == whole[start + body * (shown - 1) if shown else 0 :], f"after {units} units"
        assert len(after) >= body


def test_without_a_clean_pass(ask: Ask, one_thread: None) -> None:
    loop = WorldLoop(random_model("tiny", cache_mode="last_step_writes"))
    whole = go_on(loop, loop.init(ask()), 0)
    for units in range(10, 15):
        state, shown = after_units(loop, ask(), units)
        after = go_on(loop, elsewhere(loop, take(state, ORIGIN), ask), shown)
        assert after == whole[-len(after) :]
        assert after


def other_noise(state: WorldState) -> None:
    state.frame += 1


def no_decoder_cache(state: WorldState) -> None:
    assert state.decoder is not None
    state.decoder = torch.zeros_like(state.decoder)


def no_bias(state: WorldState) -> None:
    state.memory.bias[: state.memory.end] = 0


def no_master_of_the_sink(state: WorldState) -> None:
    state.memory.buffers.sink.zero_()


def no_start_picture(state: WorldState) -> None:
    state.memory.keys[..., : state.memory.config.record, :] = 0


def other_place_of_the_sink(state: WorldState) -> None:
    state.memory.sink_id = state.memory.frame - 1


def no_record(state: WorldState) -> None:
    state.memory.advance()
    state.frame, state.step, state.current = state.frame + 1, 0, None


def no_past(state: WorldState) -> None:
    state.past[-1] = replace(state.past[-1], x0=torch.zeros_like(state.past[0].x0))


def no_held_keys_of_the_past(state: WorldState) -> None:
    state.past[-1] = replace(state.past[-1], controls=Controls())


def no_count_to_the_rebuild(state: WorldState) -> None:
    state.since_prefill = 0


@pytest.mark.parametrize(
    "leave_out",
    [
        other_noise, no_decoder_cache, no_bias, no_master_of_the_sink, no_start_picture, other_place_of_the_sink,
        no_record, no_past, no_held_keys_of_the_past, no_count_to_the_rebuild,
    ],
)  # fmt: skip
def test_what_is_left_out_shows(
    leave_out: Callable[[WorldState], None], biased: WorldModel, ask: Ask
) -> None:
    """The planted control of the gate above: each part of a state is needed."""
    loop, request = WorldLoop(biased), ask(reprefill_every=7)
    state, shown = after_units(loop, request, 31)
    snapshot = take(state, ORIGIN)
    assert snapshot.facts.written is not None
    whole = go_on(loop, elsewhere(loop, snapshot, ask), shown)

    there = elsewhere(loop, snapshot, ask)
    with torch.inference_mode():
        leave_out(there)

    assert go_on(loop, there, shown) != whole


def test_a_memory_keeps_its_addresses(biased: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(biased)
    snapshot = take(after_units(loop, ask(), 20)[0], ORIGIN)
    state = loop.init(ask(seed=3))
    before = [tensor.data_ptr() for tensor in state.memory.buffers.tensors]

    put_back(loop, state, snapshot)

    assert [tensor.data_ptr() for tensor in state.memory.buffers.tensors] == before


def test_a_snapshot_is_not_changed_by_who_goes_on_from_it(biased: WorldModel, ask: Ask) -> None:
    loop = WorldLoop(biased)
    state, shown = after_units(loop, ask(), 20)
    snapshot = take(state, ORIGIN)
    file = snapshot.pack()
    go_on(loop, state, shown)
    go_on(loop, elsewhere(loop, snapshot, ask), shown)

    assert snapshot.pack() == file


# -- refusals -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def taken(biased: WorldModel, ask: Ask) -> Snapshot:
    """While a record is due, past the window."""
    snapshot = take(after_units(WorldLoop(biased), ask(), 31)[0], ORIGIN)
    assert snapshot.facts.written is not None
    return snapshot


def refused(data: bytes, biased: WorldModel, says: str, origin: Origin = ORIGIN) -> None:
    with pytest.raises(SnapshotError, match=says):
        Snapshot.unpack(data).check(WorldLoop(biased), origin)


def changed(snapshot: Snapshot, facts: dict[str, Any] | None = None, **tensors: torch.Tensor | None) -> bytes:
    """A file with other facts or tensors; a None takes the tensor out."""
    text = json.dumps({**json.loads(snapshot.facts.model_dump_json()), **(facts or {})})
    whole = {**snapshot.tensors, **tensors}
    return save({name: t for name, t in whole.items() if t is not None}, metadata={KEY: text})


def test_the_plain_file_is_not_refused(taken: Snapshot, biased: WorldModel) -> None:
    Snapshot.unpack(changed(taken)).check(WorldLoop(biased), ORIGIN)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"format": "worldloop-snapshot-2"}, "format is 'worldloop-snapshot-2'; 'worldloop-snapshot-1'"),
        ({"extra": 1}, "extra: Extra inputs"),
        ({"frame": "7"}, "frame: Input should be a valid integer"),
        ({"frame": -1}, "frame: "),
        ({"frame": 4}, r"past is 4; 3 frames is needed"),
        ({"memory_frame": 0}, "memory_frame is 0; 1 to frame"),
        ({"memory_frame": 10**9}, "memory_frame is 1000000000"),
        ({"memory_frame": 10**30}, "memory_frame: "),
        ({"sink_id": 50}, "sink_id is 50; at most memory_frame"),
        ({"refill": 1}, "refill is 1"),
        ({"drift_frames": 1}, "drift_frames is 1"),
        ({"past": []}, "past is 0; 4 frames"),
        ({"written": {"keys": ["jump"], "fps": 12}}, "written.keys.0"),
        ({"written": None}, "tensor 'x' is unexpected"),
    ],
)
def test_facts_that_do_not_fit_are_refused_by_name(
    facts: dict[str, Any], says: str, taken: Snapshot, biased: WorldModel
) -> None:
    refused(changed(taken, facts), biased, says)


@pytest.mark.parametrize(
    ("request_", "says"),
    [({"nfe": 99}, "nfe=99"), ({"sphere": "round"}, "sphere='round'"), ({"seed": 2**40}, "seed=")],
)
def test_choices_that_do_not_fit_are_refused_by_name(
    request_: dict[str, Any], says: str, taken: Snapshot, biased: WorldModel
) -> None:
    asked = json.loads(taken.facts.request.model_dump_json())
    refused(changed(taken, {"request": {**asked, **request_}}), biased, says)


def test_tensors_that_do_not_fit_are_refused_by_name(taken: Snapshot, biased: WorldModel) -> None:
    keys = taken.tensors["keys"]
    broken = keys.clone()
    broken[0, 0, 0, 3, 1] = torch.nan

    refused(changed(taken, keys=None), biased, "tensor 'keys' is missing")
    refused(changed(taken, more=torch.zeros(2)), biased, "tensor 'more' is unexpected")
    refused(changed(taken, keys=keys[..., :-1, :].clone()), biased, r"keys is \(.*\); \(.*\) is needed")
    refused(changed(taken, keys=keys.double()), biased, "keys is torch.float64; torch.float32 is needed")
    refused(changed(taken, keys=broken), biased, "tensor 'keys' holds numbers that are not finite")


def test_another_world_is_refused(taken: Snapshot, biased: WorldModel) -> None:
    for other, says in [
        (
            {"checkpoint": "c" * 64, "model_id": "other-3r"},
            "model 'tiny-3r' with other weights; 'other-3r' is served",
        ),
        ({"autoencoder": "c" * 64}, "with other weights"),
        ({"recency": (1, 2, 3.0, 4.0)}, "made with recency None; this server has"),
        ({"table": 64}, "made with table 4096; this server has 64"),
    ]:
        refused(taken.pack(), biased, says, ORIGIN.model_copy(update=other))


def test_files_that_are_none_are_refused(taken: Snapshot, biased: WorldModel) -> None:
    whole = taken.pack()
    size = int.from_bytes(whole[:8], "little")
    deep = b'{"__metadata__":' + b"[" * 100_000
    for data in (
        b"", b"PK\x03\x04", whole[:100], whole[: 8 + size], whole[:-1], whole + b"x", b"\xff" * 64,
        len(deep).to_bytes(8, "little") + deep,
        save({"keys": torch.zeros(2)}), save({"keys": torch.zeros(2)}, metadata={KEY: "{}"}),
        save({"keys": torch.zeros(2)}, metadata={KEY: "nothing"}),
    ):  # fmt: skip
        with pytest.raises(SnapshotError):
            Snapshot.unpack(data).check(WorldLoop(biased), ORIGIN)
    assert load(whole).keys() == taken.tensors.keys()
