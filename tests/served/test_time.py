"""Ways through time over real sockets: back, a moment as a file, a game from it, forks, the tape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

import worldloop
from worldloop.core.clock import SystemClock
from worldloop.host import WorldHost
from worldloop.loops.snapshot import Snapshot
from worldloop.loops.tape import Tape
from worldloop.session.tickets import Tickets

from .client import Live, Stream
from .conftest import Serve
from .watch import until_left

SECRET = "a secret of some length for tests"
ROUTES = ("snapshot", "tape", "fork", "rewind")


@pytest.fixture(scope="module")
def live(serve: Serve) -> Live:
    return serve(h264_bitrate=100_000_000, slots=2)


@pytest.fixture(autouse=True)
def everyone_leaves(live: Live) -> Iterator[None]:
    """Leaving is noticed within one pass, not at once: the next test's players wait for it."""
    yield
    until_left(live)


def call(live: Live, user: str, what: str, **form: Any) -> httpx.Response:
    path = f"/sessions/{user}/{what}"
    with live.http() as http:
        return http.get(path, params=form) if what == "tape" else http.post(path, data=form)


def restore(live: Live, user: str, data: bytes, **form: str) -> httpx.Response:
    with live.http() as http:
        return http.post(f"/sessions/{user}/restore", files={"world": ("a.world", data)}, data=form)


def seen(stream: Stream, pictures: int) -> list[NDArray[np.uint8]]:
    return [stream.picture() for _ in range(pictures)]


def rewound(stream: Stream) -> bool:
    """Whether the newest text says that the player was taken back."""
    return bool(stream.texts) and stream.texts[-1]["type"] == "rewound"


def until_rewound(stream: Stream) -> list[NDArray[np.uint8]]:
    """The pictures that were on their way before the player was taken back."""
    late: list[NDArray[np.uint8]] = []
    while not rewound(stream):
        message = stream.next()
        if isinstance(message, bytes):
            shown = stream._decoder.decode(av.Packet(message[1:]))
            late += [picture.to_ndarray(format="rgb24") for picture in shown]
    return late


def after(stream: Stream) -> tuple[int, NDArray[np.uint8]]:
    """The frame that a rewind came to, and the picture that follows."""
    frame = stream.texts[-1]["frame"] if rewound(stream) else stream.text("rewound")["frame"]
    assert stream.unit()[:1] == b"\x01", "a key picture comes first"
    pixels = stream._decoder.decode(av.Packet(stream.units[-1][1:]))[-1].to_ndarray(format="rgb24")
    return frame, pixels


def apart(one: NDArray[np.uint8], two: NDArray[np.uint8]) -> float:
    """Mean difference of two pictures, the second of half the size."""
    if two.shape != one.shape:
        two = two.repeat(2, 0).repeat(2, 1)
    return float(np.abs(one.astype(int) - two).mean())


def test_the_player_goes_back_with_a_message_and_the_stream_goes_on(live: Live) -> None:
    with live.playing("ann") as stream:
        assert stream.text("hello")["rewind_s"] == 10
        stream.hold("w")
        before = seen(stream, 81)
        stream.say({"type": "rewind", "seconds": 5})
        before += until_rewound(stream)
        frame, shown = after(stream)
        seen(stream, 12)

    # Five seconds are 15 latent frames; snapshots are a few frames apart, and some more were in the making.
    assert (len(before) - 1) // 4 - 19 <= frame <= (len(before) - 1) // 4 - 12
    assert apart(before[4 * frame - 3], shown) < 2 < apart(before[4 * frame + 5], shown)


def test_going_back_over_http_and_the_tape_of_it(live: Live, tiny_folder: Path) -> None:
    with live.playing("ann") as stream:
        stream.text("hello")
        seen(stream, 41)
        answer = call(live, "ann", "rewind", seconds=2)
        frame, shown = after(stream)
        later = seen(stream, 3)
        tape = call(live, "ann", "tape")

    assert (answer.status_code, answer.json()) == (200, {"success": True, "frame": frame})
    assert tape.headers["content-type"] == "application/octet-stream"
    assert tape.headers["content-disposition"] == 'attachment; filename="ann.tape"'
    with worldloop.load_world(tiny_folder, threads=1, model_id="tiny-3nr") as world:
        again = [picture for frames in world.replay(tape.content) for picture in frames]
    assert len(again) >= 1 + 4 * frame
    assert apart(shown, again[4 * frame - 3]) < 2
    assert apart(later[-1], again[4 * frame]) < 2


