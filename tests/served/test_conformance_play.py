"""The published protocol of a live game: the stream, the controls in each spelling, and the texts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.testing import ScriptedPlayer, play, random_model

from .client import Live, Stream
from .conftest import Serve
from .watch import Watch, until_left

GOP = 8


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    # One game of it lasts for as long as this module takes.
    return serve(log_streaming=False, session_limit_s=0)


@pytest.fixture(scope="module")
def watch(live: Live) -> Watch:
    return Watch(live)


@pytest.fixture(scope="module")
def plain(serve: Serve) -> Live:
    """The checkpoint's own picture size, and a short way from one key picture to the next."""
    return serve(stream_scale=1, h264_gop=GOP)


class Player:
    """A game in which each message is waited for until a picture shows it."""

    def __init__(self, stream: Stream, watch: Watch) -> None:
        self.stream, self._watch = stream, watch
        self._seq = 0

    def says(self, **message: Any) -> None:
        """Send this message, numbered, and read on until it has reached the model."""
        self._seq += 1
        self.stream.say({**message, "seq": self._seq})
        while True:
            told = json.loads(text) if isinstance(text := self.stream.next(), str) else {}
            assert told.get("type") != "error", told
            if (told.get("type"), told.get("seq")) == ("ack", self._seq):
                return

    @property
    def held(self) -> set[str]:
        """Keys that the model was last asked with."""
        return set(self._watch.controls.pressed)

    @property
    def fps(self) -> float | None:
        """The rate that the model was last told."""
        return self._watch.controls.fps


@pytest.fixture(scope="module")
def player(live: Live, watch: Watch) -> Iterator[Player]:
    assert live.upload("ann").status_code == 200
    # Other tests run while nobody reads this game; its messages wait here.
    with live.socket("ann") as stream:
        yield Player(stream, watch)


def nal_types(unit: bytes) -> list[int]:
    """Types of the NAL units of an access unit, Annex-B."""
    return [part[0] & 0x1F for part in unit[1:].replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if part]


# -- The stream --------------------------------------------------------------------------------------------------------


def test_the_first_unit_starts_a_decoder_and_key_units_come_every_gop(plain: Live) -> None:
    with plain.playing("ann") as game:
        while len(game.units) < 2 * GOP + 2:
            game.unit()
    until_left(plain)
    for number, unit in enumerate(game.units):
        assert unit[0] == (1 if number % GOP == 0 else 0)
        types = nal_types(unit)
        if unit[0] == 1:
            assert types[:2] == [7, 8], "the parameter sets come first"
            assert 5 in types and 1 not in types
        else:
            assert set(types) <= {1, 6}, "nothing but a picture that builds on the last"


def test_the_stream_is_baseline_without_pictures_out_of_order(plain: Live) -> None:
    with plain.playing("ann") as game:
        # One picture a unit, at once: nothing waits for a later one.
        shapes = {game.picture().shape for _ in range(GOP + 2)}
    until_left(plain)
    sps = game.units[0][1:].split(b"\0\0\1")[1]
    assert sps[0] & 0x1F == 7
    assert sps[1] == 66, "profile_idc of baseline"
    assert shapes == {(48, 64, 3)}


def test_small_worlds_are_streamed_at_twice_their_size_unless_told(live: Live, plain: Live) -> None:
    for server, size in ((live, (96, 128)), (plain, (48, 64))):
        with server.playing("ann") as game:
            hello = game.text("hello")
            assert game.picture().shape == (*size, 3)
        until_left(server)
        assert (hello["height"], hello["width"]) == size


# -- Controls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"type": "keys"}], ids=["no-type", "keys"])
@pytest.mark.parametrize("key", ["w", "a", "s", "d", "left", "right", "space", "shift"])
def test_each_key_is_read(player: Player, key: str, kind: dict[str, str]) -> None:
    player.says(**kind, pressed={key: True})
    assert player.held == {key}


@pytest.mark.parametrize(
    ("pressed", "held"),
    [
        ({"w": True, "a": True, "right": True}, {"w", "a", "right"}),
        ({"w": True, "a": False}, {"w"}),
        ({"w": 1, "a": 0}, {"w"}),
        ({"w": True, "q": True, "enter": "?"}, {"w"}),
        ({}, set()),
    ],
)
def test_what_is_not_named_is_up_and_unknown_keys_are_ignored(
    player: Player, pressed: dict[str, Any], held: set[str]
) -> None:
    player.says(pressed={"s": True})
    player.says(pressed=pressed)
    assert player.held == held


def test_a_message_without_keys_lets_go_of_all(player: Player) -> None:
    player.says(pressed={"w": True})
    player.says(type="keys")
    assert player.held == set()


