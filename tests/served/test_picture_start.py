"""A world begins from a picture that the same server made from words: by its id, with no file in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from worldloop.host import WorldHost
from worldloop.picture_host import PictureHost
from worldloop.session.host import StartFrame
from worldloop.session.picture_host import Picture
from worldloop.testing import tiny_picture, tiny_world

from .client import Live, png
from .watch import ticket, until_left

Serve = Callable[..., Live]
SECRET, SERVER_ID = "s3cret", "box"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """Two worlds, `tiny-3r` and `tiny-3nr`, and a picture model, of one autoencoder."""
    folder = tmp_path_factory.mktemp("worlds") / "tiny"
    tiny_world(folder)
    tiny_world(folder, cache_mode="last_step_writes", seed=1, step=2)
    tiny_picture(folder)
    return folder


@pytest.fixture(scope="module")
def serve(folder: Path) -> Iterator[Serve]:
    """`serve(pictures=True, **settings)`: worlds, and pictures beside them."""
    with ExitStack() as stack:

        def start(*, pictures: bool = True, **settings: Any) -> Live:
            host = WorldHost.open(str(folder), model_id="tiny-3r", threads=1, warmup=False)
            stack.callback(host.close)
            path = folder / "tiny-picture.safetensors"
            made = PictureHost.load(host.engine, path, device=host.model.device) if pictures else None
            choices = {"stream_fps": 120, "seed": 7, "slots": 2, **settings}
            return stack.enter_context(closing(Live(host, picture_host=made, **choices)))

        yield start


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    return serve()


def draw(live: Live, **fields: Any) -> str:
    """Order a picture; its id."""
    with live.http() as http:
        answer = http.post("/v1/images/generations", json={"prompt": "a lake", "seed": 3, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["data"][0]["id"])


def begin(live: Live, user: str, file: bytes | None = None, **fields: str) -> httpx.Response:
    """`POST /z0/{user}`, with a file or without one, once the last game's place is free."""
    until_left(live)
    files = {} if file is None else {"z0_image": ("a.png", file)}
    with live.http() as http:
        return http.post(f"/z0/{user}", files=files, data=fields)


def play(live: Live, user: str, pictures: int = 9) -> list[bytes]:
    """Binary messages of a game, from its first on. No key: one reaches the game a frame sooner or later."""
    assert live.get(f"/create-game/{user}").status_code == 200
    with live.socket(user) as stream:
        return [stream.unit() for _ in range(pictures)]


