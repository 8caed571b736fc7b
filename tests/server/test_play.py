"""The socket of a game, through the application."""

from __future__ import annotations

import asyncio

import pytest

from worldloop.codec.h264 import H264Decoder
from worldloop.core.clock import ManualClock
from worldloop.core.errors import BusyError, EngineError, SessionEndedError

pytestmark = pytest.mark.anyio


async def test_hello_then_a_key_unit_that_decodes(site) -> None:
    async with site() as s:
        socket = await s.playing("ann")
        for _ in range(5):
            await socket.unit()
    hello = socket.texts[0]
    assert hello["type"] == "hello"
    assert (hello["width"], hello["height"]) == (64, 48)
    assert hello["codec"].startswith("avc1.42E0")
    assert hello["model_id"] == "alpha"
    assert hello["profile"]["controls"] == ["w", "a", "s", "d"]
    assert [unit[0] for unit in socket.units] == [1, 0, 0, 0, 0, 0]
    decoder = H264Decoder()
    pictures = [picture for unit in socket.units for picture in decoder.decode(unit[1:])]
    assert pictures[0].shape == (48, 64, 3)
    assert abs(int(pictures[0][24, 32, 0]) - 16) <= 4


async def test_small_pictures_are_streamed_at_twice_their_size(site) -> None:
    async with site(stream_scale=0) as s:
        socket = await s.playing("ann")
        await socket.unit()
    decoder = H264Decoder()
    pictures = [picture for unit in socket.units for picture in decoder.decode(unit[1:])]
    assert (socket.texts[0]["width"], socket.texts[0]["height"]) == (128, 96)
    assert pictures[0].shape == (96, 128, 3)


async def test_keys_reach_the_host_and_are_acknowledged(site) -> None:
    async with site() as s:
        socket = await s.playing("ann")
        await socket.say({"type": "keys", "pressed": {"w": True, "q": True}, "fps_embedding": None, "seq": 3})
        ack = await socket.text("ack")
        before = len(socket.units)
        await socket.unit()
        held = s.host.games[0].controls[-1]
        metrics = (await s.http.get("/metrics")).text
    assert ack == {"type": "ack", "seq": 3, "frame": before}
    assert held.pressed == {"w"}
    assert held.fps is None
    assert "worldloop_key_to_picture_seconds_count 1.0" in metrics


async def test_bad_messages_never_end_a_game(site) -> None:
    async with site() as s:
        socket = await s.playing("ann")
        for text, code in [
            ("nonsense", "not_json"),
            ("[]", "not_an_object"),
            ('{"pressed":[]}', "wrong_type"),
        ]:
            await socket.say(text)
            assert (await socket.text("error"))["code"] == code
        for _ in range(9):
            await socket.unit()
        assert not socket.task.done()


async def test_a_player_sees_the_log_of_their_own_game_only(site) -> None:
    async with site(slots=2) as s:
        ann = await s.playing("ann")
        bob = await s.playing("bob")
        for _ in range(30):
            await ann.unit()
            await bob.unit()
    for player, name in ((ann, "ann"), (bob, "bob")):
        lines = [text for text in player.texts if text["type"] == "log"]
        assert [set(line) for line in lines] == [{"type", "tag", "msg", "ts"}]
        assert (lines[0]["tag"], lines[0]["msg"]) == ("game", f"game.open user={name}")


async def test_no_log_when_it_is_off(site) -> None:
    async with site(log_streaming=False) as s:
        socket = await s.playing("ann")
        for _ in range(30):
            await socket.unit()
    assert {text["type"] for text in socket.texts} == {"hello"}


async def test_status_while_a_game_runs(site) -> None:
    async with site() as s:
        before = (await s.http.get("/status")).json()
        socket = await s.playing("ann")
        during = (await s.http.get("/status")).json()
        await socket.leave()
        after = (await s.http.get("/status")).json()
    assert before == {
        "ok": True,
        "busy": False,
        "occupancy": {"busy": False, "owner": False, "inflight": 0, "pending_z0": 0},
        "ws_active": False,
        "server_id": None,
        "tickets_required": False,
        "session_limit_s": 180.0,
        "active_model_id": "alpha",
        "active_profile": "walker",
    }
    assert during["busy"] and during["ws_active"]
    assert during["occupancy"] == {"busy": True, "owner": True, "inflight": 0, "pending_z0": 0}
    assert after == before


async def test_the_limit_says_so_and_frees_the_slot(site) -> None:
    async with site(session_limit_s=0.05, session_limit_message="thanks") as s:
        socket = await s.playing("ann")
        said = await socket.text("session_over")
        closed = await socket.closed()
        again = await s.http.get("/create-game/ann")
    assert said == {"type": "session_over", "message": "thanks", "limit_s": 0.05}
    assert closed == (1000, "thanks")
    assert again.status_code == 200


