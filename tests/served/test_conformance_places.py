"""The published protocol of places: who may play when, what `/status` says meanwhile, tickets, and what a full server
answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from .client import WAIT_S, Live
from .conftest import Serve
from .watch import Watch, ticket, until_left

SECRET, SERVER = "hush-hush", "box-1"
FAR = 4_000_000_000
"""A ticket's expiry that is years away."""


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    """A start picture keeps the server busy until its socket opens; a game lasts for as long as tests look at it."""
    return serve(session_limit_s=0, pending_z0_s=600, lease_stale_s=600)


@pytest.fixture(scope="module")
def watch(live: Live) -> Watch:
    return Watch(live)


@pytest.fixture(scope="module")
def brief(serve: Serve) -> Live:
    """Reservations go stale at once, and so do start pictures in `/status`."""
    return serve(lease_stale_s=0, pending_z0_s=0)


@pytest.fixture(scope="module")
def gated(serve: Serve) -> Live:
    return serve(
        ticket_secret=SECRET,
        server_id=SERVER,
        max_upload_bytes=4096,
        nfe_max=4,
        cors_allow_origins="https://friend.example",
    )


def occupancy(live: Live) -> tuple[bool, bool, dict[str, Any]]:
    """(`busy`, `ws_active`, the published fields of `occupancy` that are not zero or false)."""
    told = live.get("/status").json()
    busy = {"busy", "owner", "inflight", "pending_z0"}
    return told["busy"], told["ws_active"], {k: v for k, v in told["occupancy"].items() if v and k in busy}


def closed(live: Live, user: str, query: str = "", **options: Any) -> tuple[int, str]:
    """Close code and reason of a socket that gets no game."""
    with live.socket(user, query, **options) as socket, pytest.raises(ConnectionClosed) as ending:
        socket.next()
    assert ending.value.rcvd is not None
    return ending.value.rcvd.code, ending.value.rcvd.reason


@contextmanager
def game_of(live: Live, user: str) -> Iterator[None]:
    """A game that runs by itself after its first picture; over for `/status`, too, when this ends."""
    assert live.upload(user).status_code == 200
    with live.socket(user) as stream:
        stream.unit()
        yield
    until_left(live)


# -- Occupancy ---------------------------------------------------------------------------------------------------------


def test_occupancy_from_the_upload_to_the_end_of_the_game(live: Live, watch: Watch) -> None:
    assert occupancy(live) == (False, False, {})
    watch.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(live.upload, "ann")
        assert watch.waiting.wait(WAIT_S)
        assert occupancy(live) == (True, False, {"busy": True, "inflight": 1})
        watch.gate.set()
        assert upload.result().status_code == 200
    assert occupancy(live) == (True, False, {"busy": True, "pending_z0": 1})
    assert live.get("/create-game/ann").json() == {"success": True}
    assert occupancy(live) == (True, False, {"busy": True, "pending_z0": 1})
    with live.socket("ann") as game:
        game.unit()
        assert occupancy(live) == (True, True, {"busy": True, "owner": True})
    until_left(live)
    assert occupancy(live) == (False, False, {})


def test_a_start_picture_whose_socket_does_not_come_stops_counting(brief: Live) -> None:
    assert brief.upload("ann").status_code == 200
    assert occupancy(brief) == (False, False, {})


def test_a_refused_upload_leaves_the_server_idle(live: Live) -> None:
    assert live.upload("ann", nfe="x").status_code == 400
    assert live.upload("ann", b"no picture").status_code == 400
    assert occupancy(live) == (False, False, {})


def test_two_start_pictures_wait_side_by_side(live: Live) -> None:
    for user in ("ann", "bob"):
        assert live.upload(user).status_code == 200
    assert occupancy(live) == (True, False, {"busy": True, "pending_z0": 2})
    for user in ("ann", "bob"):
        with live.socket(user) as game:
            game.unit()
        until_left(live)
    assert occupancy(live) == (False, False, {})


# -- Reserving ---------------------------------------------------------------------------------------------------------


def test_a_reservation_needs_a_start_picture_and_none_stays_behind(live: Live) -> None:
    answer = live.get("/create-game/nobody")
    assert answer.status_code == 412
    assert "POST /z0/nobody first" in answer.json()["detail"]
    with game_of(live, "ann"):
        pass


def test_own_reservation_is_replaced_and_keeps_others_out(live: Live) -> None:
    for user in ("ann", "bob"):
        assert live.upload(user).status_code == 200
    assert [live.get("/create-game/ann").status_code for _ in range(2)] == [200, 200]
    other = live.get("/create-game/bob")
    assert (other.status_code, other.headers["content-type"]) == (423, "text/plain; charset=utf-8")
    assert closed(live, "bob")[0] == 1013
    with live.socket("ann") as game:
        game.unit()
    until_left(live)
    assert live.get("/create-game/bob").status_code == 200
    with live.socket("bob") as game:
        game.unit()
    until_left(live)


