"""Origins, security headers, health, metrics, and the page's files."""

from __future__ import annotations

import json

import pytest

from worldloop.server.web_routes import Gallery

pytestmark = pytest.mark.anyio

FOREIGN = {"origin": "https://evil.example"}


async def test_a_socket_from_a_foreign_page_is_never_accepted(site) -> None:
    async with site() as s:
        await s.upload("ann")
        socket = s.socket("ann", **FOREIGN)
        assert (await socket.closed())[0] == 1008
    assert not socket.accepted


@pytest.mark.parametrize("origin", ["http://test", "https://friend.example"])
async def test_own_and_configured_pages_may_play(site, origin) -> None:
    async with site(cors_allow_origins="https://friend.example") as s:
        await s.upload("ann")
        socket = s.socket("ann", origin=origin)
        await socket.unit()


@pytest.mark.parametrize("origin", ["null", "http://test.evil.example", "http://test:81", "test"])
async def test_near_misses_of_the_own_origin_are_foreign(site, origin) -> None:
    async with site() as s:
        await s.upload("ann")
        assert (await s.socket("ann", origin=origin).closed())[0] == 1008


async def test_a_post_from_a_foreign_page_is_refused(site) -> None:
    async with site(cors_allow_origins="https://friend.example") as s:
        foreign = await s.http.post("/switch", data={"model_id": "beta"}, headers=FOREIGN)
        friend = await s.http.post(
            "/switch", data={"model_id": "beta"}, headers={"origin": "https://friend.example"}
        )
    assert foreign.status_code == 403
    assert friend.status_code == 200
    assert friend.headers["access-control-allow-origin"] == "https://friend.example"


@pytest.mark.parametrize("headers", [FOREIGN, {"host": "evil.example"}], ids=["origin", "host"])
async def test_clients_of_openai_are_refused_in_the_form_that_they_read(site, headers) -> None:
    async with site() as s:
        answer = await s.http.post("/v1/images/generations", json={"prompt": "a"}, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_cors_names_no_foreign_origin(site) -> None:
    async with site(cors_allow_origins="https://friend.example") as s:
        answer = await s.http.get("/models", headers=FOREIGN)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "name", ["evil.example", "EVIL.example:8000", "127.0.0.1.evil.example", "[::1", "evil.example."]
)
async def test_a_strangers_name_for_a_loopback_address_is_not_answered(site, name) -> None:
    async with site() as s:
        answer = await s.http.get("/status", headers={"host": name})
        socket = await s.socket("ann", host=name, origin=f"http://{name}").closed()
        refused = (await s.http.get("/metrics")).text
    assert answer.status_code == 403
    assert "allowed_hosts" in answer.json()["detail"]
    assert socket[0] == 1008
    assert 'refusals_total{reason="host"} 2' in refused


@pytest.mark.parametrize(
    "name",
    [
        "127.0.0.1:8000",
        "localhost",
        "LOCALHOST:1",
        "[::1]:8000",
        "192.168.0.7",
        "a.localhost",
        "box",
        "play.example",
    ],
)
async def test_own_and_configured_names_are_answered(site, name) -> None:
    async with site(allowed_hosts="play.example,other.example") as s:
        assert (await s.http.get("/status", headers={"host": name})).status_code == 200


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"allowed_hosts": "*"}])
async def test_a_server_for_everyone_is_answered_by_any_name(site, settings) -> None:
    async with site(**settings) as s:
        assert (await s.http.get("/status", headers={"host": "play.example.org"})).status_code == 200


async def test_every_answer_has_the_security_headers(site) -> None:
    async with site() as s:
        answers = [await s.http.get(path) for path in ("/", "/status", "/nowhere", "/create-game/ann")]
    for answer in answers:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe-eval" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_health_and_readiness(site) -> None:
    async with site() as s:
        ready = await s.http.get("/readyz")
        s.host.active = None
        unready = await s.http.get("/readyz")
        health = await s.http.get("/healthz")
        status = (await s.http.get("/status")).json()
    assert (health.status_code, ready.status_code, unready.status_code) == (200, 200, 503)
    assert ready.json()["ready"] is True
    assert status["active_model_id"] is None
    assert status["active_profile"] is None


async def test_metrics_count_refusals_by_reason(site) -> None:
    async with site() as s:
        await s.http.get("/create-game/ann")
        await s.upload("ann", nfe="x")
        text = (await s.http.get("/metrics")).text
    assert 'worldloop_refusals_total{reason="notready"} 1.0' in text
    assert 'worldloop_refusals_total{reason="invalidinput"} 1.0' in text


async def test_the_gallery_lists_what_is_there(site, make_png, tmp_path) -> None:
    folder = tmp_path / "alpha"
    folder.mkdir()
    for name in ("lake", "bridge"):
        (folder / f"{name}.png").write_bytes(make_png())
    notes = [
        {"name": "lake", "title": "The lake", "caption": "Calm.", "seed": 1},
        {"name": "gone", "title": "", "caption": ""},
    ]
    (folder / "pictures.json").write_text(json.dumps(notes))
    async with site(gallery=Gallery.of_world("alpha", root=tmp_path)) as s:
        listed = (await s.http.get("/pictures")).json()
        shown = await s.http.get("/" + listed[0]["url"])
        absent = await s.http.get("/pictures/..%2Fsecret.png")
    assert listed == [
        {"name": "lake", "title": "The lake", "caption": "Calm.", "url": "pictures/lake.png"},
        {"name": "bridge", "title": "bridge", "caption": "", "url": "pictures/bridge.png"},
    ]
    assert shown.headers["content-type"] == "image/png"
    assert shown.content == (folder / "lake.png").read_bytes()
    assert absent.status_code == 404


async def test_a_world_without_pictures_has_an_empty_gallery(tmp_path) -> None:
    assert Gallery.of_world("nowhere", root=tmp_path).entries == ()


async def test_the_page_and_its_modules(site) -> None:
    async with site() as s:
        page = await s.http.get("/")
        module = await s.http.get("/web/app.js")
        outside = await s.http.get("/web/..%2Fapp.py")
    assert page.status_code == 200
    assert "text/html" in page.headers["content-type"]
    assert "javascript" in module.headers["content-type"]
    assert module.headers["cache-control"] == "no-cache"
    assert outside.status_code == 404
