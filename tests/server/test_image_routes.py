"""The images API over HTTP: answers, events, the key, and refusals; made by a host by script."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from worldloop.core.errors import CapacityError, DeviceLostError, DeviceMemoryError, InvalidInputError
from worldloop.core.receipt import Receipt
from worldloop.core.settings import Settings
from worldloop.server.app import create_app
from worldloop.session.keys import hash_key

pytestmark = pytest.mark.anyio

KEY, OTHER_KEY = "a-key-of-16-chars", "another-key-of-16-chars"
BODY: dict[str, Any] = {"prompt": "a lake", "seed": 3}
PATH = "/v1/images/generations"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    def __init__(self, app: Any, http: httpx.AsyncClient, host: Any) -> None:
        self.app, self.http, self.host = app, http, host

    async def post(self, **fields: Any) -> httpx.Response:
        body = json.dumps({**BODY, **fields})
        return await self.http.post(PATH, content=body, headers={"Content-Type": "application/json"})

    async def events(self, **fields: Any) -> list[dict[str, Any]]:
        """The data of every event; each is named by its type."""
        answer = await self.post(stream=True, **fields)
        assert (answer.status_code, answer.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        found = []
        for event in answer.text.removesuffix("\n\n").split("\n\n"):
            name, data = event.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
        return found

    async def metrics(self) -> dict[str, float]:
        text = (await self.http.get("/metrics")).text
        return {
            "/".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def desk(scripted_host: Callable[[], Any], scripted_pictures: Any) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(
        *, served: bool = True, facts: dict[str, Any] | None = None, **settings: Any
    ) -> AsyncIterator[Desk]:
        world, host = scripted_host(), scripted_pictures(**(facts or {}))
        app = create_app(world, Settings(**settings), picture_host=host if served else None)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            try:
                async with asyncio.timeout(60):
                    yield Desk(app, http, host)
            finally:
                if app.state.pictures is not None:
                    await app.state.pictures.close()
                app.state.arena.close()
                world.close()

    return opened


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


async def test_an_answer_says_what_was_really_used(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        answer = (
            await it.post(size="64x32", negative_prompt="fog", num_inference_steps=2, flow_shift=4)
        ).json()

    (image,) = answer["data"]
    file = base64.b64decode(image.pop("b64_json"))
    assert pixels(file).shape == (32, 64, 3)
    assert answer.pop("created") > 1_600_000_000
    assert {name: value for name, value in answer.items() if name != "data"} == {
        "background": "opaque", "output_format": "png", "size": "64x32",
    }  # fmt: skip
    assert image["file_hash"] == hashlib.sha256(file).hexdigest()
    assert image["pixel_hash"] == hashlib.sha256(pixels(file).tobytes()).hexdigest()
    timings, receipt = image.pop("timings"), Receipt.parse(image.pop("receipt"))
    assert timings["device"] == {"denoise": 0.5, "decode": 0.25}
    assert 0 <= timings["queued"] <= timings["total"]
    assert (receipt.order["prompt"], receipt.order["negative"], receipt.machine) == (
        "a lake",
        "fog",
        it.host.machine,
    )
    assert image == {
        "id": image["id"], "model": "scripted-picture", "size": "64x32", "seed": 3, "num_inference_steps": 2,
        "guidance_scale": 3.0, "flow_shift": 4.0, "negative_prompt": "fog", "pixel_hash": receipt.pixel_hash,
        "file_hash": receipt.file_hash, "noise_hash": "0" * 64, "model_hash": "1" * 64,
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")])
async def test_a_picture_by_its_address(desk: Callable[..., Any], kind: str, magic: bytes) -> None:
    async with desk() as it:
        (image,) = (await it.post(response_format="url", output_format=kind)).json()["data"]
        file = await it.http.get(image["url"])
        head = await it.http.head(image["url"])
        receipt = (await it.http.get(f"{image['url']}/receipt")).json()

    assert "b64_json" not in image
    assert image["url"] == f"http://test/v1/images/{image['id']}"
    assert file.headers["content-type"] == head.headers["content-type"] == f"image/{kind}"
    assert file.content.startswith(magic)
    assert hashlib.sha256(file.content).hexdigest() == image["file_hash"]
    assert (receipt, receipt["format"]) == (image["receipt"], kind)


async def test_pictures_of_one_request_have_seeds_in_a_row(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        three = (await it.post(n=3)).json()["data"]
        second = (await it.post(seed=4)).json()["data"]
        drawn = [(await it.post(n=2, seed=None)).json()["data"] for _ in range(2)]

    assert [image["seed"] for image in three] == [3, 4, 5]
    assert three[1]["b64_json"] == second[0]["b64_json"] != three[0]["b64_json"]
    assert all(pair[1]["seed"] == pair[0]["seed"] + 1 for pair in drawn)
    assert drawn[0][0]["seed"] != drawn[1][0]["seed"]


async def test_the_events_of_a_stream(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        events = await it.events(n=2, partial_images=1, output_format="webp")
        plain = (await it.post(n=2, output_format="webp")).json()["data"]

    kinds = [event["type"].removeprefix("image_generation.") for event in events]
    one = ["step", "step", "partial_image", "step", "step", "completed"]
    assert kinds == ["queued", *one, *one]
    assert events[0] == {"type": "image_generation.queued", "position": 0, "eta_seconds": 4.0}
    steps = [event for event in events if event["type"].endswith(".step")]
    assert [(each["index"], each["done"], each["of"]) for each in steps] == [
        (k, s + 1, 4) for k in (0, 1) for s in range(4)
    ]
    assert [each["eta_seconds"] for each in steps] == [3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0]
    partial = [event for event in events if event["type"].endswith(".partial_image")]
    assert [(each["index"], each["partial_image_index"], each["size"]) for each in partial] == [
        (0, 0, "48x32"),
        (1, 0, "48x32"),
    ]
    assert pixels(base64.b64decode(partial[0]["b64_json"])).shape == (32, 48, 3)
    completed = [event for event in events if event["type"].endswith(".completed")]
    assert [each["b64_json"] for each in completed] == [each["b64_json"] for each in plain]
    assert [each["index"] for each in completed] == [0, 1]
    # What clients' types ask for.
    assert {"background", "created_at", "output_format", "quality", "size", "usage"} <= set(completed[0])
    assert {"background", "created_at", "output_format", "quality", "size"} <= set(partial[0])


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DeviceMemoryError("the device had too little memory"), 503, None),
        (DeviceLostError("the device is out of service: burnt"), 503, None),
        (CapacityError("no room beside what runs"), 503, "capacity"),
        (InvalidInputError("this model has no such prompt"), 400, None),
        (RuntimeError("/a/secret/path"), 500, None),
    ],
)
async def test_a_failure_is_one_answer_or_one_event(
    desk: Callable[..., Any], error: Exception, status: int, code: str | None
) -> None:
    message = "the picture could not be made" if isinstance(error, RuntimeError) else str(error)
    async with desk() as it:
        it.host.script[4, 2] = error
        events = await it.events(n=3)
        it.host.lost = None
        it.host.script[3, 2] = error
        answer = await it.post()
        it.host.lost = None
        after = await it.post()

    ends = [event for event in events if event["type"].split(".")[1] in ("completed", "failed")]
    assert [end["type"] for end in ends] == ["image_generation.completed", "image_generation.failed"]
    assert ends[-1] is events[-1], "nothing follows"
    kind = "invalid_request_error" if status == 400 else "server_error"
    assert ends[-1]["error"] == {"message": message, "type": kind, "param": None, "code": code}
    assert (answer.status_code, answer.json()["error"]) == (status, ends[-1]["error"])
    assert after.status_code == 200


async def test_a_lost_device_turns_the_server_unready(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        before = await it.http.get("/readyz")
        it.host.script[3, 0] = DeviceLostError("the device is out of service: burnt")
        failed = await it.post()
        after, refused = await it.http.get("/readyz"), await it.post()

    assert [answer.status_code for answer in (before, failed, after, refused)] == [200, 503, 503, 503]
    assert after.json() == {"ready": False, "reason": "the device is out of service: burnt"}


async def test_a_size_that_does_not_fit_is_told_at_once(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        it.host.held = True
        making = asyncio.ensure_future(it.post())
        while not it.host.jobs:  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0)
        # The picture in the making stands still: nothing is waited for.
        refused = await it.post(size="256x256")
        begun = len(it.host.jobs)
        it.host.held = False
        await it.app.state.pictures.close()
        await making

    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (413, "size", "size_too_large")
    assert "the largest is 128x128" in error["message"]
    assert begun == 1, "no work was begun for what was refused"


async def test_a_full_queue_says_when_to_come_back(desk: Callable[..., Any]) -> None:
    async with desk(picture_queue=1) as it:
        it.host.held = True
        waiting = [asyncio.ensure_future(it.post(num_inference_steps=40)) for _ in range(2)]
        while it.app.state.pictures.waiting == 0:  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0)
        full = await it.post()
        levels = await it.metrics()
        await it.app.state.pictures.close()
        stopped = await asyncio.gather(*waiting)

    assert (full.status_code, full.headers["retry-after"]) == (429, "20")
    assert full.json()["error"]["code"] == "queue_full"
    assert levels["worldloop_images_waiting"] == 1
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in stopped] == [
        (503, "stopping")
    ] * 2
    assert all("retry-after" in answer.headers for answer in stopped)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": True}, "n"),
        ({"size": "50x50"}, "size"),
        ({"prompt": "x" * 101}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"quality": "hd"}, "quality"),
        ({"output_compression": 50}, "output_compression"),
        ({"\ud800": 50}, "?"),
    ],
)
async def test_a_wrong_field_is_named(desk: Callable[..., Any], fields: dict[str, Any], param: str) -> None:
    async with desk() as it:
        answer = await it.post(**fields)
        streamed = await it.post(stream=True, **fields)
        right = await it.post()

    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}
    assert (streamed.status_code, streamed.json()) == (400, answer.json()), (
        "before a stream begins it is an answer"
    )
    assert right.status_code == 200


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"\xff", "application/json"),
        (b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}", "application/json"),
        (b'{"prompt": "a", "prompt": "b"}', "application/json"),
        (b'{"prompt": "a", "guidance_scale": NaN}', "application/json"),
        (b'{"prompt": "a", "guidance_scale": 1e999}', "application/json"),
        (b'{"prompt": "a"}', "text/plain"),
        (b"prompt=a", "application/x-www-form-urlencoded"),
        (b"", "application/json"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(
    desk: Callable[..., Any], content: bytes, kind: str
) -> None:
    async with desk() as it:
        answer = await it.http.post(PATH, content=content, headers={"Content-Type": kind})

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert it.host.jobs == []


async def test_every_route_asks_for_a_key(desk: Callable[..., Any]) -> None:
    routes = [
        ("POST", "images/generations"), ("GET", "images/x"), ("HEAD", "images/x"), ("GET", "images/x/receipt"),
        ("GET", "models"), ("GET", "models/x"),
    ]  # fmt: skip
    digest = hash_key(OTHER_KEY)
    wrong = ["", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer", f"Bearer {digest}", "Bearer schlüssel"]
    async with desk(api_key=KEY, api_key_hashes=(hash_key("a"), digest)) as it:
        refused = [
            await it.http.request(method, f"/v1/{path}", headers={"Authorization": word.encode()})
            for method, path in routes
            for word in wrong
        ]
        right = [
            await it.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            for key in (KEY, OTHER_KEY)
        ]
        page = (await it.http.get("/page")).json()

    assert {answer.status_code for answer in refused} == {401}
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert refused[0].json()["error"]["code"] == "invalid_api_key"
    assert [answer.status_code for answer in right] == [200, 200]
    assert page == {"prompt": None}, "the page has no key"


async def test_a_server_with_tickets_and_no_key_is_closed(desk: Callable[..., Any]) -> None:
    async with desk(ticket_secret="s" * 16, server_id="one") as it:
        answer = await it.post()

    assert answer.status_code == 401
    assert "api_key" in answer.json()["error"]["message"]


async def test_the_models_of_every_family(desk: Callable[..., Any]) -> None:
    async with desk(facts={"sizes": ((32, 48), (48, 32))}) as it:
        models = (await it.http.get("/v1/models")).json()
        one = (await it.http.get("/v1/models/scripted-picture")).json()
        none = await it.http.get("/v1/models/gpt-image-2")

    assert models["object"] == "list"
    assert [(each["id"], each["capabilities"]) for each in models["data"]] == [
        ("alpha", ["world"]), ("beta", ["world"]), ("scripted-picture", ["picture"]),
    ]  # fmt: skip
    assert models["data"][2] == one
    assert (one["object"], one["owned_by"]) == ("model", "worldloop")
    assert one["picture"] == {
        "size": "48x32", "sizes": ["48x32", "32x48"], "multiple": 16, "max_pixels": 65536, "num_inference_steps": 4,
        "guidance_scale": 3.0, "flow_shift": 5.0, "prompt_max": 100,
    }  # fmt: skip
    assert (none.status_code, none.json()["error"]["code"]) == (404, "not_found")


async def test_without_a_model_the_routes_say_so(desk: Callable[..., Any]) -> None:
    async with desk(served=False) as it:
        answers = [await it.post(), await it.http.get("/v1/images/x")]
        models = (await it.http.get("/v1/models")).json()["data"]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert "no picture model is served" in answers[0].json()["error"]["message"]
    assert [each["capabilities"] for each in models] == [["world"], ["world"]]


async def test_what_is_forgotten_is_gone(desk: Callable[..., Any]) -> None:
    async with desk(picture_keep_s=0) as it:
        (image,) = (await it.post()).json()["data"]
        answers = [
            await it.http.get(f"/v1/images/{name}")
            for name in (image["id"], f"{image['id']}/receipt", "image_none")
        ]

    assert [answer.status_code for answer in answers] == [404] * 3


async def test_a_page_of_another_origin_cannot_order(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        answer = await it.http.post(PATH, json=BODY, headers={"Origin": "http://evil.example"})

    assert answer.status_code == 403
    assert it.host.jobs == []


async def test_the_metrics_count_pictures_and_refusals(desk: Callable[..., Any]) -> None:
    async with desk() as it:
        await it.post(n=2)
        it.host.script[3, 1] = DeviceMemoryError("too little")
        await it.post(n=3)
        await it.post(size="256x256")
        await it.post(size="1x1")
        shown = await it.metrics()

    expected = {
        "worldloop_images_total/queued": 5,
        "worldloop_images_total/made": 2,
        "worldloop_images_total/failed": 3,
        "worldloop_images_total/cancelled": 0,
        "worldloop_image_seconds_count/queue": 2,
        "worldloop_image_seconds_count/denoise": 2,
        "worldloop_image_seconds_sum/denoise": 1.0,
        "worldloop_image_seconds_count/file": 2,
        "worldloop_images_waiting": 0,
        "worldloop_refusals_total/picturetoolarge": 1,
        "worldloop_refusals_total/wrongfield": 1,
        "worldloop_refusals_total/devicememory": 1,
    }
    assert {name: shown[name] for name in expected} == expected
    assert shown["worldloop_images_kept_bytes"] > 2 * 32 * 48 * 3
