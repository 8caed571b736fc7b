"""The videos API over HTTP: fields, forms of answers, the key, and refusals; made by a host by script."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from worldloop.core.settings import Settings
from worldloop.server import video_routes
from worldloop.server.app import create_app
from worldloop.session.videos import VideoOrder

pytestmark = pytest.mark.anyio

KEY = "a-key-of-16-chars"
BODY: dict[str, Any] = {"prompt": "a lake", "seconds": 1, "seed": 3}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Instant:
    """A rollout of grey pictures that are there at once, unless the host holds them back."""

    def __init__(self, host: InstantHost, order: VideoOrder) -> None:
        self.host, self.left = host, order.seconds * 4
        self.held: Future[Any] = Future()

    def take(self) -> Future[NDArray[np.uint8] | None]:
        if self.host.held:
            return self.held
        made: Future[NDArray[np.uint8] | None] = Future()
        made.set_result(np.full((4, 48, 64, 3), 90, np.uint8) if self.left else None)
        self.left -= 4
        return made

    def close(self) -> None:
        if not self.held.done():
            self.held.set_exception(RuntimeError("closed"))


class InstantHost:
    model_id, frame_size, fps = "scripted", (48, 64), 4.0
    draws_with = "painter"

    def __init__(self, *, held: bool) -> None:
        self.held = held
        self.orders: list[VideoOrder] = []

    def start(self, order: VideoOrder) -> Instant:
        self.orders.append(order)
        return Instant(self, order)

    def seconds_left(self, order: VideoOrder, made: int) -> float | None:
        return order.seconds - made / 4


class Desk:
    def __init__(self, http: httpx.AsyncClient, host: InstantHost | None) -> None:
        self.http, self.host = http, host

    async def done(self, name: str) -> dict[str, Any]:
        while True:
            answer = (await self.http.get(f"/v1/videos/{name}")).json()
            if answer["status"] not in ("queued", "in_progress"):
                return answer
            await asyncio.sleep(0)


@pytest.fixture
def desk(scripted_host: Callable[[], Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(*, served: bool = True, held: bool = False, **settings: Any) -> AsyncIterator[Desk]:
        world = scripted_host()
        host = InstantHost(held=held) if served else None
        app = create_app(world, Settings(**{"video_seconds_max": 8, **settings}), video_host=host)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            try:
                yield Desk(http, host)
            finally:
                if app.state.videos is not None:
                    await app.state.videos.close()
                app.state.arena.close()
                world.close()

    return opened


def png(colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(out, "PNG")
    return out.getvalue()


async def test_an_answer_has_openais_fields(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        created = (await it.http.post("/v1/videos", json=BODY)).json()
        done = await it.done(created["id"])
        content = await it.http.get(f"/v1/videos/{created['id']}/content")

    assert {**created, "id": "", "created_at": 0} == {
        "id": "", "object": "video", "model": "scripted", "status": "queued", "progress": 0, "created_at": 0,
        "completed_at": None, "expires_at": None, "error": None, "prompt": "a lake", "seconds": "1",
        "size": "64x48", "remixed_from_video_id": None, "seed": 3, "first_frame": "painter",
        "queue_position": 1, "eta_seconds": 1.0,
    }  # fmt: skip
    assert (done["status"], done["progress"], done["queue_position"]) == ("completed", 100, None)
    assert done["expires_at"] == done["completed_at"] + 3600
    assert content.headers["content-type"] == "video/mp4"
    assert content.content[4:8] == b"ftyp"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": "  "}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": "x" * 4001}, "prompt"),
    ({"model": "sora-2"}, "model"),
    ({"size": "720x1280"}, "size"),
    ({"size": 64}, "size"),
    ({"seconds": 0}, "seconds"),
    ({"seconds": 9}, "seconds"),
    ({"seconds": 1.5}, "seconds"),
    ({"seconds": "4s"}, "seconds"),
    ({"seconds": True}, "seconds"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**32}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"input_reference": "a.png"}, "input_reference"),
    ({"input_reference": {"file_id": "file_1"}}, "input_reference"),
    ({"input_reference": {"image_url": "https://example.org/a.png"}}, "input_reference"),
    ({"input_reference": {"image_url": "data:image/png;base64,?"}}, "input_reference"),
    ({"input_reference": {"image_url": "data:image/png;base64,AAAA"}}, "input_reference"),
    ({"first_frame": "drawn"}, "first_frame"),
    ({"first_frame": 1}, "first_frame"),
    (
        {"first_frame": "none", "input_reference": {"image_url": "data:image/png;base64,AAAA"}},
        "first_frame",
    ),
    ({"style": "noir"}, "style"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
async def test_a_wrong_field_is_named(desk: Callable[..., Any], fields: dict[str, Any], param: str) -> None:
    async with desk() as it:
        answer = await it.http.post("/v1/videos", json={**BODY, **fields})
        right = await it.http.post("/v1/videos", json=BODY)

    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}
    assert right.status_code == 200


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"\xff", "application/json"),
        (b"prompt", "text/plain"),
        (b"prompt", "multipart/form-data"),
        (b"prompt=a&prompt=b", "application/x-www-form-urlencoded"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(
    desk: Callable[..., Any], content: bytes, kind: str
) -> None:
    async with desk() as it:
        answer = await it.http.post("/v1/videos", content=content, headers={"Content-Type": kind})

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("way", ["file", "url", "form url"])
async def test_a_first_picture_comes_in_every_form(desk: Callable[..., Any], way: str) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    texts = {"prompt": "a lake", "seconds": "1"}
    requests: dict[str, dict[str, Any]] = {
        "file": {"data": texts, "files": {"input_reference": ("a.png", png())}},
        "url": {"json": {**texts, "input_reference": {"image_url": url}}},
        "form url": {"data": {**texts, "input_reference[image_url]": url}},
    }
    async with desk() as it:
        answer = await it.http.post("/v1/videos", **requests[way])
        assert answer.status_code == 200, answer.text
        await it.done(answer.json()["id"])

    first = it.host.orders[0].first
    assert answer.json()["first_frame"] == "given"
    assert first is not None
    assert (first.shape, first[0, 0].tolist()) == ((48, 64, 3), [200, 30, 30])


@pytest.mark.parametrize("body", ["json", "data"])
async def test_the_first_frame_is_drawn_unless_an_order_says_none(
    desk: Callable[..., Any], body: str
) -> None:
    wishes: list[dict[str, Any]] = [{}, {"first_frame": "none"}]
    async with desk() as it:
        answers = [await it.http.post("/v1/videos", **{body: {**BODY, **wish}}) for wish in wishes]
        again = await it.http.post(f"/v1/videos/{answers[1].json()['id']}/remix", json={"prompt": "a meadow"})
        told = [await it.done(answer.json()["id"]) for answer in (*answers, again)]

    assert [each["first_frame"] for each in told] == ["painter", "none", "none"]
    assert [each.drawn for each in it.host.orders] == [True, False, False]


async def test_a_picture_over_the_limit_is_refused(desk: Callable[..., Any]) -> None:
    async with desk(max_upload_bytes=1024) as it:
        answer = await it.http.post(
            "/v1/videos", data={"prompt": "a"}, files={"input_reference": ("a.png", bytes(1025))}
        )

    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")


async def test_every_route_asks_for_the_key(desk: Callable[..., Any]) -> None:
    routes = [
        ("POST", ""), ("GET", ""), ("GET", "/x"), ("GET", "/x/content"), ("HEAD", "/x/content"),
        ("POST", "/x/remix"), ("DELETE", "/x"),
    ]  # fmt: skip
    wrong = ["", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer", "Bearer schlüssel"]
    async with desk(api_key=KEY) as it:
        refused = [
            await it.http.request(method, f"/v1/videos{path}", headers={"Authorization": word.encode()})
            for method, path in routes
            for word in wrong
        ]
        right = await it.http.get("/v1/videos", headers={"Authorization": f"Bearer {KEY}"})

    assert {answer.status_code for answer in refused} == {401}
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert refused[0].json()["error"]["code"] == "invalid_api_key"
    assert right.json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


async def test_a_server_with_tickets_and_no_key_is_closed(desk: Callable[..., Any]) -> None:
    async with desk(ticket_secret="s" * 16, server_id="one") as it:
        answer = await it.http.post("/v1/videos", json=BODY)

    assert answer.status_code == 401
    assert "api_key" in answer.json()["error"]["message"]


async def test_without_a_model_the_routes_say_so(desk: Callable[..., Any]) -> None:
    async with desk(served=False) as it:
        answer = await it.http.post("/v1/videos", json=BODY)

    assert answer.status_code == 404
    assert "no video model is served" in answer.json()["error"]["message"]


async def test_a_full_queue_says_when_to_come_back(desk: Callable[..., Any]) -> None:
    async with desk(held=True, video_queue=1) as it:
        answers = [await it.http.post("/v1/videos", json={**BODY, "seconds": 8}) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert answers[2].headers["retry-after"] == "8"
    assert answers[2].json()["error"]["code"] == "queue_full"


async def test_a_full_queue_reads_no_first_picture(
    desk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        video_routes,
        "read_stranger",
        lambda data, **more: read.append(more["filename"]) or np.zeros((48, 64, 3), np.uint8),
    )
    files = {"input_reference": ("a.png", b"a picture")}
    async with desk(held=True, video_queue=1) as it:
        answers = [
            await it.http.post("/v1/videos", data={**BODY, "seconds": 8}, files=files) for _ in range(3)
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert len(read) == 2


async def test_a_page_of_jobs_and_a_wrong_query(desk: Callable[..., Any]) -> None:
    async with desk(held=True) as it:
        ids = [(await it.http.post("/v1/videos", json=BODY)).json()["id"] for _ in range(3)]
        first = (await it.http.get("/v1/videos", params={"limit": 2})).json()
        rest = (await it.http.get("/v1/videos", params={"after": first["last_id"]})).json()
        wrong = [
            await it.http.get("/v1/videos", params=query)
            for query in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"page": 1})
        ]
        variant = await it.http.get(f"/v1/videos/{ids[0]}/content", params={"variant": "thumbnail"})

    assert [video["id"] for video in first["data"]] == [ids[2], ids[1]]
    assert (first["first_id"], first["has_more"]) == (ids[2], True)
    assert ([video["id"] for video in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    assert [answer.status_code for answer in (*wrong, variant)] == [400] * 5


async def test_a_deleted_job_is_gone(desk: Callable[..., Any]) -> None:
    async with desk(held=True) as it:
        name = (await it.http.post("/v1/videos", json=BODY)).json()["id"]
        gone = await it.http.delete(f"/v1/videos/{name}")
        after = [
            await it.http.request(method, f"/v1/videos/{name}{path}")
            for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", ""))
        ]

    assert gone.json() == {"id": name, "object": "video.deleted", "deleted": True}
    assert [answer.status_code for answer in after] == [404] * 3


async def test_names_of_files_are_no_way_out(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        await it.done((await it.http.post("/v1/videos", json=BODY)).json()["id"])
        answer = await it.http.get("/v1/videos/..%2f..%2fetc%2fpasswd/content")

    assert answer.status_code == 404


async def test_a_page_of_another_origin_cannot_post_or_delete(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        answers = [
            await it.http.request(method, "/v1/videos/x", headers={"Origin": "http://evil.example"})
            for method in ("POST", "DELETE")
        ]

    assert [answer.status_code for answer in answers] == [403, 403]
