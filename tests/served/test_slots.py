"""Several games at once over real sockets: each player gets their own, and nobody else's."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosed

from .client import Live, Stream
from .conftest import Serve


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    return serve(slots=2, log_level="info")


def lines(stream: Stream) -> list[str]:
    return [text["msg"] for text in stream.texts if text["type"] == "log"]


def refused_with(live: Live, user: str) -> int:
    with live.socket(user) as stream, pytest.raises(ConnectionClosed) as closed:
        while True:
            stream.next()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_two_games_share_nothing(live: Live) -> None:
    with live.playing("ann") as ann, live.playing("bob") as bob:
        # Each has a rate, keys, numbers and a decoder state of its own.
        ann.hold("w", stream_fps=60, seq=100)
        bob.hold("d", stream_fps=30, seq=200)
        assert ann.text("ack")["seq"] == 100
        assert bob.text("ack")["seq"] == 200
        ann.say("nonsense")
        assert ann.text("error")["code"] == "not_json"
        assert live.upload("cat").status_code == 423
        assert live.get("/create-game/cat").status_code == 423
        assert refused_with(live, "cat") == 1013
        with live.http() as http:
            assert http.post("/switch", data={"model_id": "tiny-3r"}).status_code == 423
        for stream in (ann, bob):
            while len(stream.units) < 40 or not lines(stream):
                stream.next()
        # One leaves; the other goes on, and the place is free for a third.
        bob.connection.close()
        while (levels := live.levels()).live + levels.held == 2:
            ann.unit()
        with live.playing("cat") as cat:
            cat.unit()
            ann.unit()
    seen = {"ann": lines(ann), "bob": lines(bob), "cat": lines(cat)}
    assert [said[0] for said in (seen["ann"], seen["bob"])] == ["game.open user=ann", "game.open user=bob"]
    for user, others in (("ann", ("bob", "cat")), ("bob", ("ann", "cat")), ("cat", ("ann", "bob"))):
        assert not [line for line in seen[user] for other in others if other in line]
    assert [text for text in bob.texts if text["type"] == "error"] == []
    assert {text["seq"] for text in bob.texts if text["type"] == "ack"} == {200}
    for stream in (ann, bob, cat):
        assert stream.units[0][0] == 1, "each stream starts with a key picture"


def test_what_happens_to_one_game_is_told_to_its_player_alone(live: Live) -> None:
    with live.playing("ann") as ann:
        ann.unit()
        with live.playing("bob") as bob:
            token = bob.text("hello")["resume"]["token"]
            bob.unit()
            bob.connection.socket.shutdown(2)
        while live.levels().held == 0:
            ann.unit()
        with live.socket("bob", f"?resume={token}") as again:
            while not any("game.resumed" in line for line in lines(again)):
                again.next()
        for _ in range(20):
            ann.unit()
    assert [line for line in lines(ann) if "bob" in line] == []
    assert any(line.startswith("game.held user=bob") for line in lines(again))