@pytest.mark.parametrize("version", ["2", 3, None, {"major": 1}])
def test_the_schema_version_and_unknown_fields_are_ignored(player: Player, version: Any) -> None:
    player.says(pressed={"d": True}, schemaVersion=version, more=[1])
    assert player.held == {"d"}


@pytest.mark.parametrize("trained", [True, False])
def test_jump_and_sprint_are_live_only_where_they_were_trained(one_thread: None, trained: bool) -> None:
    model = random_model(jump_sprint=trained)
    latent = torch.randn(1, *model.latent_shape, generator=torch.Generator().manual_seed(7))

    def pictures(*keys: str) -> bytes:
        emits = play(WorldLoop(model), WorldRequest(latent=latent, seed=1), ScriptedPlayer.of(keys), 1)
        return emits[-1].frames.tobytes()

    assert (pictures("space") != pictures()) is trained
    assert (pictures("shift") != pictures()) is trained
    assert pictures("w") != pictures()


@pytest.mark.parametrize("word", [None, "none", "off", "null", "", " NONE ", "Off"])
def test_no_frame_rate_is_no_action(player: Player, watch: Watch, word: str | None) -> None:
    player.says(pressed={"w": True}, fps_embedding=word)
    assert player.fps is None
    assert watch.controls.action() == (-69.0,) * 5


@pytest.mark.parametrize(
    ("value", "told"), [(1, 1), (120, 120), (23.976, 23.976), ("30", 30), (" 24.5 ", 24.5)]
)
def test_the_frame_rate_that_the_model_is_told(player: Player, value: Any, told: float) -> None:
    player.says(fps_embedding=value)
    assert player.fps == told


def test_an_absent_frame_rate_is_the_start_value(player: Player) -> None:
    player.says(fps_embedding=60)
    player.says(pressed={"w": True})
    assert player.fps == 12


@pytest.mark.parametrize("value", [1e9, 0, 0.5, 121, -12])
@pytest.mark.parametrize("field", ["fps_embedding", "stream_fps"])
def test_a_rate_out_of_range_is_told_and_changes_nothing(player: Player, field: str, value: float) -> None:
    player.says(pressed={"w": True}, fps_embedding=20)
    player.stream.say({"pressed": {"s": True}, field: value})
    told = player.stream.text("error")
    assert (told["code"], field in told["message"]) == ("out_of_range", True)
    player.stream.unit()
    assert (player.held, player.fps) == ({"w"}, 20)


@pytest.mark.parametrize("kind", ["chat", "KEYS", "", None, 3, ["keys"]])
def test_other_types_are_ignored(player: Player, kind: Any) -> None:
    player.says(pressed={"w": True})
    player.stream.say({"type": kind, "pressed": {"s": True}, "stream_fps": "never", "seq": 10**6})
    before = len(player.stream.texts)
    for _ in range(9):
        player.stream.unit()
    assert player.held == {"w"}
    assert player.stream.texts[before:] == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ("keys", "not_json"),
        (b"\x00\xff", "not_json"),
        (b'{"pressed": {"s": true}}', "not_json"),
        ("[" * 4000, "not_json"),
        ("[]", "not_an_object"),
        ('"w"', "not_an_object"),
        ("null", "not_an_object"),
        ({"pressed": ["w"]}, "wrong_type"),
        ({"pressed": {"w": "yes"}}, "wrong_type"),
        ({"stream_fps": "fast"}, "wrong_type"),
        ({"stream_fps": None}, "wrong_type"),
        ({"stream_fps": True}, "wrong_type"),
        ({"fps_embedding": "fast"}, "wrong_type"),
        ({"fps_embedding": [12]}, "wrong_type"),
        ('{"fps_embedding": NaN}', "out_of_range"),
        ('{"stream_fps": Infinity}', "out_of_range"),
        ({"seq": "one"}, "wrong_type"),
        ({"x": "y" * 5000}, "too_large"),
    ],
    ids=lambda value: (
        value if isinstance(value, str) and value.isidentifier() else json.dumps(repr(value))[:32]
    ),
)
def test_a_bad_message_is_told_and_the_game_goes_on(player: Player, message: Any, code: str) -> None:
    player.says(pressed={"w": True})
    player.stream.say(message)
    told = player.stream.text("error")
    assert set(told) == {"type", "code", "message"}
    assert told["code"] == code
    before = len(player.stream.units)
    while len(player.stream.units) < before + 9:
        player.stream.unit()
    assert player.held == {"w"}


# -- Pace --------------------------------------------------------------------------------------------------------------


def seconds(count: int, stream: Stream) -> float:
    """How long `count` pictures take to come."""
    began = time.monotonic()
    for _ in range(count):
        stream.unit()
    return time.monotonic() - began


