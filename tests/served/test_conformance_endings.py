"""The published protocol of a game's end: the limit, a failure, the player, the server, and the close code of each."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed

from worldloop.core.errors import EngineError, SessionEndedError

from .client import Live, Stream
from .conftest import Serve
from .watch import Watch, until_left


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    return serve()


@pytest.fixture(scope="module")
def watch(live: Live) -> Watch:
    return Watch(live)


@pytest.fixture(scope="module")
def short(serve: Serve) -> Live:
    return serve(session_limit_s=0.2, session_limit_message="Thanks for playing! \u00e9\u00e9n minuut")


def to_the_end(stream: Stream) -> tuple[int, str]:
    """Read until the server closes; the code and the reason."""
    with pytest.raises(ConnectionClosed) as ending:
        while True:
            stream.next()
    assert ending.value.rcvd is not None
    return ending.value.rcvd.code, ending.value.rcvd.reason


def test_the_limit_is_said_then_closed_with_1000_and_the_message(short: Live) -> None:
    message = "Thanks for playing! \u00e9\u00e9n minuut"
    assert short.get("/status").json()["session_limit_s"] == 0.2
    with short.playing("ann") as game:
        assert to_the_end(game) == (1000, message)
    assert game.texts[-1] == {"type": "session_over", "message": message, "limit_s": 0.2}
    assert game.units, "the clock starts with the first picture"
    until_left(short)
    with short.playing("bob") as game:
        game.unit()


def test_a_start_picture_is_one_and_a_latent_frame_four_and_a_world_that_ends_says_so(
    live: Live, watch: Watch
) -> None:
    watch.fail_at, watch.error = 3, SessionEndedError("the world is as old as it can be")
    with live.playing("ann") as game:
        assert to_the_end(game) == (1000, "the world is as old as it can be")
    watch.fail_at = None
    # What was made is shown first: the start picture and two latent frames.
    assert len(game.units) == 1 + 4 + 4
    assert game.texts[-1]["type"] == "session_over"
    until_left(live)


def test_a_failed_dream_is_1011_with_the_errors_name_and_without_a_path(live: Live, watch: Watch) -> None:
    watch.fail_at, watch.error = 2, EngineError("no memory left in /srv/secret/place.bin")
    with live.playing("ann") as game:
        code, reason = to_the_end(game)
    watch.fail_at = None
    assert code == 1011
    assert reason.startswith("EngineError: no memory left")
    assert "secret" not in reason
    until_left(live)
    with live.playing("ann") as game:
        for _ in range(9):
            game.unit()
    until_left(live)


def test_a_game_that_fails_at_its_start_is_1011(live: Live, watch: Watch) -> None:
    watch.fail_at, watch.error = 0, RuntimeError("boom " * 60)
    with live.playing("ann") as game:
        code, reason = to_the_end(game)
    watch.fail_at = None
    assert (code, reason[:18]) == (1011, "RuntimeError: boom")
    assert len(reason.encode()) <= 123
    assert game.units == []
    until_left(live)


def test_a_player_who_leaves_frees_the_place(live: Live) -> None:
    for user in ("ann", "bob"):
        with live.playing(user) as game:
            game.unit()
        until_left(live)
        assert live.get("/status").json()["busy"] is False


def test_what_the_player_says_while_leaving_hurts_nobody(live: Live) -> None:
    with live.playing("ann") as game:
        game.unit()
        for message in ("{", json.dumps({"stream_fps": -1}), b"\0" * 2000):
            game.say(message)
    until_left(live)
    with live.playing("bob") as game:
        game.unit()
    until_left(live)


def test_a_message_beyond_all_bounds_ends_its_own_game_and_frees_the_place(live: Live) -> None:
    with live.playing("ann") as game:
        game.unit()
        # The server may close before it has taken all of it.
        with contextlib.suppress(ConnectionClosed):
            game.say("x" * 70_000)
        assert to_the_end(game)[0] == 1009
    until_left(live)
    with live.playing("bob") as game:
        game.unit()
    until_left(live)


def test_a_server_that_stops_says_so_and_closes_with_1001(serve: Serve) -> None:
    stopping = serve()
    with ThreadPoolExecutor(1) as pool, stopping.playing("ann") as game:
        game.unit()
        stopped = pool.submit(stopping.close)
        code, reason = to_the_end(game)
        stopped.result()
    assert code == 1001
    assert game.texts[-1]["type"] == "session_over"
    assert game.texts[-1]["message"] == reason
