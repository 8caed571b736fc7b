"""OpenAI's own client, unmodified, makes pictures on a running server; the tool makes the same bytes."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from worldloop.cli import app
from worldloop.codec.still import encode_picture
from worldloop.core.errors import DeviceMemoryError
from worldloop.host import WorldHost
from worldloop.models import flow
from worldloop.picture_host import PictureHost
from worldloop.pictures import PictureMaker
from worldloop.server import run
from worldloop.testing import TINY_GRIDS, tiny_picture

from .client import WAIT_S, Live

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openai

KEY = "a-key-of-16-chars"
SIZES = [(16 * rows, 16 * columns) for rows, columns in TINY_GRIDS]
ORDER: dict[str, Any] = {"prompt": "walk in the meadow"}
STEPS_MAX = 2000
"""Steps of a picture that no machine makes before its client has left."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_picture(tmp_path_factory.mktemp("picture"))


@pytest.fixture(scope="module")
def world(tiny_folder: Path) -> Iterator[WorldHost]:
    with closing(WorldHost.open(str(tiny_folder), threads=1, warmup=False)) as host:
        yield host


@pytest.fixture(scope="module")
def picture_host(world: WorldHost, checkpoint: Path) -> PictureHost:
    return PictureHost.load(world.engine, checkpoint, device=world.model.device, steps_max=STEPS_MAX)


@pytest.fixture(scope="module")
def live(world: WorldHost, picture_host: PictureHost) -> Iterator[Live]:
    with closing(Live(world, None, picture_host, api_key=KEY, stream_fps=120)) as live:
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    # Plain HTTP needs no certificates, and reading them takes longer than a request.
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tool(checkpoint: Path) -> Iterator[PictureMaker]:
    with closing(PictureMaker.load(checkpoint, threads=1)) as maker:
        yield maker


