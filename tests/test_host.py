"""The host: loading, switching, choices, and the state objects of the published protocol."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import torch

from worldloop.core.errors import BusyError, CheckpointError, InvalidInputError, NotReadyError
from worldloop.core.types import Controls, LiveControls
from worldloop.engine.contract import Emit
from worldloop.host import WorldHost
from worldloop.loops.focus import centred_diamond
from worldloop.loops.world import state_bytes
from worldloop.models.registry import SERVE_RECENCY
from worldloop.session.host import GameOptions, HostReport, StartFrame
from worldloop.testing import tiny_world

PICTURE = np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8)
WAIT_S = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two worlds for one autoencoder; the second writes its memory with the last denoising pass."""
    folder = tiny_world(tmp_path_factory.mktemp("worlds"), step=5)
    return tiny_world(folder, seed=1, step=2, cache_mode="last_step_writes", jump_sprint=True)


@pytest.fixture
def host(folder: Path) -> Iterator[WorldHost]:
    host = WorldHost.open(str(folder), dtype="fp32", threads=1)
    yield host
    host.close()


def frames(host: WorldHost, options: GameOptions | None = None, *, seed: int = 1, latents: int = 2) -> bytes:
    game = host.start(host.encode(PICTURE), options=options or GameOptions(), seed=seed)
    emits = [game.submit(Controls(pressed=frozenset("w"))).result(WAIT_S) for _ in range(1 + latents)]
    game.close()
    return b"".join(emit.frames.tobytes() for emit in emits)


def test_a_host_serves_the_first_in_order_and_knows_the_others(host: WorldHost) -> None:
    assert host.model_ids() == ["tiny-3nr", "tiny-3r"]
    assert host.default_model_id == host.active_model_id == "tiny-3nr"
    assert host.frame_size == (48, 64)
    assert host.active_profile == {
        "name": "random",
        "jump_sprint": True,
        "controls": ["w", "a", "s", "d", "left", "right", "space", "shift"],
    }


@pytest.mark.parametrize(
    ("wanted", "active"), [("tiny-3r", "tiny-3r"), ("latest", "tiny-3r"), (None, "tiny-3nr")]
)
def test_the_default_may_be_named_or_the_latest(wanted: str | None, active: str, folder: Path) -> None:
    host = WorldHost.open(str(folder), dtype="fp32", threads=1, model_id=wanted)
    host.close()

    assert host.active_model_id == active


def test_the_path_of_one_checkpoint_serves_that_one(folder: Path) -> None:
    host = WorldHost.open(str(folder / "tiny-3r.safetensors"), dtype="fp32", threads=1)
    host.close()

    assert host.active_model_id == "tiny-3r"


def test_switching_changes_the_world(host: WorldHost) -> None:
    before = frames(host)
    host.switch(" TINY-3R ")
    after = frames(host)
    host.switch("tiny-3nr")

    assert host.active_model_id == "tiny-3nr"
    assert before != after
    assert frames(host) == before


def test_an_unknown_id_is_refused_with_the_valid_ones(host: WorldHost) -> None:
    with pytest.raises(
        InvalidInputError, match=r"unknown model_id 'moon'; valid ids: \['tiny-3nr', 'tiny-3r'\]"
    ):
        host.switch("moon")

    assert host.active_model_id == "tiny-3nr"


