"""The siege itself can fail: a disturbed game differs, every kind of leak is seen, and the cases are many."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from worldloop.engine.admission import Share

from ..client import WAIT_S
from .addresses import address_cases, key_cases, range_cases, start_cases
from .bystander import Alone
from .case import Case, Scene
from .crowds import SLOW, crowd_cases, unread_cases
from .footprint import at_rest, footprint, forget_peak, left_over, loop_of, peak_mb, resident_mb
from .forms import body_cases, form_cases
from .http import http_cases
from .messages import frame_cases, message_cases, opened
from .names import id_cases, ticket_cases
from .orders import image_field_cases, order_body_cases, video_field_cases
from .pictures import bad_cases, bomb_cases, odd_cases
from .raw import PING, dial, frame, raw_socket
from .references import reference_cases
from .siege import first_difference
from .sockets import UPLOAD, connection_cases, many, patience_cases, resume_cases, upload_first
from .studio import IMAGES, LONG, drawn, filmed, finished, http, post

UNITS = 25


class NoEyes:
    """In place of `Eyes` where no case is run."""

    picture = None


def all_cases() -> list[Case]:
    given: Any = NoEyes()
    return [
        *message_cases(),
        *frame_cases(),
        *odd_cases(given),
        *bad_cases(),
        *bomb_cases(),
        *form_cases(),
        *body_cases(),
        *id_cases(),
        *http_cases(),
        *ticket_cases(),
        *connection_cases(),
        *patience_cases(),
        *resume_cases(),
        *image_field_cases(),
        *video_field_cases(),
        *order_body_cases(),
        *address_cases(),
        *key_cases(),
        *range_cases(),
        *start_cases(),
        *crowd_cases(),
        *unread_cases(),
        *reference_cases(),
    ]


def test_there_are_more_than_two_thousand_cases_each_of_a_name_of_its_own() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) > 2000
    assert sorted(set(names)) == sorted(names)
    assert names == [case.name for case in all_cases()]


def test_a_game_with_another_key_is_another_game(alone: Alone) -> None:
    units = alone.units(UNITS)
    other = alone.units(UNITS, key="a")
    assert first_difference(units, units) is None
    # The start picture is the same, the first dreamed frame is not.
    assert first_difference(units, other) == 1


def test_a_wrong_answer_fails_its_case(scene: Scene) -> None:
    right = Case(name="right", expected="404", run=lambda _: "404 not found")
    wrong = Case(name="wrong", expected="404 | 400 because", run=lambda _: "400 for no reason")
    broken = Case(name="broken", expected="404", run=lambda _: str(1 // 0))
    assert right.wrong(scene) is None
    assert "400 for no reason" in str(wrong.wrong(scene))
    assert "ZeroDivisionError" in str(broken.wrong(scene))


@contextmanager
def thread(scene: Scene):
    done = threading.Event()
    worker = threading.Thread(target=done.wait, name="planted")
    worker.start()
    yield
    done.set()
    worker.join()


@contextmanager
def game(scene: Scene):
    upload_first(scene)
    with opened(scene, "rogue-plug"):
        yield


def connection(scene: Scene) -> AbstractContextManager[Any]:
    return dial(scene.url)


@contextmanager
def half_request(scene: Scene):
    with dial(scene.url) as held:
        held.sendall(UPLOAD[:-100])
        yield


@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        (game, {"busy", "device sessions", "requests", "tasks", "threads", "connections", "open files"}),
        (connection, {"connections", "open files"}),
        (half_request, {"connections", "requests", "tasks", "open files"}),
        (thread, {"threads"}),
        (lambda _: tempfile.TemporaryFile(), {"open files"}),  # noqa: SIM115 (entered by the test)
        (lambda _: tempfile.NamedTemporaryFile(), {"open files", "temporary files"}),  # noqa: SIM115
    ],
    ids=["game", "connection", "request", "thread", "open file", "temporary file"],
)
def test_a_planted_leak_is_seen(
    plant: Callable[[Scene], AbstractContextManager[Any]], seen: set[str], scene: Scene
) -> None:
    sees(scene, plant, seen)


def sees(scene: Scene, plant: Callable[[Scene], AbstractContextManager[Any]], seen: set[str]) -> None:
    """The footprint differs in all of these while it is planted, and in nothing after."""
    before = at_rest(scene.live)
    with plant(scene):
        # A connection is counted once the server has taken it.
        until = time.monotonic() + WAIT_S
        while True:
            found = {name for name, value in footprint(scene.live).items() if value != before[name]}
            if found >= seen or time.monotonic() > until:
                break
            threading.Event().wait(0.02)
    assert found >= seen
    assert left_over(scene.live, before) == {}


def kept_picture(scene: Scene) -> AbstractContextManager[Any]:
    return nullcontext(drawn(scene.live))


def kept_video(scene: Scene) -> AbstractContextManager[Any]:
    return nullcontext(finished(scene.live))


def picture_order(scene: Scene) -> AbstractContextManager[Any]:
    return many(scene, 1, post(IMAGES, SLOW))


def video_order(scene: Scene) -> AbstractContextManager[Any]:
    return filmed(scene.live, **LONG)


@contextmanager
def lost_file(scene: Scene):
    """A file that a video has left in the videos' folder."""
    folder: Any = scene.live.videos._folder
    with tempfile.NamedTemporaryFile(dir=folder):
        yield