def until(true: Callable[[], bool]) -> None:
    """Give the server's thread turns until it is so."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "it never came to be so"
        os.sched_yield()


def written(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"


def file_of(answer: Any) -> bytes:
    return base64.b64decode(answer.data[0].b64_json)


def order(live: Live, **fields: Any) -> socket.socket:
    """A connection on which a request was sent."""
    body = json.dumps({"prompt": "a lake", "seed": 1, **fields}).encode()
    head = (
        "POST /v1/images/generations HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    )
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
    connection.sendall(head.encode() + body)
    return connection


def test_generate_says_what_it_did(client: openai.OpenAI) -> None:
    answer = client.images.generate(
        **ORDER, size="64x48", model="tiny-picture", n=2, quality="auto", background="auto", moderation="auto",
        user="someone", extra_body={"seed": 7, "num_inference_steps": 3},
    )  # fmt: skip

    assert (answer.size, answer.output_format, answer.background) == ("64x48", "png", "opaque")
    first, second = answer.data or []
    assert (first.model_extra or {})["seed"] + 1 == (second.model_extra or {})["seed"] == 8
    assert (first.model_extra or {})["num_inference_steps"] == 3
    assert first.b64_json != second.b64_json
    assert first.url is None


@pytest.mark.parametrize("size", SIZES, ids=written)
@pytest.mark.parametrize("negative", ["", "lake"])
def test_served_bytes_are_the_tools(
    client: openai.OpenAI, tool: PictureMaker, size: tuple[int, int], negative: str
) -> None:
    body = {"seed": 7, "negative_prompt": negative}
    served = file_of(client.images.generate(**ORDER, size=written(size), extra_body=body))

    made = tool.make(ORDER["prompt"], seed=7, size=size, negative=negative)
    other = tool.make(ORDER["prompt"], seed=8, size=size, negative=negative)

    assert served == encode_picture(made.pixels, "png")
    assert served != encode_picture(other.pixels, "png")


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_served_files_are_those_of_the_command_line(
    client: openai.OpenAI, checkpoint: Path, tmp_path: Path, kind: Any
) -> None:
    out, receipt = tmp_path / f"a.{kind}", tmp_path / "a.json"
    served = client.images.generate(**ORDER, output_format=kind, extra_body={"seed": 7})

    made = CliRunner().invoke(
        app,
        ["picture", ORDER["prompt"], "--out", str(out), "--seed", "7", "--model", str(checkpoint), "--set", "threads=1",
         "--receipt", str(receipt)],
    )  # fmt: skip

    assert made.exit_code == 0, made.output
    assert out.read_bytes() == file_of(served)
    assert json.loads(receipt.read_text()) == (served.data or [])[0].model_extra["receipt"]  # type: ignore[index]


def test_nothing_beside_a_picture_changes_its_bytes(client: openai.OpenAI, live: Live) -> None:
    def make(seed: int) -> bytes:
        return file_of(client.images.generate(**ORDER, extra_body={"seed": seed}))

    alone = make(7)
    serial = [make(seed) for seed in (6, 7, 8)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(make, (6, 7, 8)))
    with pytest.raises(openai.BadRequestError):
        client.images.generate(**ORDER, size="8x8")
    after = make(7)
    with live.playing("ann") as stream:
        stream.hold("w")
        stream.unit()
        beside = make(7)
        stream.unit()

    assert serial == together
    assert alone == serial[1] == after == beside != serial[0]


def test_a_stream_of_the_unmodified_client(client: openai.OpenAI) -> None:
    body = {"seed": 7, "num_inference_steps": 6}
    plain = client.images.generate(**ORDER, n=2, extra_body=body)

    events = list(client.images.generate(**ORDER, n=2, stream=True, partial_images=2, extra_body=body))

    kinds = [event.type.removeprefix("image_generation.") for event in events]
    assert kinds[0] == "queued"
    assert kinds[-1] == "completed"
    assert (kinds.count("partial_image"), kinds.count("step"), kinds.count("completed")) == (4, 12, 2)
    completed = [event for event in events if event.type == "image_generation.completed"]
    assert [event.b64_json for event in completed] == [image.b64_json for image in plain.data or []]
    assert completed[0].usage.total_tokens == 0
    partial = [event for event in events if event.type == "image_generation.partial_image"]
    assert [event.partial_image_index for event in partial] == [0, 1, 0, 1]


def test_a_picture_by_its_address(client: openai.OpenAI, live: Live) -> None:
    inline = client.images.generate(**ORDER, extra_body={"seed": 7})
    (image,) = client.images.generate(**ORDER, response_format="url", extra_body={"seed": 7}).data or []

    assert image.url is not None
    assert image.url.startswith(f"{live.url}/v1/images/image_")
    with live.http() as http:
        file = http.get(image.url, headers={"Authorization": f"Bearer {KEY}"})
        stranger = http.get(image.url)
    assert file.content == file_of(inline)
    assert stranger.status_code == 401


def test_errors_are_openais(client: openai.OpenAI, live: Live) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("size", {"size": "1024x1024"}),
        ("n", {"n": 11}),
        ("quality", {"quality": "hd"}),
        ("style", {"style": "vivid"}),
        ("seed", {"extra_body": {"seed": 2**32}}),
        ("num_inference_steps", {"extra_body": {"num_inference_steps": 2.0}}),
        ("sampler", {"extra_body": {"sampler": "euler"}}),
    ]
    found = []
    for param, fields in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            client.images.generate(**{**ORDER, **fields})
        found.append((param, refused.value.param))
    with (
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as unknown,
    ):
        stranger.images.generate(**ORDER)

    assert [param for param, _ in found] == [param for _, param in found]
    assert unknown.value.code == "invalid_api_key"


def test_models(client: openai.OpenAI) -> None:
    found = {model.id: (model.model_extra or {})["capabilities"] for model in client.models.list()}

    assert found == {"tiny-3nr": ["world"], "tiny-3r": ["world"], "tiny-picture": ["picture"]}
    assert client.models.retrieve("tiny-picture").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-image-2")


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_frees_the_device(
    live: Live, world: WorldHost, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(flow, "MAX_STEPS", STEPS_MAX)
    # What earlier tests began may still be ending.
    until(lambda: world.engine.sessions == 0)
    made = live.pictures.kept_bytes
    connection = order(live, n=10, num_inference_steps=STEPS_MAX, stream=stream)
    until(lambda: world.engine.sessions > 0)

    connection.close()

    until(lambda: world.engine.sessions == 0)
    assert live.pictures.kept_bytes == made, "not even the first of ten was made"
    assert client.images.generate(**ORDER).data


def test_out_of_memory_is_one_requests_failure(
    client: openai.OpenAI, live: Live, picture_host: PictureHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file_of(client.images.generate(**ORDER, extra_body={"seed": 7}))

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("planted")

    with monkeypatch.context() as planted, pytest.raises(openai.InternalServerError) as failed:
        planted.setattr(picture_host.model.network, "pass_chunk", full)  # type: ignore[attr-defined]
        client.images.generate(**ORDER, extra_body={"seed": 7})
    after = file_of(client.images.generate(**ORDER, extra_body={"seed": 7}))

    assert failed.value.status_code == 503
    assert "memory" in failed.value.message
    assert live.get("/readyz").status_code == 200
    assert after == before


def test_a_dead_device_fails_each_request_once_and_is_one_line_of_the_log(
    tiny_folder: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # It would end this process when its time has come, and the server before it was asked.
    monkeypatch.setattr(run, "_give_up", lambda _status: None)
    monkeypatch.setattr(run, "LOST_S", 600.0)

    def dead(*_: Any, **__: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: planted")

    def watch(seed: int) -> list[str]:
        body = {"prompt": "a lake", "seed": seed, "n": 2, "stream": True}
        with live.http() as http:
            answer = http.post("/v1/images/generations", json=body)
        return [line.split(".")[-1] for line in answer.text.splitlines() if line.startswith("event:")]

    with (
        closing(WorldHost.open(str(tiny_folder), threads=1, warmup=False)) as host,
        closing(
            Live(host, None, PictureHost.load(host.engine, checkpoint, device=host.model.device))
        ) as live,
        ThreadPoolExecutor(3) as pool,
    ):
        monkeypatch.setattr(live.pictures.host.model.network, "pass_chunk", dead)
        courses = list(pool.map(watch, range(3)))
        ready = live.get("/readyz")

    # Who came after the loss is refused before a stream begins.
    ends = [[each for each in course if each in ("completed", "failed")] for course in courses if course]
    assert ["failed"] in ends
    assert all(end == ["failed"] for end in ends)
    assert all(course[-1] == "failed" for course in courses if course)
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert "planted" in ready.json()["reason"]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


class Held:
    """A server whose pictures go on only when the test says so."""

    def __init__(self, live: Live, host: Any) -> None:
        self.live, self.host = live, host

    def job(self, of: int = 1) -> Any:
        """The newest of `of` pictures in the making, once it waits for its next pass."""
        until(lambda: len(self.host.jobs) >= of and self.host.jobs[-1].asked)
        return self.host.jobs[-1]

    def waiting(self, count: int) -> None:
        """Return once so many requests wait."""
        until(lambda: self.live.pictures.waiting == count)

    def order(self, **fields: Any) -> socket.socket:
        return order(self.live, **fields)


@pytest.fixture
def held(world: WorldHost, scripted_pictures: Any) -> Iterator[Held]:
    host = scripted_pictures()
    host.held = True
    with closing(Live(world, None, host, picture_queue=2)) as live:
        yield Held(live, host)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("done", [0, 2, 4])
def test_hanging_up_frees_the_place_without_another_step(held: Held, stream: bool, done: int) -> None:
    connection = held.order(stream=stream)
    for _ in range(done):
        held.job().step()
    job = held.job()

    connection.close()

    assert job.ended.wait(WAIT_S)
    assert job.done == done
    held.host.held = False
    assert held.live.pictures.waiting == 0
    with held.live.http() as http:
        assert http.post("/v1/images/generations", json={"prompt": "a lake"}).status_code == 200
    assert len(held.host.jobs) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_while_waiting_gives_the_place_away(held: Held, stream: bool) -> None:
    first = held.order()
    job = held.job()
    second = held.order(seed=2, stream=stream)
    held.waiting(1)
    third = held.order(seed=3)
    held.waiting(2)

    second.close()
    held.waiting(1)
    assert not job.closed
    held.host.held = False
    job.step()
    answers = [connection.makefile("rb").readline() for connection in (first, third)]

    assert answers == [b"HTTP/1.1 200 OK\r\n"] * 2
    assert [order.seed for order in held.host.orders] == [1, 3]
    for connection in (first, third):
        connection.close()


def test_a_full_queue_is_a_rate_limit_to_the_client(held: Held) -> None:
    connections = [held.order()]
    held.job()
    for count in (1, 2):
        connections.append(held.order())
        held.waiting(count)

    with (
        openai.OpenAI(base_url=f"{held.live.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as refused,
    ):
        client.images.generate(prompt="a lake")

    assert refused.value.response.headers["retry-after"] == "2"
    assert refused.value.code == "queue_full"
    for connection in connections:
        connection.close()


def test_a_failed_event_raises_in_the_client(held: Held) -> None:
    held.host.held = False
    held.host.script[1, 2] = DeviceMemoryError("the device had too little memory")
    events = []
    with (
        openai.OpenAI(base_url=f"{held.live.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.APIError, match="too little memory"),
    ):
        for event in client.images.generate(prompt="a lake", stream=True, extra_body={"seed": 1}):
            events.append(event.type)  # noqa: PERF401 -- what came before the error counts

    assert events == ["image_generation.queued", "image_generation.step", "image_generation.step"]


def test_a_stop_answers_what_waits_and_finishes_what_is_made(held: Held) -> None:
    first = held.order()
    job = held.job()
    second = held.order(seed=2)
    held.waiting(1)
    stop = threading.Thread(target=held.live.close)
    stop.start()
    refused = second.makefile("rb").readline()
    held.host.held = False
    job.step()
    made = first.makefile("rb").readline()
    stop.join(WAIT_S)

    assert (refused, made) == (b"HTTP/1.1 503 Service Unavailable\r\n", b"HTTP/1.1 200 OK\r\n")
    for connection in (first, second):
        connection.close()


def test_events_arrive_as_they_happen(held: Held) -> None:
    with (
        held.live.http() as http,
        http.stream("POST", "/v1/images/generations", json={"prompt": "a lake", "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        seen = [next(line for line in lines if line.startswith("event:"))]
        held.job().step()
        seen.append(next(line for line in lines if line.startswith("event:")))
        held.host.held = False
        held.job().step()
        rest = [line for line in lines if line.startswith("event:")]

    assert seen == ["event: image_generation.queued", "event: image_generation.step"]
    assert rest[-1] == "event: image_generation.completed"