def test_a_refused_file_leaves_the_old_model_in_service(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "worlds"
    shutil.copytree(folder, copy)
    host = WorldHost.open(str(copy), dtype="fp32", threads=1)
    try:
        before = frames(host)
        whole = (copy / "tiny-3r.safetensors").read_bytes()
        (copy / "tiny-3r.safetensors").write_bytes(whole[:-64])
        with pytest.raises(CheckpointError, match=r"^tiny-3r\.safetensors: "):
            host.switch("tiny-3r")
        after, active = frames(host), host.active_model_id
    finally:
        host.close()

    assert active == "tiny-3nr"
    assert before == after


def test_a_game_that_runs_is_not_disturbed_by_a_switch(host: WorldHost) -> None:
    alone = frames(host, latents=3)
    game = host.start(host.encode(PICTURE), options=GameOptions(), seed=1)
    emits = [game.submit(Controls(pressed=frozenset("w"))).result(WAIT_S) for _ in range(2)]
    with pytest.raises(BusyError, match="a game is live"):
        host.switch("tiny-3r")
    assert host.active_model_id == "tiny-3nr"
    emits += [game.submit(Controls(pressed=frozenset("w"))).result(WAIT_S) for _ in range(2)]
    game.close()

    assert b"".join(emit.frames.tobytes() for emit in emits) == alone
    host.switch("tiny-3r")
    assert host.active_model_id == "tiny-3r"


def test_a_start_picture_of_another_model_is_refused(host: WorldHost) -> None:
    frame = host.encode(PICTURE)
    host.switch("tiny-3r")

    with pytest.raises(NotReadyError, match="is for 'tiny-3nr'; 'tiny-3r' is served now"):
        host.start(frame, options=GameOptions(), seed=1)


def test_an_encoded_start_picture_says_its_shape_and_model(host: WorldHost) -> None:
    frame = host.encode(PICTURE)

    assert isinstance(frame, StartFrame)
    assert (frame.shape, frame.model_id) == ((1, 8, 3, 4), "tiny-3nr")
    with pytest.raises(ValueError, match=r"\(48, 64, 3\)"):
        host.encode(PICTURE[:32])


def test_describe_has_the_published_fields(host: WorldHost) -> None:
    said = host.describe()

    assert set(said) == {"details", "nfe", "sphere", "reprefill", "focus"}
    assert set(said["details"]) == {"tiny-3nr", "tiny-3r"}
    assert set(said["details"]["tiny-3r"]) == {
        "recipe", "steps", "cache_mode", "timesteps", "summary_tokens", "raw_window_frames", "summary_window_frames",
        "sink_gap_max", "recency", "recency_source", "noise_schedule", "train_step", "file", "labels", "focus",
        "profile",
    }  # fmt: skip
    assert said["details"]["tiny-3r"]["timesteps"] == said["nfe"]["timesteps"]
    assert said["details"]["tiny-3r"]["recipe"] == "3r"
    assert said["nfe"] == {
        "override": None, "mode": "repeat", "modes": ["repeat", "grid"], "ckpt_steps": 3, "active_steps": 3,
        "timesteps": said["nfe"]["timesteps"], "max": 32,
    }  # fmt: skip
    assert said["sphere"] == {"mode": "off", "modes": ["off", "decode", "all"]}
    assert said["reprefill"] == {
        "every": 0, "max": 4096, "supported": False, "history_frames": 5, "count": 0, "last": None,
        "drift_limit": 0.0, "drift_score": None, "drift_count": 0,
    }  # fmt: skip
    assert said["focus"] == {
        "grid": [3, 4], "custom_supported": True, "trained": True, "default": "diamond", "default_coverage": 0.2,
        "coverage_trained": [0.1, 0.3],
    }  # fmt: skip


def test_describe_follows_the_choices_and_the_game(host: WorldHost) -> None:
    host.switch("tiny-3r")
    options = GameOptions(nfe=6, nfe_mode="grid", sphere="all", reprefill_every=2)
    host.configure(options)
    game = host.start(host.encode(PICTURE), options=options, seed=1)
    for _ in range(4):
        game.submit(Controls()).result(WAIT_S)
    said = host.describe()
    game.close()

    assert (said["nfe"]["override"], said["nfe"]["mode"], said["nfe"]["active_steps"]) == (6, "grid", 6)
    assert said["sphere"]["mode"] == "all"
    assert said["reprefill"] == {
        "every": 2, "max": 4096, "supported": True, "history_frames": 5, "count": 1, "last": 3,
        "drift_limit": 0.0, "drift_score": None, "drift_count": 0,
    }  # fmt: skip


def test_the_watchdog_is_told_with_the_latest_game(folder: Path) -> None:
    host = WorldHost.open(str(folder), dtype="fp32", threads=1, model_id="tiny-3r", drift_limit=1e-3)
    try:
        assert host.describe()["reprefill"]["drift_limit"] == 1e-3
        game = host.start(host.encode(PICTURE), options=GameOptions(), seed=1)
        for _ in range(8):
            game.submit(Controls()).result(WAIT_S)
        said = host.describe()["reprefill"]
        counts = host.report()
        game.close()
    finally:
        host.close()

    assert said["drift_score"] > 0.1
    assert (said["count"], said["drift_count"], said["last"]) == (1, 1, 6)
    assert (counts.reprefills, counts.drift_reprefills) == (1, 1)


def test_what_a_checkpoint_cannot_do_is_off_for_it_and_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "worldloop.host"):
        host = WorldHost.open(str(folder), dtype="fp32", threads=1, drift_limit=2.0, reprefill_every=8)
    try:
        at_nr = host.describe()["reprefill"]
        host.configure(GameOptions())
        frames(host)
        host.switch("tiny-3r")
        at_r = host.describe()["reprefill"]
    finally:
        host.close()

    ignored = [r.fields["setting"] for r in caplog.records if r.message == "setting.ignored"]
    assert ignored == ["reprefill_every", "drift_limit"]
    assert (at_nr["every"], at_nr["drift_limit"], at_nr["supported"]) == (0, 0.0, False)
    assert (at_r["every"], at_r["drift_limit"], at_r["supported"]) == (8, 2.0, True)