async def test_a_second_player_is_turned_away_until_the_first_leaves(site) -> None:
    async with site() as s:
        await s.upload("bob")
        ann = await s.playing("ann")
        code, reason = await s.socket("bob").closed()
        await ann.leave()
        bob = s.socket("bob")
        await bob.unit()
    assert code == 1013
    assert reason


async def test_two_slots_play_two_games(site) -> None:
    async with site(slots=2) as s:
        ann, bob = await s.playing("ann"), await s.playing("bob")
        await ann.unit()
        await bob.unit()
        await s.upload("cat")
        assert (await s.socket("cat").closed())[0] == 1013


async def test_the_same_players_second_socket_is_turned_away(site) -> None:
    async with site(slots=2) as s:
        ann = await s.playing("ann")
        assert (await s.socket("ann").closed())[0] == 1013
        await ann.unit()


async def test_no_start_picture_is_1008(site) -> None:
    async with site() as s:
        code, reason = await s.socket("ann").closed()
        status = (await s.http.get("/status")).json()
    assert code == 1008
    assert "/z0" in reason
    assert status["busy"] is False


async def test_another_model_since_the_picture_is_1008(site) -> None:
    async with site() as s:
        await s.upload("ann")
        await s.http.post("/switch", data={"model_id": "beta"})
        code, reason = await s.socket("ann").closed()
    assert code == 1008
    assert "'beta'" in reason
    assert "'alpha'" in reason


async def test_a_bad_user_id_or_ticket_is_1008(site) -> None:
    async with site(ticket_secret="s3cret", server_id="box") as s:
        ticket = s.app.state.arena.tickets.mint("ann", ttl_s=60)
        await s.upload("ann", ticket=ticket)
        assert (await s.socket("a b", f"?ticket={ticket}").closed())[0] == 1008
        code, reason = await s.socket("ann", "?ticket=x").closed()
        admitted = s.socket("ann", f"?ticket={ticket}")
        await admitted.unit()
    assert code == 1008
    assert "ticket" in reason


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (BusyError("no room on the device"), 1013, "no room"),
        (RuntimeError("boom"), 1011, "RuntimeError: boom"),
    ],
)
async def test_a_game_that_cannot_start_frees_its_slot(site, error, code, word) -> None:
    async with site() as s:
        await s.upload("ann")
        s.host.start_error = error
        closed = await s.socket("ann").closed()
        status = (await s.http.get("/status")).json()
    assert closed[0] == code
    assert word in closed[1]
    assert status["ws_active"] is False


async def test_a_game_that_dies_is_1011_and_frees_its_slot(site) -> None:
    async with site() as s:
        s.host.fail_at = {3: EngineError("device lost")}
        socket = await s.playing("ann")
        closed = await socket.closed()
        status = (await s.http.get("/status")).json()
        metrics = (await s.http.get("/metrics")).text
    assert closed == (1011, "EngineError: device lost")
    assert status["ws_active"] is False
    assert 'worldloop_games_total{ending="failed"} 1.0' in metrics
    assert "worldloop_games_live 0.0" in metrics


async def test_a_world_that_ends_is_told_and_1000(site) -> None:
    async with site() as s:
        s.host.fail_at = {2: SessionEndedError("the table is full")}
        socket = await s.playing("ann")
        said = await socket.text("session_over")
        assert (await socket.closed())[0] == 1000
    assert said["message"] == "the table is full"
    assert len(socket.units) == 5


async def test_a_stop_tells_every_player_and_refuses_newcomers(site) -> None:
    async with site(slots=3) as s:
        ann, bob = await s.playing("ann"), await s.playing("bob")
        await s.upload("cat")
        stopping = asyncio.ensure_future(s.app.state.arena.stop("going down"))
        assert [(await one.closed()) for one in (ann, bob)] == [(1001, "going down")] * 2
        await stopping
        assert all(one.texts[-1]["message"] == "going down" for one in (ann, bob))
        assert (await s.socket("cat").closed())[0] == 1013
        assert (await s.upload("dan")).status_code == 423
        assert (await s.http.get("/readyz")).status_code == 503


async def test_a_start_picture_expires(site) -> None:
    clock = ManualClock()
    async with site(clock=clock, stash_s=60) as s:
        await s.upload("ann")
        clock.shift(61)
        assert (await s.http.get("/create-game/ann")).status_code == 412


async def test_a_reservation_goes_stale(site) -> None:
    clock = ManualClock()
    async with site(clock=clock) as s:
        await s.upload("ann")
        await s.upload("bob")
        await s.http.get("/create-game/ann")
        early = await s.http.get("/create-game/bob")
        clock.shift(20.5)
        late = await s.http.get("/create-game/bob")
    assert (early.status_code, late.status_code) == (423, 200)
