"""The published protocol up to the socket: what is served, the start picture and each of its form fields.

Each published spelling, and each wrong one, goes to a real server over HTTP.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from worldloop.models.registry import scan
from worldloop.testing import tiny_world

from .client import Live, png
from .conftest import Serve
from .watch import Watch, until_left

OWN = [999, 820, 548]
"""Timesteps of the tiny world: three of a shift of 2."""
HALF = "3x4:110011001100"
DETAILS = {
    "recipe", "steps", "cache_mode", "timesteps", "summary_tokens", "raw_window_frames", "summary_window_frames",
    "sink_gap_max", "recency", "recency_source", "noise_schedule", "train_step", "file", "labels", "focus", "profile",
}  # fmt: skip
STATES = {
    "nfe": {"override", "mode", "modes", "ckpt_steps", "active_steps", "timesteps", "max"},
    "sphere": {"mode", "modes"},
    "reprefill": {"every", "max", "supported", "history_frames", "count", "last"},
    "focus": {"grid", "custom_supported", "trained", "default", "default_coverage", "coverage_trained"},
}


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    return serve()


@pytest.fixture(scope="module")
def watch(live: Live) -> Watch:
    return Watch(live)


@pytest.fixture(autouse=True)
def on_tiny_3r(live: Live) -> None:
    """Each test begins with `tiny-3r` in service and nothing chosen."""
    assert live.upload("first", model_id="tiny-3r", reprefill_every="0").status_code == 200


def started(live: Live, **fields: str) -> dict[str, Any]:
    """The answer of an upload that is taken."""
    answer = live.upload("ann", **fields)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def refused(live: Live, **fields: str) -> str:
    """The `detail` of an upload that is refused with 400."""
    answer = live.upload("ann", **fields)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["detail"])


# -- GET /models and GET /status ---------------------------------------------------------------------------------------


def test_models_says_what_is_served(live: Live) -> None:
    answer = live.get("/models")
    told = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert told["server_kind"] == "unified"
    assert told["models"] == ["tiny-3nr", "tiny-3r"]
    assert (told["default_model_id"], told["active_model_id"]) == ("tiny-3nr", "tiny-3r")
    assert set(told["details"]) == {"tiny-3nr", "tiny-3r"}


def test_models_details_have_every_published_field(live: Live) -> None:
    details = live.get("/models").json()["details"]
    assert all(set(one) >= DETAILS for one in details.values())
    assert {key: details["tiny-3r"][key] for key in DETAILS} == {
        "recipe": "3r", "steps": 3, "cache_mode": "recache", "timesteps": OWN, "summary_tokens": 4,
        "raw_window_frames": 2, "summary_window_frames": 5, "sink_gap_max": 3, "recency": None, "recency_source": "off",
        "noise_schedule": "cosine:1.0", "train_step": 1, "file": "tiny-3r.safetensors", "labels": ["tiny"],
        "focus": "diamond",
        "profile": {
            "name": "random", "jump_sprint": False, "controls": ["w", "a", "s", "d", "left", "right"],
        },
    }  # fmt: skip
    other = details["tiny-3nr"]
    assert (other["recipe"], other["cache_mode"], other["train_step"]) == ("3nr", "last_step_writes", 2)


def test_a_world_of_other_facts_is_told_as_it_is(serve: Serve, tmp_path: Path) -> None:
    folder = tiny_world(
        tmp_path, name="gta_model", cache_mode="last_step_writes", jump_sprint=True, focus_region=False
    )
    live = serve(folder)
    models = live.get("/models").json()
    details = models["details"]["gta_model"]
    # The name holds no recipe; the config does.
    assert (details["recipe"], details["steps"], details["labels"]) == ("3nr", 3, ["gta_model"])
    assert details["profile"]["controls"] == ["w", "a", "s", "d", "left", "right", "space", "shift"]
    assert details["profile"]["jump_sprint"] is True
    assert (details["focus"], models["focus"]["trained"], models["focus"]["default"]) == (
        "none",
        False,
        "none",
    )
    assert models["reprefill"]["supported"] is False
    assert started(live)["focus"] == {"mode": "none", "tokens": 0, "grid": None, "coverage": 0.0}
    assert "without a focus region" in refused(live, focus_mask=HALF)


@pytest.mark.parametrize("word", ["latest", "LATEST"])
def test_the_latest_is_the_highest_step_and_none_is_below_zero(tmp_path: Path, word: str) -> None:
    for name, step in (("a", 0), ("b", None)):
        tiny_world(tmp_path, name=name, step=step)
    assert scan(tmp_path).default(word) == "a"


def test_models_states_have_every_published_field(live: Live) -> None:
    told = live.get("/models").json()
    for state, fields in STATES.items():
        assert set(told[state]) >= fields, state
    assert {key: told["reprefill"][key] for key in STATES["reprefill"]} == {
        "every": 0, "max": 4096, "supported": True, "history_frames": 5, "count": 0, "last": None,
    }  # fmt: skip
    assert {key: told["focus"][key] for key in STATES["focus"]} == {
        "grid": [3, 4], "custom_supported": True, "trained": True, "default": "diamond", "default_coverage": 0.2,
        "coverage_trained": [0.1, 0.3],
    }  # fmt: skip
    assert told["sphere"] == {"mode": "off", "modes": ["off", "decode", "all"]}
    assert told["nfe"] == {
        "override": None, "mode": "repeat", "modes": ["repeat", "grid"], "ckpt_steps": 3, "active_steps": 3,
        "timesteps": OWN, "max": 32,
    }  # fmt: skip


def test_status_has_every_published_field(live: Live) -> None:
    answer = live.get("/status")
    told = answer.json()
    assert answer.status_code == 200
    assert set(told["occupancy"]) >= {"busy", "owner", "inflight", "pending_z0"}
    assert {key: value for key, value in told.items() if key not in ("busy", "occupancy")} == {
        "ok": True, "ws_active": False, "server_id": None, "tickets_required": False, "session_limit_s": 180.0,
        "active_model_id": "tiny-3r", "active_profile": "random",
    }  # fmt: skip


def test_the_interface_is_described_without_pages_from_elsewhere(live: Live) -> None:
    assert [live.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404, 404, 200]
    assert {"/models", "/status", "/z0/{user_id}", "/switch", "/create-game/{user_id}"} <= set(
        live.get("/openapi.json").json()["paths"]
    )


# -- POST /z0: the picture ---------------------------------------------------------------------------------------------


def test_the_answer_has_every_published_field(live: Live) -> None:
    told = started(live)
    assert set(told) == {
        "success", "model_id", "z0_shape", "nfe", "sphere", "reprefill", "focus", "profile",
    }  # fmt: skip
    models = live.get("/models").json()
    assert told["success"] is True
    assert told["model_id"] == "tiny-3r"
    assert told["z0_shape"] == [1, 8, 3, 4]
    assert {state: told[state] for state in ("nfe", "sphere", "reprefill")} == {
        state: models[state] for state in ("nfe", "sphere", "reprefill")
    }
    assert told["focus"] == {"mode": "diamond", "tokens": 2, "grid": [3, 4], "coverage": 2 / 12}
    assert told["profile"] == models["details"]["tiny-3r"]["profile"]


def test_a_picture_covers_and_is_cut_to_its_centre(live: Live, watch: Watch) -> None:
    # Three times as wide as high: the world keeps the middle, and neither of the sides.
    wide = np.zeros((48, 192, 3), np.uint8)
    wide[:, :64], wide[:, 64:128], wide[:, 128:] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    out = io.BytesIO()
    Image.fromarray(wide).save(out, "PNG")
    assert live.upload("ann", out.getvalue()).status_code == 200
    assert watch.pictures[-1].shape == (48, 64, 3)
    assert (watch.pictures[-1] == (0, 250, 0)).all()


@pytest.mark.parametrize(
    ("name", "container", "codec"), [("a.mp4", "mp4", "libx264"), ("a.webm", "webm", "libvpx")]
)
def test_of_a_video_the_first_picture_is_taken(
    live: Live, watch: Watch, name: str, container: str, codec: str
) -> None:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in (200, 20, 20):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), level, np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    assert live.upload("ann", out.getvalue(), name).status_code == 200
    assert abs(int(watch.pictures[-1].mean()) - 200) < 12


@pytest.mark.parametrize("data", [b"", b"not a picture", png()[:40]])
def test_what_is_no_picture_is_400_and_switches_nothing(live: Live, data: bytes) -> None:
    answer = live.upload("ann", data, model_id="tiny-3nr")
    assert answer.status_code == 400
    assert answer.json()["detail"]
    assert live.get("/status").json()["active_model_id"] == "tiny-3r"


def test_a_missing_picture_is_422(live: Live) -> None:
    with live.http() as http:
        answer = http.post("/z0/ann", data={"nfe": "1"})
    assert answer.status_code == 422
    assert "z0_image" in answer.json()["detail"]


@pytest.mark.parametrize("user", ["a" * 65, "a%20b", "%C3%A9", "a%0Ab"])
def test_a_user_id_out_of_the_rule_is_400(live: Live, user: str) -> None:
    answers = [live.upload(user), live.get(f"/create-game/{user}")]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert "user id must be 1 to 64" in answers[0].json()["detail"]


@pytest.mark.parametrize("user", ["a", "a" * 64, "A-Z_0.9"])
def test_a_user_id_within_the_rule_is_taken(live: Live, user: str) -> None:
    assert live.upload(user).status_code == 200


# -- POST /z0: the choices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["", "0", " 0 ", "3"])
def test_nfe_of_the_checkpoint_is_no_override(live: Live, word: str) -> None:
    told = started(live, nfe=word)["nfe"]
    assert (told["override"], told["mode"], told["active_steps"], told["timesteps"]) == (
        None,
        "repeat",
        3,
        OWN,
    )


@pytest.mark.parametrize(
    ("nfe", "timesteps"),
    [
        ("4", [999, 820, 548, 548]),
        (" 5 ", [999, 820, 820, 548, 548]),
        ("6", [999, 999, 820, 820, 548, 548]),
        ("7", [999, 999, 820, 820, 548, 548, 548]),
        ("32", [999] * 10 + [820] * 11 + [548] * 11),
    ],
)
@pytest.mark.parametrize("mode", ["", "repeat", " REPEAT "])
def test_nfe_repeat_calls_the_own_timesteps_and_the_lowest_most(
    live: Live, nfe: str, timesteps: list[int], mode: str
) -> None:
    told = started(live, nfe=nfe, nfe_mode=mode)["nfe"]
    assert told == {
        "override": int(nfe), "mode": "repeat", "modes": ["repeat", "grid"], "ckpt_steps": 3,
        "active_steps": int(nfe), "timesteps": timesteps, "max": 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nfe", "timesteps"),
    [
        ("1", [999]),
        ("2", [999, 705]),
        ("4", [999, 869, 705, 444]),
        ("6", [999, 914, 820, 705, 548, 318]),
    ],
)
def test_nfe_grid_rebuilds_the_grid(live: Live, nfe: str, timesteps: list[int]) -> None:
    told = started(live, nfe=nfe, nfe_mode="Grid")["nfe"]
    assert (told["override"], told["mode"], told["active_steps"]) == (int(nfe), "grid", int(nfe))
    assert told["timesteps"] == timesteps


@pytest.mark.parametrize("nfe", ["", "0", "3"])
def test_a_mode_without_an_override_means_nothing(live: Live, nfe: str) -> None:
    told = started(live, nfe=nfe, nfe_mode="grid")["nfe"]
    assert (told["override"], told["mode"]) == (None, "repeat")
    assert live.get("/models").json()["nfe"] == told


def test_an_override_holds_until_the_next_start_picture(live: Live) -> None:
    started(live, nfe="6", nfe_mode="grid", sphere="all")
    told = live.get("/models").json()
    assert (told["nfe"]["override"], told["sphere"]["mode"]) == (6, "all")
    started(live)
    told = live.get("/models").json()
    assert (told["nfe"]["override"], told["sphere"]["mode"]) == (None, "off")


@pytest.mark.parametrize("nfe", ["33", "-1", "1.5", "x", "1e1", "\u00b2", "9" * 400])
def test_a_wrong_nfe_is_400(live: Live, nfe: str) -> None:
    assert refused(live, nfe=nfe).startswith("nfe must be an integer in 1..32")


@pytest.mark.parametrize("nfe", ["1", "2"])
def test_fewer_calls_than_the_checkpoints_own_need_a_grid(live: Live, nfe: str) -> None:
    assert f"nfe={nfe} in mode 'repeat' must be at least the checkpoint's own 3" in refused(live, nfe=nfe)


@pytest.mark.parametrize("mode", ["more", "repeat grid", "0"])
def test_a_wrong_nfe_mode_is_400(live: Live, mode: str) -> None:
    assert "nfe_mode must be one of repeat, grid" in refused(live, nfe="4", nfe_mode=mode)


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (["", "off", "0", "false", "none", " OFF ", "None"], "off"),
        (["decode", "Decode"], "decode"),
        (["all", "1", "true", "on", "TRUE"], "all"),
    ],
)
def test_sphere_and_its_synonyms(live: Live, words: list[str], mode: str) -> None:
    for word in words:
        assert started(live, sphere=word)["sphere"] == {"mode": mode, "modes": ["off", "decode", "all"]}, word


@pytest.mark.parametrize("word", ["2", "yes", "decode all"])
def test_a_wrong_sphere_is_400(live: Live, word: str) -> None:
    assert "sphere must be one of off, decode, all" in refused(live, sphere=word)


@pytest.mark.parametrize(
    ("word", "every"), [("0", 0), ("off", 0), ("none", 0), ("FALSE", 0), (" 7 ", 7), ("1", 1), ("4096", 4096)]
)
def test_reprefill_every(live: Live, word: str, every: int) -> None:
    assert started(live, reprefill_every=word)["reprefill"]["every"] == every


def test_an_empty_reprefill_keeps_what_is_served(live: Live) -> None:
    started(live, reprefill_every="9")
    assert started(live)["reprefill"]["every"] == 9
    assert started(live, reprefill_every="off")["reprefill"]["every"] == 0
    assert started(live)["reprefill"]["every"] == 0


@pytest.mark.parametrize("word", ["4097", "-1", "1.5", "on", "true"])
def test_a_wrong_reprefill_is_400(live: Live, word: str) -> None:
    assert refused(live, reprefill_every=word).startswith("reprefill_every must be an integer in 0..4096")


@pytest.mark.parametrize("word", ["", "default", "diamond", "keep", " KEEP "])
def test_the_default_focus(live: Live, word: str) -> None:
    assert started(live, focus_mask=word)["focus"]["mode"] == "diamond"


@pytest.mark.parametrize("word", ["none", "off", "0", "false", "None"])
def test_no_focus(live: Live, word: str) -> None:
    told = started(live, focus_mask=word)["focus"]
    assert told == {"mode": "none", "tokens": 0, "grid": None, "coverage": 0.0}


@pytest.mark.parametrize("mask", [HALF, HALF.upper(), f" {HALF} ", HALF.replace(":", ": ")])
def test_a_painted_focus(live: Live, mask: str) -> None:
    told = started(live, focus_mask=mask)["focus"]
    assert told == {"mode": "custom", "tokens": 6, "grid": [3, 4], "coverage": 0.5}


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        ("3x4", "HxW"),
        ("3y4:110011001100", "HxW"),
        ("x4:1111", "HxW"),
        ("somewhere", "HxW"),
        ("3x4:11", "needs 12 characters"),
        ("3x4:11001100110x", "needs 12 characters"),
        ("0x4:", "1..256"),
        ("257x1:" + "1" * 257, "1..256"),
        ("3x4:" + "0" * 12, "send 'none'"),
        ("4x3:110011001100", "(3, 4) are needed"),
    ],
)
def test_a_wrong_focus_is_400(live: Live, mask: str, why: str) -> None:
    detail = refused(live, focus_mask=mask)
    assert detail.startswith("focus_mask")
    assert why in detail


# -- Another model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["tiny-3nr", " TINY-3NR "])
def test_another_model_in_an_upload_is_switched_to_first(live: Live, wanted: str) -> None:
    told = started(live, model_id=wanted)
    assert told["model_id"] == "tiny-3nr"
    models = live.get("/models").json()
    assert models["active_model_id"] == "tiny-3nr"
    assert models["reprefill"]["supported"] is False
    assert started(live)["model_id"] == "tiny-3nr", "an empty model_id keeps the active one"


def test_an_unknown_model_is_400_with_the_valid_ids(live: Live) -> None:
    detail = refused(live, model_id="moon")
    assert "unknown model_id 'moon'" in detail
    assert "tiny-3nr, tiny-3r" in detail


def test_a_checkpoint_without_a_clean_pass_refuses_to_rebuild(live: Live) -> None:
    detail = refused(live, model_id="tiny-3nr", reprefill_every="4")
    assert "reprefill" in detail
    assert "recache" in detail
    assert live.get("/models").json()["reprefill"]["every"] == 0


def test_what_one_player_chose_does_not_bar_another_model(live: Live) -> None:
    started(live, reprefill_every="4")
    told = started(live, model_id="tiny-3nr")
    assert (told["model_id"], told["reprefill"]["every"]) == ("tiny-3nr", 0)


def test_the_memory_is_rebuilt_as_often_as_asked(live: Live) -> None:
    with live.playing("ann", reprefill_every="2", model_id="tiny-3r") as game:
        while len(game.units) < 1 + 4 * 6:
            game.unit()
        told = live.get("/models").json()["reprefill"]
    assert told["every"] == 2
    assert told["count"] >= 2
    assert told["last"] % 2 == 1
    until_left(live)