def test_a_reservation_without_a_socket_may_be_taken_over(brief: Live) -> None:
    for user in ("ann", "bob"):
        assert brief.upload(user).status_code == 200
    assert brief.get("/create-game/ann").status_code == 200
    with brief.socket("bob") as game:
        game.unit()
        assert closed(brief, "ann")[0] == 1013
    until_left(brief)


def test_a_socket_needs_no_reservation_and_a_picture_serves_for_many_games(live: Live) -> None:
    assert live.upload("ann").status_code == 200
    for _ in range(2):
        with live.socket("ann") as game:
            game.unit()
        until_left(live)


# -- A full server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda live: live.upload("bob"),
        lambda live: live.upload("ann"),
        lambda live: live.upload("bob", model_id="tiny-3r"),
        lambda live: live.upload("bob", nfe="wrong"),
        lambda live: live.get("/create-game/bob"),
        lambda live: live.get("/create-game/ann"),
    ],
    ids=["z0", "own-z0", "z0-switch", "z0-bad-field", "reserve", "own-reserve"],
)
def test_while_a_game_is_live_it_is_423(full: Live, ask: Callable[[Live], Any]) -> None:
    answer = ask(full)
    assert (answer.status_code, answer.headers["content-type"]) == (423, "text/plain; charset=utf-8")
    assert answer.text.startswith("Every place")


@pytest.mark.parametrize("model", ["tiny-3r", "moon", "tiny-3nr"])
def test_while_a_game_is_live_a_switch_is_423(full: Live, model: str) -> None:
    with full.http() as http:
        answer = http.post("/switch", data={"model_id": model})
    assert (answer.status_code, answer.headers["content-type"]) == (423, "text/plain; charset=utf-8")
    assert full.get("/status").json()["active_model_id"] == "tiny-3nr"


@pytest.mark.parametrize("user", ["ann", "bob", "cat"])
def test_while_a_game_is_live_a_socket_is_1013(full: Live, user: str) -> None:
    code, reason = closed(full, user)
    assert code == 1013
    assert reason.startswith("Every place")
    assert full.get("/status").json()["ws_active"] is True


@pytest.fixture(scope="module")
def full(live: Live) -> Iterator[Live]:
    """`live` with a game of `ann` in its only place; `bob` has a start picture, `cat` none."""
    assert live.upload("bob", model_id="tiny-3nr").status_code == 200
    with game_of(live, "ann"):
        yield live


# -- Switching ---------------------------------------------------------------------------------------------------------


def switch(live: Live, **fields: str) -> Any:
    with live.http() as http:
        return http.post("/switch", data=fields)


@pytest.mark.parametrize("wanted", ["tiny-3r", " Tiny-3NR ", "tiny-3r", "tiny-3r"])
def test_a_switch_serves_another_model(brief: Live, wanted: str) -> None:
    answer = switch(brief, model_id=wanted)
    model = wanted.strip().lower()
    assert (answer.status_code, answer.json()) == (200, {"success": True, "model_id": model})
    told = brief.get("/models").json()
    assert told["active_model_id"] == brief.get("/status").json()["active_model_id"] == model
    assert told["reprefill"]["supported"] is (model == "tiny-3r")
    assert told["default_model_id"] == "tiny-3nr"


def test_a_switch_to_an_unknown_model_is_400_with_the_valid_ids(brief: Live) -> None:
    answer = switch(brief, model_id="moon")
    assert answer.status_code == 400
    assert "unknown model_id 'moon'; valid: tiny-3nr, tiny-3r" in answer.json()["detail"]


def test_a_switch_without_a_model_is_422(brief: Live) -> None:
    answer = switch(brief, user_id="ann")
    assert answer.status_code == 422
    assert "model_id" in answer.json()["detail"]


def test_a_picture_for_another_model_is_1008_and_the_place_is_free(brief: Live) -> None:
    switch(brief, model_id="tiny-3r")
    assert brief.upload("ann").status_code == 200
    switch(brief, model_id="tiny-3nr")
    code, reason = closed(brief, "ann")
    assert code == 1008
    assert "'tiny-3nr'" in reason and "'tiny-3r'" in reason and "POST /z0 again" in reason
    with game_of(brief, "ann"):
        pass


def test_without_a_start_picture_a_socket_is_1008_and_the_place_is_free(brief: Live) -> None:
    assert closed(brief, "nobody") == (1008, "no start picture yet: POST /z0 first")
    assert occupancy(brief) == (False, False, {})


def test_a_user_id_out_of_the_rule_is_1008(brief: Live) -> None:
    code, reason = closed(brief, "a%20b")
    assert (code, reason.startswith("user id must be")) == (1008, True)


# -- Tickets -----------------------------------------------------------------------------------------------------------


def signed(user: str = "ann", server: str = SERVER, expiry: int | str = FAR, secret: str = SECRET) -> str:
    return ticket(user, secret=secret, server=server, expiry=expiry)