@contextmanager
def share(scene: Scene):
    """A share of the device that nobody gave back."""
    admission = scene.live.host.engine.admission
    admission.admit("planted", Share())
    yield
    admission.release("planted")


@contextmanager
def generator(scene: Scene):
    """A reader of a video that waits for its bytes, and that nobody closes."""

    async def begin() -> Any:
        pieces = scene.live.videos.fragments(scene.live.videos.get(name))
        await anext(pieces)
        return pieces

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop_of(scene.live)).result(WAIT_S)

    name = finished(scene.live)
    pieces = on_loop(begin())
    yield
    on_loop(pieces.aclose())


@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        (picture_order, {"picture orders", "device sessions", "device shares", "requests", "open files"}),
        (video_order, {"video orders", "device sessions", "device shares", "kept videos", "temporary files"}),
        (kept_picture, {"kept pictures"}),
        (kept_video, {"kept videos", "temporary files"}),
        (lost_file, {"temporary files"}),
        (share, {"device shares"}),
        (generator, {"open generators"}),
    ],
    ids=["picture order", "video order", "picture", "video", "file of a video", "share", "generator"],
)
def test_a_planted_leak_of_the_studio_is_seen(
    plant: Callable[[Scene], AbstractContextManager[Any]], seen: set[str], studio: Scene
) -> None:
    sees(studio, plant, seen)


def test_what_is_younger_than_an_hour_is_still_there(studio: Scene) -> None:
    """The hour that the footprint lets pass is what forgets, not the look itself."""
    made = drawn(studio.live)
    footprint(studio.live)
    with http(studio.live) as client:
        there = client.get(f"/v1/images/{made['id']}").status_code
        at_rest_with = at_rest(studio.live)["kept pictures"]
        gone = client.get(f"/v1/images/{made['id']}").status_code
    assert (there, at_rest_with, gone) == (200, 0, 404)


def test_the_peak_of_memory_is_seen() -> None:
    start = resident_mb()
    forget_peak()
    block = np.ones(64 * 2**20, np.uint8)
    del block
    assert 50 < peak_mb() - start < 200


def test_both_places_can_be_played_after_a_siege(scene: Scene) -> None:
    rude = frame(PING, b"p" * 200)
    for _ in range(3):
        with raw_socket(scene.url, "/ws/rogue-plug") as rogue:
            rogue.send(rude)
    with scene.live.playing("ann") as ann, scene.live.playing("bob") as bob:
        for stream in (ann, bob):
            stream.hold("w", stream_fps=10)
        for _ in range(6):
            assert ann.unit() and bob.unit()
        assert scene.live.get("/create-game/eve").status_code == 423
