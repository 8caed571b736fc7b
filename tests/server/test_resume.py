"""Breaks and returns through the application: the query, the tickets, the answers, and who may have the place."""

from __future__ import annotations

import asyncio

import pytest

from worldloop.core.clock import ManualClock

pytestmark = pytest.mark.anyio


def token(socket) -> str:
    return socket.texts[0]["resume"]["token"]


async def test_a_broken_socket_is_taken_up_again_with_the_token(site) -> None:
    async with site() as s:
        socket = await s.playing("ann")
        await socket.leave(1006)
        during = (await s.http.get("/status")).json()
        again = s.socket("ann", f"?resume={token(socket)}")
        await again.unit()
        after = (await s.http.get("/status")).json()
        metrics = (await s.http.get("/metrics")).text
    assert (during["busy"], during["occupancy"]["owner"], during["ws_active"]) == (True, True, False)
    assert (after["busy"], after["ws_active"]) == (True, True)
    assert again.units[0][0] == 1
    assert [again.texts[0][field] for field in ("type", "width", "model_id")] == ["hello", 64, "alpha"]
    assert len(s.host.games) == 1
    assert "worldloop_games_resumed_total 1.0" in metrics


@pytest.mark.parametrize("resume", ["nonsense", "%00", "%ff", "a" * 3000])
async def test_a_bad_token_is_1008_and_says_what_to_do(site, resume) -> None:
    async with site() as s:
        socket = await s.playing("ann")
        await socket.leave(1006)
        code, reason = await s.socket("ann", f"?resume={resume}").closed()
        metrics = (await s.http.get("/metrics")).text
        again = s.socket("ann", f"?resume={token(socket)}")
        await again.unit()
    assert code == 1008
    assert "POST /z0" in reason
    assert len(reason.encode()) <= 123
    assert 'worldloop_refusals_total{reason="resume"} 1.0' in metrics


async def test_an_empty_resume_begins_a_new_game(site) -> None:
    async with site() as s:
        socket = await s.playing("ann")
        await socket.leave(1006)
        again = s.socket("ann", "?resume=")
        await again.unit()
    assert len(s.host.games) == 2
    assert s.host.games[0].closed


async def test_tickets_are_checked_on_the_way_back_too(site) -> None:
    async with site(ticket_secret="s3cret", server_id="box") as s:
        ticket = s.app.state.arena.tickets.mint("ann", ttl_s=60)
        assert (await s.upload("ann", ticket=ticket)).status_code == 200
        socket = s.socket("ann", f"?ticket={ticket}")
        await socket.unit()
        await socket.leave(1006)
        code, reason = await s.socket("ann", f"?resume={token(socket)}").closed()
        again = s.socket("ann", f"?ticket={ticket}&resume={token(socket)}")
        await again.unit()
    assert code == 1008
    assert "ticket" in reason


async def test_others_get_the_place_when_nobody_came_back(site) -> None:
    clock = ManualClock()
    async with site(clock=clock, resume_s=20) as s:
        await s.upload("bob")
        ann = await s.playing("ann")
        await ann.leave(1006)
        await clock.advance(19)
        early = await s.http.get("/create-game/bob")
        refused = await s.socket("bob").closed()
        uploads = [(await s.upload(user)).status_code for user in ("bob", "ann")]
        await clock.advance(1.5)
        late = await s.http.get("/create-game/bob")
        gone = await s.socket("ann", f"?resume={token(ann)}").closed()
        metrics = (await s.http.get("/metrics")).text
    assert (early.status_code, late.status_code) == (423, 200)
    assert refused[0] == 1013
    assert uploads == [423, 200], "one's own held game is no obstacle"
    assert gone[0] == 1008
    assert 'worldloop_games_total{ending="expired"} 1.0' in metrics


@pytest.mark.parametrize("by", ["reservation", "socket"])
async def test_the_player_may_begin_anew_instead(site, by) -> None:
    async with site() as s:
        ann = await s.playing("ann")
        await ann.leave(1006)
        if by == "reservation":
            assert (await s.http.get("/create-game/ann")).status_code == 200
            assert s.host.games[0].closed
        again = s.socket("ann")
        await again.unit()
        old = await s.socket("ann", f"?resume={token(ann)}").closed()
        metrics = (await s.http.get("/metrics")).text
    assert len(s.host.games) == 2
    assert old[0] == 1008
    assert 'worldloop_games_total{ending="replaced"} 1.0' in metrics


async def test_a_reservation_that_is_refused_leaves_the_held_game_alone(site) -> None:
    clock = ManualClock()
    async with site(clock=clock, stash_s=5, resume_s=20) as s:
        ann = await s.playing("ann")
        await ann.leave(1006)
        clock.shift(6)
        assert (await s.http.get("/create-game/ann")).status_code == 412
        assert (await s.socket("ann").closed())[0] == 1008
        again = s.socket("ann", f"?resume={token(ann)}")
        await again.unit()


async def test_a_switch_is_refused_while_a_game_is_live_or_held(site) -> None:
    async with site(slots=2) as s:
        ann = await s.playing("ann")
        live = await s.http.post("/switch", data={"model_id": "beta"})
        await ann.leave(1006)
        held = await s.http.post("/switch", data={"model_id": "beta"})
        other = await s.upload("bob", model_id="beta")
        again = s.socket("ann", f"?resume={token(ann)}")
        await again.unit()
        await again.leave(1000)
        free = await s.http.post("/switch", data={"model_id": "beta"})
    assert [live.status_code, held.status_code, other.status_code, free.status_code] == [423, 423, 423, 200]


async def test_no_game_begins_while_the_model_changes(site) -> None:
    async with site(slots=2) as s:
        await s.upload("ann")
        s.host.load.clear()
        switching = asyncio.ensure_future(s.http.post("/switch", data={"model_id": "beta"}))
        assert await asyncio.to_thread(s.host.loading.wait, 60)
        code, _ = await s.socket("ann").closed()
        s.host.load.set()
        assert (await switching).status_code == 200
        after, reason = await s.socket("ann").closed()
    assert code == 1013
    assert (after, "'beta'" in reason) == (1008, True)


async def test_a_player_with_two_sockets_keeps_the_newer_one(site) -> None:
    async with site() as s:
        old = await s.playing("ann")
        new = s.socket("ann", f"?resume={token(old)}")
        await new.unit()
        assert await old.closed() == (1008, "taken up elsewhere")
        await new.unit()
        assert (await s.http.get("/status")).json()["ws_active"] is True
    assert len(s.host.games) == 1


async def test_a_stop_ends_held_games(site) -> None:
    async with site() as s:
        ann = await s.playing("ann")
        await ann.leave(1006)
        await s.app.state.arena.stop("going down")
        assert s.host.games[0].closed
        assert (await s.socket("ann", f"?resume={token(ann)}").closed())[0] == 1013
        status = (await s.http.get("/status")).json()
        ready = await s.http.get("/readyz")
    assert status["busy"] is False
    assert (ready.status_code, ready.json()["reason"]) == (503, "the server is stopping")