def test_a_report_counts_what_is_held_and_done(host: WorldHost) -> None:
    before = host.report()
    host.switch("tiny-3r")
    games = [
        host.start(host.encode(PICTURE), options=GameOptions(reprefill_every=2), seed=seed) for seed in (1, 2)
    ]
    for game in games:
        for _ in range(4):
            game.submit(Controls()).result(WAIT_S)

    # What follows is read on the device thread, so that nothing happens in between.
    def read() -> tuple[HostReport, int]:
        return host.report(), sum(state_bytes(game.state) for game in games if game.state is not None)

    live, size = host.engine.call(read)

    def submit_all() -> HostReport:
        for game in games:
            game._handle._submit(LiveControls(Controls()), Future(), 0.0)
        return host.report()

    waiting = host.engine.call(submit_all)
    for game in games:
        game.close()
    host.engine.call(lambda: None)
    after = host.report()

    files = [host.model.network.state_dict(), host.model.autoencoder.state_dict()]
    stored = sum(value.nbytes for file in files for value in file.values())
    assert before.weights_bytes == pytest.approx(stored, rel=1e-3), "and a few constants that no file holds"
    assert (before.sessions, before.session_bytes, before.queued, before.switches) == (0, 0, 0, 0)
    assert (live.sessions, live.session_bytes, live.queued, live.switches) == (2, size, 0, 1)
    assert (waiting.queued, after.queued) == (2, 0)
    assert (after.sessions, after.session_bytes) == (0, 0)
    assert after.reprefills >= live.reprefills == 2, "counters only grow"


def test_a_choice_left_out_keeps_how_often_the_memory_is_rebuilt(host: WorldHost) -> None:
    host.switch("tiny-3r")
    host.configure(GameOptions(reprefill_every=7))
    host.configure(GameOptions())
    assert host.describe()["reprefill"]["every"] == 7

    host.configure(GameOptions(reprefill_every=0))
    assert host.describe()["reprefill"]["every"] == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (GameOptions(nfe=2), "nfe=2 in mode 'repeat' must be at least"),
        (GameOptions(nfe=40, nfe_mode="grid"), r"nfe=40 must be an integer in 1\.\.32"),
        (GameOptions(nfe_mode="more"), "nfe_mode='more' must be"),
        (GameOptions(sphere="more"), "sphere='more' must be one of"),
        (GameOptions(reprefill_every=3), "reprefill needs cache_mode 'recache'"),
        (GameOptions(focus=((True,) * 4,) * 4), r"focus_mask is \(4, 4\) cells; \(3, 4\) are needed"),
    ],
)
def test_a_choice_that_does_not_fit_is_refused_and_changes_nothing(
    options: GameOptions, says: str, host: WorldHost
) -> None:
    before = host.describe()

    with pytest.raises(InvalidInputError, match=says):
        host.configure(options)
    with pytest.raises(InvalidInputError, match=says):
        host.start(host.encode(PICTURE), options=options, seed=1)

    assert host.describe() == before
    assert host.engine.sessions == 0