@pytest.mark.parametrize("wrap", [str, lambda t: f"  {t}\t", lambda t: t[:-64] + t[-64:].upper()])
def test_a_ticket_admits_everywhere(gated: Live, wrap: Callable[[str], str]) -> None:
    admitted = wrap(signed())
    assert gated.upload("ann", ticket=admitted).status_code == 200
    assert switch(gated, model_id="tiny-3nr", user_id="ann", ticket=admitted).status_code == 200
    assert gated.get("/create-game/ann", ticket=admitted).status_code == 200
    with gated.socket("ann", f"?ticket={signed()}") as game:
        game.unit()
    until_left(gated)


def test_models_and_status_need_no_ticket_and_say_that_others_do(gated: Live) -> None:
    assert gated.get("/models").status_code == 200
    told = gated.get("/status").json()
    assert (told["tickets_required"], told["server_id"]) == (True, SERVER)


def test_a_ticket_lasts_to_its_second(gated: Live) -> None:
    now = int(time.time())
    assert gated.get("/create-game/new", ticket=signed("new", expiry=now + 60)).status_code == 412
    assert gated.get("/create-game/new", ticket=signed("new", expiry=now - 1)).status_code == 401


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "missing or malformed ticket"),
        ("a.b.c", "missing or malformed ticket"),
        (signed("bob"), "ticket is for another user"),
        (signed(server="box-2"), "ticket is for another server"),
        (signed(expiry="soon"), "malformed ticket expiry"),
        (signed(expiry=1_000_000_000), "ticket expired"),
        (signed(secret="guess"), "bad ticket signature"),
        (signed()[:-1], "bad ticket signature"),
        (signed().replace(str(FAR), str(FAR + 1)), "bad ticket signature"),
    ],
    ids=["none", "malformed", "user", "server", "expiry", "expired", "signature", "short", "longer"],
)
def test_a_bad_ticket_is_401_and_1008_with_its_reason(gated: Live, bad: str, why: str) -> None:
    answers = [
        gated.upload("ann", ticket=bad),
        switch(gated, model_id="tiny-3nr", user_id="ann", ticket=bad),
        gated.get("/create-game/ann", ticket=bad),
    ]
    assert [answer.status_code for answer in answers] == [401] * 3
    assert all(answer.json()["detail"].endswith(f"({why})") for answer in answers)
    code, reason = closed(gated, "ann", f"?ticket={bad}")
    assert (code, reason.endswith(f"({why})")) == (1008, True)
    assert SECRET not in "".join(answer.text for answer in answers) + reason


def test_a_ticket_for_a_switch_names_the_user_of_the_form(gated: Live) -> None:
    assert switch(gated, model_id="tiny-3nr", ticket=signed()).status_code == 401
    assert switch(gated, model_id="tiny-3nr", ticket=signed("")).status_code == 200


def test_a_bad_ticket_is_told_before_a_bad_field(gated: Live) -> None:
    assert gated.upload("ann", nfe="x").status_code == 401
    assert gated.upload("ann", nfe="x", ticket=signed()).status_code == 400


# -- Limits and origins ------------------------------------------------------------------------------------------------


def test_an_upload_over_the_limit_is_413(gated: Live) -> None:
    answers = [gated.upload("ann", bytes(size), ticket=signed()) for size in (5_000, 500_000)]
    assert [answer.status_code for answer in answers] == [413, 413]
    assert all("4096 bytes" in answer.json()["detail"] for answer in answers)


def test_the_most_calls_are_the_configured_ones(gated: Live) -> None:
    most, more = (gated.upload("ann", nfe=nfe, ticket=signed()) for nfe in ("4", "5"))
    assert (most.status_code, most.json()["nfe"]["max"]) == (200, 4)
    assert (more.status_code, more.json()["detail"][:35]) == (
        400,
        "nfe must be an integer in 1..4, or 0"[:35],
    )
    assert gated.get("/models").json()["nfe"]["max"] == 4


def test_other_pages_are_answered_as_configured(gated: Live) -> None:
    with gated.http() as http:
        friend = http.get("/models", headers={"Origin": "https://friend.example"})
        foreign = http.get("/models", headers={"Origin": "https://evil.example"})
        post = http.post("/switch", data={"model_id": "x"}, headers={"Origin": "https://evil.example"})
    assert friend.headers["access-control-allow-origin"] == "https://friend.example"
    assert friend.headers["access-control-allow-credentials"] == "true"
    assert "access-control-allow-origin" not in foreign.headers
    assert post.status_code == 403


def test_a_socket_of_a_foreign_page_is_never_opened(gated: Live) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        closed(gated, "ann", f"?ticket={signed()}", origin="https://evil.example")
    assert refusal.value.response.status_code == 403
    code, _ = closed(gated, "nobody", f"?ticket={signed('nobody')}", origin="https://friend.example")
    assert code == 1008, "a friend's socket is opened, and told that there is no start picture"
