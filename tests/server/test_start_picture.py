"""`POST /z0`, `GET /models`, `POST /switch`, `GET /create-game`: answers and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytestmark = pytest.mark.anyio


async def test_models_has_the_published_fields(site) -> None:
    async with site() as s:
        answer = (await s.http.get("/models")).json()
    assert answer == {
        "server_kind": "unified",
        "models": ["alpha", "beta"],
        "default_model_id": "alpha",
        "active_model_id": "alpha",
        **s.host.describe(),
    }


async def test_an_upload_answers_what_was_encoded(site) -> None:
    async with site() as s:
        answer = await s.upload("ann", nfe="4", nfe_mode="grid", sphere="on", reprefill_every="16")
    assert answer.status_code == 200
    assert answer.json() == {
        "success": True,
        "model_id": "alpha",
        "z0_shape": [1, 8, 3, 4],
        "nfe": {"override": None, "max": 32},
        "sphere": {"mode": "off"},
        "reprefill": {"every": 0},
        "focus": {"mode": "none", "tokens": 0, "grid": None, "coverage": 0.0},
        "profile": s.host.active_profile,
    }
    (options,) = s.host.options
    assert (options.nfe, options.nfe_mode, options.sphere, options.reprefill_every) == (4, "grid", "all", 16)


async def test_the_picture_is_cropped_to_the_worlds_size(site, make_png) -> None:
    async with site() as s:
        await s.upload("ann", make_png(300, 90))
        (picture,) = s.host.pictures
    assert picture.shape == (48, 64, 3)
    assert tuple(picture[24, 32]) == (200, 30, 30)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"nfe": "99"}, "nfe"),
        ({"nfe_mode": "x"}, "nfe_mode"),
        ({"sphere": "x"}, "sphere"),
        ({"reprefill_every": "-1"}, "reprefill_every"),
        ({"focus_mask": "2x2:01"}, "focus_mask"),
        ({"focus_mask": "1x2:01"}, "focus_mask"),
        ({"model_id": "gamma"}, "alpha, beta"),
    ],
)
async def test_a_bad_field_is_named(site, fields, word) -> None:
    async with site() as s:
        answer = await s.upload("ann", **fields)
    assert answer.status_code == 400
    assert word in answer.json()["detail"]
    assert s.host.pictures == []


async def test_what_is_not_a_picture_is_refused(site) -> None:
    async with site() as s:
        answer = await s.upload("ann", b"not a picture")
    assert answer.status_code == 400
    assert answer.json()["detail"]


@pytest.mark.parametrize("user", ["a" * 65, "a b", "a%0Ab", "é"])
async def test_a_bad_user_id_is_refused(site, user) -> None:
    async with site() as s:
        assert (await s.upload(user)).status_code == 400
        assert (await s.http.get(f"/create-game/{user}")).status_code == 400


async def test_a_missing_picture_is_named(site) -> None:
    async with site() as s:
        answer = await s.http.post("/z0/ann", data={"nfe": "1"})
    assert answer.status_code == 422
    assert "z0_image" in answer.json()["detail"]


async def test_too_large_an_upload_is_413_whichever_way_it_comes(site, make_png) -> None:
    async def endless():
        yield b'--b\r\nContent-Disposition: form-data; name="z0_image"; filename="a.png"\r\n\r\n'
        for _ in range(40):
            yield b"x" * 10_000

    async with site(max_upload_bytes=4096) as s:
        by_file = await s.upload("ann", make_png() + b"x" * 5000)
        by_length = await s.upload("ann", b"x" * 500_000)
        chunked = await s.http.post(
            "/z0/ann", content=endless(), headers={"content-type": "multipart/form-data; boundary=b"}
        )
    for answer in (by_file, by_length, chunked):
        assert answer.status_code == 413
        assert "4096" in answer.json()["detail"]


async def test_a_reservation_needs_a_start_picture(site) -> None:
    async with site() as s:
        refused = await s.http.get("/create-game/ann")
        await s.upload("ann")
        granted = await s.http.get("/create-game/ann")
        other = await s.http.get("/create-game/bob")
    assert refused.status_code == 412
    assert granted.json() == {"success": True}
    assert other.status_code == 423
    assert other.headers["content-type"].startswith("text/plain")


async def test_a_live_game_makes_every_route_busy(site) -> None:
    async with site() as s:
        await s.playing("ann")
        answers = [
            await s.upload("bob"),
            await s.http.post("/switch", data={"model_id": "beta"}),
            await s.http.get("/create-game/bob"),
        ]
    for answer in answers:
        assert answer.status_code == 423
        assert answer.text
        assert "retry-after" in answer.headers


async def test_another_model_in_an_upload_switches_first(site) -> None:
    async with site() as s:
        answer = await s.upload("ann", model_id=" BETA ")
    assert answer.json()["model_id"] == "beta"


async def test_switch(site) -> None:
    async with site() as s:
        answer = await s.http.post("/switch", data={"model_id": "beta"})
        unknown = await s.http.post("/switch", data={"model_id": "gamma"})
    assert answer.json() == {"success": True, "model_id": "beta"}
    assert s.host.active == "beta"
    assert unknown.status_code == 400
    assert "alpha, beta" in unknown.json()["detail"]


async def test_a_switch_waits_for_nobodys_game_at_several_slots(site) -> None:
    async with site(slots=2) as s:
        await s.playing("ann")
        same = await s.upload("bob")
        other = await s.upload("bob", model_id="beta")
    assert same.status_code == 200
    assert other.status_code == 423
    assert s.host.active == "alpha"


async def test_without_a_ticket_only_models_and_status_answer(site) -> None:
    async with site(ticket_secret="s3cret", server_id="box") as s:
        tickets = s.app.state.arena.tickets
        refused = [
            await s.upload("ann"),
            await s.http.post("/switch", data={"model_id": "beta"}),
            await s.http.get("/create-game/ann"),
        ]
        ticket = tickets.mint("ann", ttl_s=60)
        admitted = [
            await s.upload("ann", ticket=ticket),
            await s.http.get("/create-game/ann", params={"ticket": ticket}),
            await s.http.get("/models"),
            await s.http.get("/status"),
        ]
    assert [answer.status_code for answer in refused] == [401] * 3
    assert "s3cret" not in "".join(answer.text for answer in refused)
    assert [answer.status_code for answer in admitted] == [200] * 4
    assert admitted[3].json()["tickets_required"] is True
    assert admitted[3].json()["server_id"] == "box"


async def test_status_answers_while_an_encode_runs(site) -> None:
    async with site() as s:
        s.host.gate.clear()
        upload = asyncio.ensure_future(s.upload("ann"))
        assert await asyncio.to_thread(s.host.encoding.wait, 60)
        answer = (await s.http.get("/status")).json()
        assert not upload.done()
        s.host.gate.set()
        assert (await upload).status_code == 200
        after = (await s.http.get("/status")).json()
    assert answer["busy"] is True
    assert after["occupancy"] == {"busy": True, "owner": False, "inflight": 0, "pending_z0": 1}


async def test_an_error_of_the_host_says_nothing_of_this_machine(site) -> None:
    async with site() as s:
        s.host.configure = lambda options: Path("/nowhere/secret.bin").read_bytes()
        answer = await s.upload("ann")
        status = (await s.http.get("/status")).json()
    assert answer.status_code == 500
    assert "nowhere" not in answer.text
    assert status["occupancy"]["inflight"] == 0