def test_the_focus_of_a_game_is_told_and_counts(host: WorldHost) -> None:
    mask = ((True, False, False, False),) * 3
    diamond, custom, none = (host.configure(GameOptions(focus=choice)) for choice in (None, mask, "none"))

    assert diamond == {"mode": "diamond", "tokens": 2, "grid": [3, 4], "coverage": 2 / 12}
    assert custom == {"mode": "custom", "tokens": 3, "grid": [3, 4], "coverage": 0.25}
    assert none == {"mode": "none", "tokens": 0, "grid": None, "coverage": 0.0}
    worlds = {frames(host, GameOptions(focus=choice)) for choice in (None, mask, "none")}
    assert len(worlds) == 3


def test_a_world_without_a_focus_region_refuses_a_mask(tmp_path: Path) -> None:
    host = WorldHost.open(str(tiny_world(tmp_path, focus_region=False)), dtype="fp32", threads=1)
    try:
        assert host.configure(GameOptions())["mode"] == "none"
        with pytest.raises(InvalidInputError, match="focus_mask: this checkpoint was trained without"):
            host.configure(GameOptions(focus=((True,) * 4,) * 3))
    finally:
        host.close()


def test_the_default_focus_is_a_diamond_in_the_middle() -> None:
    region = centred_diamond((24, 42), 0.2)

    assert region.sum() == round(0.2 * 24 * 42)
    assert bool(region[11:13, 20:22].all())
    assert not region[0].any()
    assert not region[:, 0].any()
    half = region[12:].sum(dim=1)
    assert torch.equal(half, half.sort(descending=True).values)


def test_a_name_with_rec_is_served_with_the_bias_it_announces(tmp_path: Path) -> None:
    folder = tiny_world(tmp_path, name="tiny-rec-3r", summary_window_frames=16)
    host = WorldHost.open(str(folder), dtype="fp32", threads=1)
    game = host.start(host.encode(PICTURE), options=GameOptions(), seed=1)
    try:
        state = host.engine.call(lambda: game.state)
        assert host.describe()["details"]["tiny-rec-3r"]["recency_source"] == "serve"
        assert state is not None
        assert state.memory.recency == SERVE_RECENCY
    finally:
        host.close()


def test_a_game_tells_when_its_place_is_free_and_keeps_no_memory(host: WorldHost) -> None:
    freed: list[int] = []
    game = host.start(host.encode(PICTURE), options=GameOptions(), seed=1, on_close=lambda: freed.append(1))
    game.submit(Controls()).result(WAIT_S)

    game.close()
    game.close()
    host.engine.call(lambda: None)

    assert freed == [1]
    assert game.state is None
    assert host.engine.sessions == 0
    assert host.describe()["reprefill"]["count"] == 0


def test_newer_keys_reach_the_frame_that_has_not_begun(host: WorldHost) -> None:
    game = host.start(host.encode(PICTURE), options=GameOptions(), seed=1)
    assert not game.update(Controls()), "nothing was asked for yet"
    game.submit(Controls()).result(WAIT_S)

    def submit_and_change() -> bool:
        # On the device thread, so that the frame cannot begin in between.
        submitted.append(game.submit(Controls()))
        return game.update(Controls(pressed=frozenset("w")))

    submitted: list[Future[Emit]] = []
    assert host.engine.call(submit_and_change)
    changed = submitted[0].result(WAIT_S).frames
    assert not game.update(Controls())
    game.close()
    other = host.start(host.encode(PICTURE), options=GameOptions(), seed=1)
    other.submit(Controls()).result(WAIT_S)
    wanted = other.submit(Controls(pressed=frozenset("w"))).result(WAIT_S).frames

    assert changed.tobytes() == wanted.tobytes()


def test_a_seed_is_drawn_when_none_is_given(host: WorldHost) -> None:
    frame = host.encode(PICTURE)
    states = [host.start(frame, options=GameOptions(), seed=None).state for _ in range(2)]

    assert states[0].request.seed != states[1].request.seed  # type: ignore[union-attr]


def test_an_unknown_world_is_refused_with_the_shipped_ones() -> None:
    with pytest.raises(InvalidInputError, match="no world 'atlantis': give one of"):
        WorldHost.open("atlantis")