def test_a_moment_is_a_file_and_another_player_goes_on_from_it(live: Live) -> None:
    with live.playing("ann") as stream:
        seen(stream, 21)
        file = call(live, "ann", "snapshot")
    answer = restore(live, "bob", file.content)
    assert live.get("/create-game/bob").status_code == 200
    with live.socket("bob") as stream:
        seen(stream, 5)
        tape = Tape.unpack(call(live, "bob", "tape").content)

    made = Snapshot.unpack(file.content).made
    assert file.headers["content-disposition"] == 'attachment; filename="ann.world"'
    assert made > 5
    assert answer.json() == {"success": True, "model_id": "tiny-3nr", "z0_shape": [1, 8, 3, 4]}
    assert tape.start.pack() == file.content


def test_a_fork_is_the_next_game_of_whom_it_is_for(live: Live) -> None:
    with live.playing("ann") as stream:
        seen(stream, 21)
        assert call(live, "ann", "fork").status_code == call(live, "ann", "fork", to="bob").status_code == 200
        assert live.get("/create-game/bob").status_code == 200
        with live.socket("bob") as other:
            seen(other, 5)
            beside = Tape.unpack(call(live, "bob", "tape").content)
        seen(stream, 4)
    until_left(live)
    with live.socket("ann") as stream:
        seen(stream, 5)
        own = Tape.unpack(call(live, "ann", "tape").content)

    assert beside.start.made >= own.start.made > 5


def test_what_is_refused_disturbs_nothing(live: Live) -> None:
    with live.playing("ann") as stream:
        seen(stream, 9)
        for seconds in ("0", "-1", "nan", "inf", "1e9"):
            assert call(live, "ann", "rewind", seconds=seconds).status_code == 400
        assert call(live, "ann", "rewind", seconds="soon").status_code == 422
        assert restore(live, "bob", b"no world").json() == {
            "detail": "the file is damaged, or of another kind: a worldloop snapshot or tape is needed"
        }
        assert call(live, "ann", "fork", to="../bob").status_code == 400
        for seconds, code in [
            ("x", "wrong_type"),
            (True, "wrong_type"),
            (0, "out_of_range"),
            (601, "out_of_range"),
        ]:
            stream.say({"type": "rewind", "seconds": seconds})
            assert stream.text("error")["code"] == code
        stream.unit()


def test_who_does_not_play_has_no_moment(live: Live) -> None:
    for what in ROUTES:
        answer = call(live, "nobody", what, seconds=1)
        assert (answer.status_code, answer.json()) == (
            404,
            {"detail": "you are not playing: open the game's socket first"},
        )


def test_without_rewind_nobody_is_told_of_it_and_asking_is_refused(tiny_folder: Path) -> None:
    off = "rewind is off: rewind_s and rewind_bytes must be above 0"
    with (
        closing(WorldHost.open(str(tiny_folder), threads=1, rewind_s=0)) as host,
        closing(Live(host, stream_fps=120, rewind_s=0)) as live,
        live.playing("ann") as stream,
    ):
        assert "rewind_s" not in stream.text("hello")
        seen(stream, 5)
        stream.say({"type": "rewind", "seconds": 1})
        assert stream.text("error") == {"type": "error", "code": "rewind", "message": off}
        answer = call(live, "ann", "rewind", seconds=1)
        assert (answer.status_code, answer.json()) == (400, {"detail": off})
        stream.unit()


def test_with_tickets_only_ones_own_game(serve: Serve) -> None:
    live = serve(ticket_secret=SECRET, server_id="here", slots=2)
    tickets = Tickets(secret=SECRET, server_id="here", clock=SystemClock())
    ann, bob = (tickets.mint(user, ttl_s=600) for user in ("ann", "bob"))
    assert live.upload("ann", ticket=ann).status_code == 200
    with live.socket("ann", f"?ticket={ann}") as stream:
        seen(stream, 9)
        for what in ROUTES:
            assert call(live, "ann", what, seconds=1).status_code == 401
            assert call(live, "ann", what, seconds=1, ticket=bob).status_code == 401
        file = call(live, "ann", "snapshot", ticket=ann)
        assert file.status_code == call(live, "ann", "tape", ticket=ann).status_code == 200
        assert call(live, "ann", "fork", ticket=ann, to="bob").status_code == 401
        assert restore(live, "bob", file.content, ticket=ann).status_code == 401
        assert restore(live, "bob", file.content, ticket=bob).status_code == 200
        stream.unit()


def test_a_file_over_the_limit_is_refused(serve: Serve) -> None:
    live = serve(max_upload_bytes=2048)
    assert restore(live, "ann", bytes(4096)).status_code == 413