class Kept:
    """Every start frame that the host gives, and the picture of those that it adopts."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        host: Any = live.host
        self.encoded: list[StartFrame] = []
        self.adopted: list[tuple[Picture, StartFrame]] = []
        encode, adopt = host.encode, host.adopt

        def encoding(picture: Any) -> StartFrame:
            self.encoded.append(encode(picture))
            return self.encoded[-1]

        def adopting(picture: Picture) -> StartFrame:
            self.adopted.append((picture, adopt(picture)))
            return self.adopted[-1][1]

        monkeypatch.setattr(host, "encode", encoding)
        monkeypatch.setattr(host, "adopt", adopting)


def test_the_world_begins_at_the_picture_s_own_latent(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(live, monkeypatch)
    with live.http() as http:
        order = {"prompt": "a lake", "seed": 3, "response_format": "url"}
        made = http.post("/v1/images/generations", json=order).json()["data"][0]
        file = http.get(made["url"]).content

    answer = begin(live, "ann", picture_id=made["id"])
    drawn = play(live, "ann")
    begin(live, "bob", file)
    uploaded = play(live, "bob")

    assert answer.status_code == 200
    assert answer.json()["z0_shape"] == [1, 8, 3, 4]
    (picture, adopted), (encoded,) = kept.adopted[0], kept.encoded
    # The world's own form: cells in rows, each with its channels.
    assert torch.equal(adopted.value.float().squeeze(0), picture.latent.latent.flatten(1).T)
    # The file shows the same place and is encoded anew, so it does not begin in quite the same one.
    assert not torch.equal(encoded.value.float(), adopted.value.float())
    assert drawn != uploaded


def test_the_same_picture_gives_the_same_bytes(live: Live) -> None:
    picture = draw(live)
    begin(live, "ann", picture_id=picture)
    first = play(live, "ann")
    begin(live, "ann", picture_id=f" {picture} ")
    again = play(live, "ann")
    begin(live, "ann", picture_id=draw(live, seed=4))
    other = play(live, "ann")

    assert first == again
    assert first != other


def test_a_game_shows_the_picture_first(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(live, monkeypatch)
    begin(live, "ann", picture_id=draw(live))
    live.get("/create-game/ann")
    with live.socket("ann") as stream:
        shown = stream.picture()

    (picture, _) = kept.adopted[0]
    enlarged = picture.pixels.repeat(2, axis=0).repeat(2, axis=1)
    assert shown.shape == enlarged.shape
    # H.264 is lossy, on random colours above all.
    assert np.corrcoef(shown.ravel(), enlarged.ravel())[0, 1] > 0.9
    assert np.corrcoef(shown.ravel(), enlarged[::-1].ravel())[0, 1] < 0.9


@pytest.mark.parametrize(("size", "encoded"), [("96x64", 0), ("48x64", 1), ("32x32", 1)])
def test_of_a_larger_picture_the_middle_is_taken_and_any_other_is_cropped(
    live: Live, monkeypatch: pytest.MonkeyPatch, size: str, encoded: int
) -> None:
    kept = Kept(live, monkeypatch)
    answer = begin(live, "ann", picture_id=draw(live, size=size))

    assert answer.status_code == 200
    assert answer.json()["z0_shape"] == [1, 8, 3, 4]
    assert len(kept.encoded) == encoded
    if not encoded:
        picture, adopted = kept.adopted[0]
        middle = picture.latent.latent[:, 1:4, 1:5]
        assert torch.equal(adopted.value.float().squeeze(0), middle.flatten(1).T)


def test_another_model_and_choices_go_with_it(live: Live) -> None:
    until_left(live)
    answer = begin(live, "ann", picture_id=draw(live), model_id="tiny-3nr", nfe="6")

    assert answer.status_code == 200, answer.text
    assert answer.json()["model_id"] == "tiny-3nr"
    assert answer.json()["nfe"]["active_steps"] == 6
    assert len(play(live, "ann")) == 9


def test_both_neither_and_unknown_are_refused(live: Live) -> None:
    made = draw(live)

    both = begin(live, "ann", png(), picture_id=made)
    neither = begin(live, "ann", picture_id=" ", nfe="1")
    unknown = begin(live, "ann", picture_id="image_" + "0" * 32)
    wrong = begin(live, "ann", picture_id=made, nfe="99")

    assert (both.status_code, both.json()["detail"]) == (
        400, "send either the file z0_image or picture_id, not both",
    )  # fmt: skip
    assert neither.status_code == 422
    assert "z0_image" in neither.json()["detail"]
    assert "picture_id" in neither.json()["detail"]
    assert unknown.status_code == 404
    assert "no picture" in unknown.json()["detail"]
    assert wrong.status_code == 400
    assert live.get("/status").json()["occupancy"]["inflight"] == 0


def test_a_forgotten_picture_is_404(serve: Serve) -> None:
    live = serve(picture_keep_s=0.001)
    assert begin(live, "ann", picture_id=draw(live)).status_code == 404


def test_without_a_picture_model_it_is_404_and_files_work(serve: Serve) -> None:
    live = serve(pictures=False)
    refused = begin(live, "ann", picture_id="image_1")
    assert refused.status_code == 404
    assert "z0_image" in refused.json()["detail"]
    assert begin(live, "ann", png()).status_code == 200
    assert live.get("/page").json() == {"prompt": None}


def test_tickets_come_before_ids(serve: Serve) -> None:
    live = serve(ticket_secret=SECRET, server_id=SERVER_ID, api_key="a-key-of-16-chars")
    headers = {"Authorization": "Bearer a-key-of-16-chars"}
    with live.http() as http:
        order = {"prompt": "a lake"}
        made = http.post("/v1/images/generations", json=order, headers=headers).json()["data"][0]["id"]
    pass_ = ticket("ann", secret=SECRET, server=SERVER_ID, expiry=9_999_999_999)

    assert begin(live, "ann", picture_id=made).status_code == 401
    assert begin(live, "ann", picture_id="image_1").status_code == 401
    assert begin(live, "ann", picture_id="image_1", ticket=pass_).status_code == 404
    assert begin(live, "ann", picture_id=made, ticket=pass_).status_code == 200


@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        ({}, True),
        ({"api_key": "a-key-of-16-chars"}, False),
        ({"ticket_secret": SECRET, "server_id": SERVER_ID}, False),
    ],
)
def test_the_page_offers_what_it_may_order(serve: Serve, settings: dict[str, str], offered: bool) -> None:
    live = serve(**settings)
    with live.http() as http:
        ordered = http.post("/v1/images/generations", json={"prompt": "a lake"}).status_code

    prompt = live.get("/page").json()["prompt"]

    assert (prompt is not None) == (ordered == 200) == offered
    if prompt is not None:
        assert prompt == {
            "model": "tiny-picture", "size": "64x48", "sizes": ["64x48", "48x64", "32x32", "96x64"],
            "prompt_max": 4000,
        }  # fmt: skip
