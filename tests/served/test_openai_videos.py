"""OpenAI's own client, unmodified, makes videos on a running server; the command line makes the same bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from worldloop.cli import app
from worldloop.codec.mp4 import read_video
from worldloop.host import WorldHost
from worldloop.testing import tiny_picture, tiny_video
from worldloop.video_host import VideoHost

from .client import Live, png

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openai

# Its methods for videos are marked as deprecated, whatever server they speak to.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

KEY = "a-key-of-16-chars"
ORDER: dict[str, Any] = {"prompt": "walk in the meadow", "seconds": "2", "extra_body": {"seed": 7}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("video")
    tiny_picture(folder, steps=2)
    return tiny_video(folder, facts={"picture": {"file": "tiny-picture.safetensors", "unread": ["walk"]}})


@pytest.fixture(scope="module")
def live(tiny_folder: Path, checkpoint: Path) -> Iterator[Live]:
    host = WorldHost.open(str(tiny_folder), threads=1, warmup=False)
    with closing(host):
        video_host = VideoHost(host.engine, checkpoint, device=host.model.device)
        with closing(Live(host, video_host, api_key=KEY, video_seconds_max=3600)) as live:
            yield live


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    # Plain HTTP needs no certificates, and reading them takes longer than a request.
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_create_poll_and_download(client: openai.OpenAI) -> None:
    video = client.videos.create(**ORDER, size="64x48", model="tiny-video")
    done = client.videos.poll(video.id, poll_interval_ms=20)

    data = client.videos.download_content(video.id).content

    assert video.status in ("queued", "in_progress")
    assert (done.status, done.progress, done.seconds, done.size) == ("completed", 100, "2", "64x48")
    assert (
        done.expires_at is not None and done.completed_at is not None and done.expires_at > done.completed_at
    )
    assert len(list(read_video(data))) == 24


@pytest.mark.parametrize("first_frame", ["tiny-picture", "given", "none"])
def test_the_command_line_makes_the_same_bytes(
    client: openai.OpenAI, checkpoint: Path, tmp_path: Path, first_frame: str
) -> None:
    picture, out, other = tmp_path / "first.png", tmp_path / "clip.mp4", tmp_path / "other.mp4"
    picture.write_bytes(png())
    extra = {"seed": 7, **({"first_frame": "none"} if first_frame == "none" else {})}
    given = {"input_reference": picture} if first_frame == "given" else {}
    video = client.videos.create(**{**ORDER, "extra_body": extra}, **given)
    client.videos.poll(video.id, poll_interval_ms=20)
    same = ["--seconds", "2", "--model", str(checkpoint), "--set", "threads=1"]
    same += {"given": ["--first-frame", str(picture)], "none": ["--first-frame", "none"]}.get(first_frame, [])

    made = CliRunner().invoke(app, ["video", ORDER["prompt"], "--out", str(out), "--seed", "7", *same])
    CliRunner().invoke(app, ["video", ORDER["prompt"], "--out", str(other), "--seed", "8", *same])

    assert made.exit_code == 0, made.output
    assert f"first frame: {first_frame}" in made.output
    assert client.videos.retrieve(video.id).first_frame == first_frame  # type: ignore[attr-defined]
    assert out.read_bytes() == client.videos.download_content(video.id).content
    assert other.read_bytes() != out.read_bytes()


def test_remix_list_and_delete(client: openai.OpenAI) -> None:
    first = client.videos.create(**ORDER)
    second = client.videos.remix(first.id, prompt="a lake")

    assert second.remixed_from_video_id == first.id
    assert [video.id for video in client.videos.list(limit=1)][:2] == [second.id, first.id]
    assert client.videos.poll(second.id, poll_interval_ms=20).status == "completed"
    assert client.videos.delete(first.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(first.id)


def test_errors_are_openais(client: openai.OpenAI, live: Live) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.videos.create(prompt="a lake", size="720x1280")
    with (
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as unknown,
    ):
        stranger.videos.list()

    assert refused.value.param == "size"
    assert "64x48" in refused.value.message
    assert unknown.value.code == "invalid_api_key"


def test_a_video_is_read_while_it_is_made_and_a_hang_up_ends_it(client: openai.OpenAI, live: Live) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "video/mp4"}
    # Longer than any machine needs to ask about it.
    body = {"prompt": "a lake", "seconds": 3600, "seed": 1}

    with (
        httpx.Client(base_url=live.url, verify=False) as http,
        http.stream("POST", "/v1/videos", json=body, headers=headers) as answer,
    ):
        name = answer.headers["x-video-id"]
        pieces = answer.iter_raw()
        start = next(pieces)
        during = client.videos.retrieve(name)

    assert start[4:8] == b"ftyp"
    assert during.status == "in_progress"
    with pytest.raises(openai.NotFoundError):
        # Ends either way: by the hang-up, or because the video was made to its end all the same.
        while client.videos.retrieve(name).status == "in_progress":
            pass
    live.host.engine.call(lambda: None)
    assert live.host.engine.sessions == 0


def test_a_stream_that_is_only_watched_changes_nothing(client: openai.OpenAI, live: Live) -> None:
    video = client.videos.create(**{**ORDER, "seconds": "4"})
    path, headers = f"/v1/videos/{video.id}/content", {"Authorization": f"Bearer {KEY}"}

    with httpx.Client(base_url=live.url, verify=False, headers=headers) as http:
        with http.stream("GET", path) as answer:
            pieces = answer.iter_raw()
            next(pieces)
        watched = http.get(path).content
        whole = http.get(path)
        part = http.get(path, headers={"Range": "bytes=10-19"})
        head = http.head(path)

    assert client.videos.poll(video.id, poll_interval_ms=20).status == "completed"
    assert watched == whole.content
    assert (part.status_code, part.content) == (206, whole.content[10:20])
    assert head.headers["content-length"] == str(len(whole.content))