@pytest.mark.parametrize("spell", [float, int, str])
def test_the_stream_follows_its_rate_live_and_without_a_burst(
    player: Player, spell: Callable[[float], Any]
) -> None:

    def slow(**message: Any) -> bool:
        # A client that starts its clock late finds pictures that wait for it: then once more. A burst comes each time.
        for _ in range(10):
            player.says(stream_fps=120)
            player.says(stream_fps=spell(20))
            if message:
                player.says(**message)
            if seconds(10, player.stream) > 0.3:
                return True
        return False

    assert slow()
    assert slow(pressed={"w": True}), "a rate stays when a message does not name one"
    player.says(stream_fps=120)
    player.stream.unit()
    assert len(player.stream.units) > 0


def test_a_game_begins_at_the_configured_rate_whatever_the_last_one_said(live: Live, plain: Live) -> None:
    for _ in range(2):
        with plain.playing("ann") as game:
            assert game.text("hello")["fps"] == 120
            # At one picture a second, 61 of them would take a minute.
            assert seconds(61, game) < 50
            game.say({"stream_fps": 1})
        until_left(plain)


# -- Choices -----------------------------------------------------------------------------------------------------------

CHOICES: dict[str, dict[str, str]] = {
    "own": {},
    "repeat": {"nfe": "6"},
    "grid": {"nfe": "6", "nfe_mode": "grid"},
    "fewer": {"nfe": "2", "nfe_mode": "grid"},
    "decode": {"sphere": "decode"},
    "all": {"sphere": "all"},
    "no focus": {"focus_mask": "none"},
    "painted": {"focus_mask": "3x4:110011001100"},
    "other model": {"model_id": "tiny-3nr"},
}


def first_units(live: Live, user: str) -> tuple[bytes, ...]:
    """The start picture and one latent frame, without any message: the same for the same choices, as the seed is."""
    with live.socket(user) as game:
        while len(game.units) < 5:
            game.unit()
    until_left(live)
    return tuple(game.units)


def test_each_choice_shapes_the_game(plain: Live) -> None:
    games = {}
    for name, fields in CHOICES.items():
        assert plain.upload("ann", **{"model_id": "tiny-3r", **fields}).status_code == 200
        games[name] = first_units(plain, "ann")
    assert len(set(games.values())) == len(CHOICES)
    assert plain.upload("ann", model_id="tiny-3r", nfe="3", sphere="0", focus_mask="keep").status_code == 200
    assert first_units(plain, "ann") == games["own"], "spelled out, the defaults are the defaults"


def test_a_game_keeps_its_own_choices(plain: Live) -> None:
    assert plain.upload("ann", model_id="tiny-3r", nfe="6").status_code == 200
    alone = first_units(plain, "ann")
    assert plain.upload("bob", sphere="all").status_code == 200
    assert plain.get("/models").json()["nfe"]["override"] is None
    assert first_units(plain, "ann") == alone


# -- Texts -------------------------------------------------------------------------------------------------------------


def test_every_text_is_of_a_known_shape(plain: Live) -> None:
    with plain.playing("ann") as game:
        game.say({"pressed": {"w": True}, "seq": 1})
        game.say("garbage")
        while {text["type"] for text in game.texts} < {"hello", "log", "error", "ack"} and len(
            game.units
        ) < 5000:
            game.next()
    until_left(plain)
    shapes = {text["type"]: set(text) for text in game.texts}
    assert shapes["log"] == {"type", "tag", "msg", "ts"}
    assert shapes["error"] == {"type", "code", "message"}
    assert shapes["ack"] == {"type", "seq", "frame"}
    assert set(shapes) == {"hello", "log", "error", "ack"}
    assert game.texts[0]["type"] == "hello"


def test_a_player_gets_the_log_of_the_own_game_only(plain: Live) -> None:
    with plain.playing("ann") as game:
        assert plain.upload("bob").status_code == 423
        assert plain.get("/create-game/bob").status_code == 423
        for _ in range(60):
            game.unit()
    until_left(plain)
    lines = [text for text in game.texts if text["type"] == "log"]
    assert lines
    assert all(isinstance(line["tag"], str) and line["tag"] for line in lines)
    assert all(abs(line["ts"] - time.time()) < 60 for line in lines)
    assert "ann" in lines[0]["msg"]
    assert not [line for line in lines if "bob" in line["msg"] or "refused" in line["msg"]]


def test_log_lines_may_be_switched_off(player: Player) -> None:
    for _ in range(30):
        player.stream.unit()
    assert "log" not in [text["type"] for text in player.stream.texts]
