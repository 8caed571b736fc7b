"""One game's flow, on a clock that is moved by hand at ten pictures a second."""

from __future__ import annotations

import itertools
from concurrent.futures import Future

import numpy as np
import pytest

from worldloop.core.errors import EngineError, SessionEndedError
from worldloop.engine.contract import Emit
from worldloop.session.socket import BROKEN, LEFT, MOVED, over

pytestmark = pytest.mark.anyio


def keys(*held: str, **more: object) -> dict[str, object]:
    return {"type": "keys", "pressed": dict.fromkeys(held, True), **more}


async def test_hello_comes_first_and_the_first_unit_is_key(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(0.35)
    assert t.socket.texts("hello") == [{"type": "hello"}]
    assert isinstance(t.socket.sent[0][1], str)
    assert [unit[:1] for _, unit in t.socket.pictures] == [b"\x01", b"\x00", b"\x00", b"\x00"]
    await t.leave()


async def test_pictures_go_out_in_order_at_the_rate_and_none_is_dropped(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(1.25)
    assert [round(at, 6) for at, _ in t.socket.pictures] == [round(k / 10, 6) for k in range(13)]
    assert [unit[1] for _, unit in t.socket.pictures] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    await t.leave()


async def test_generation_waits_until_few_pictures_are_queued(table, inline_game) -> None:
    t = table(inline_game(), frames_low_watermark=2)
    await t.clock.advance(0.05)
    # The start picture is out and one of four is in hand: three are queued, and nothing more is asked for.
    assert len(t.game.controls) == 2
    await t.clock.advance(0.1)
    assert len(t.game.controls) == 3
    await t.leave()


async def test_controls_are_read_after_the_wait_for_room(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(0.05)
    await t.say(keys("w"))
    await t.say(keys("d"))
    await t.clock.advance(0.1)
    assert t.game.controls[2].pressed == {"d"}
    await t.leave()


async def test_newer_controls_reach_a_frame_that_has_not_begun_and_are_acknowledged_there(
    table, inline_game
) -> None:
    t = table(inline_game(held=True))
    await t.clock.advance(0)
    t.game.answer()
    await t.clock.advance(0)
    await t.say(keys("w", seq=7))
    assert t.game.controls[1].pressed == {"w"}
    t.game.answer()
    await t.clock.advance(0.1)
    assert t.socket.texts("ack") == [{"type": "ack", "seq": 7, "frame": 1}]
    await t.leave()


async def test_controls_that_came_too_late_are_acknowledged_with_the_next_frame(table, inline_game) -> None:
    t = table(inline_game(held=True, updates=False))
    await t.clock.advance(0)
    t.game.answer()
    await t.clock.advance(0)
    await t.say(keys("w", seq=7))
    t.game.answer()
    await t.clock.advance(0.35)
    assert t.socket.texts("ack") == []
    t.game.answer()
    await t.clock.advance(0.5)
    assert t.socket.texts("ack") == [{"type": "ack", "seq": 7, "frame": 5}]
    await t.leave()


async def test_ack_stands_right_before_its_picture(table, inline_game) -> None:
    t = table(inline_game())
    await t.say(keys("w", seq=1))
    await t.clock.advance(1.0)
    messages = [message for _, message in t.socket.sent]
    (at,) = (k for k, m in enumerate(messages) if isinstance(m, str) and '"ack"' in m)
    frame = t.socket.texts("ack")[0]["frame"]
    assert sum(isinstance(m, bytes) for m in messages[:at]) == frame
    assert isinstance(messages[at + 1], bytes)
    assert len(t.counts.latencies) == 1
    await t.leave()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "not_json"),
        ("[" * 3000, "not_json"),
        (b"\x00\x01", "not_json"),
        ("[1]", "not_an_object"),
        ('{"pressed": 3}', "wrong_type"),
        ('{"fps_embedding": true}', "wrong_type"),
        ('{"stream_fps": 1e9}', "out_of_range"),
        ('{"x": "' + "y" * 5000 + '"}', "too_large"),
    ],
)
async def test_a_bad_message_is_answered_and_changes_nothing(table, inline_game, message, code) -> None:
    t = table(inline_game())
    await t.say(keys("w"))
    await t.say(message)
    before = len(t.socket.pictures)
    await t.clock.advance(1.0)
    (answer,) = t.socket.texts("error")
    assert answer["code"] == code
    assert t.counts.refusals == [code]
    assert t.game.controls[-1].pressed == {"w"}
    assert len(t.socket.pictures) >= before + 9
    await t.leave()


async def test_other_message_types_are_ignored(table, inline_game) -> None:
    t = table(inline_game())
    await t.say(keys("w"))
    await t.say({"type": "chat", "pressed": {"s": True}})
    await t.clock.advance(0.5)
    assert t.game.controls[-1].pressed == {"w"}
    assert t.socket.texts("error") == []
    await t.leave()


async def test_a_new_rate_counts_from_the_last_picture_without_a_burst(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(1.05)
    await t.say(keys(stream_fps=50))
    await t.clock.advance(0.5)
    times = [at for at, _ in t.socket.pictures]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) > 0.019
    assert round(gaps[-1], 6) == 0.02
    await t.leave()


async def test_a_stall_of_the_device_makes_no_burst(table, inline_game) -> None:
    t = table(inline_game(held=True))
    await t.clock.advance(0)
    t.game.answer()
    await t.clock.advance(5.0)
    t.game.answer()
    await t.clock.advance(0.25)
    assert [round(at, 6) for at, _ in t.socket.pictures] == [0.0, 5.0, 5.1, 5.2]
    await t.leave()


async def test_leaving_ends_while_a_frame_is_in_the_making(table, inline_game) -> None:
    t = table(inline_game(held=True))
    await t.clock.advance(0)
    assert await t.leave() is LEFT
    t.game.answer()
    await t.clock.advance(1)
    await t.session.close(LEFT)
    assert t.socket.pictures == []
    assert t.socket.closed is None


async def test_limit_counts_from_the_first_picture(table, inline_game) -> None:
    t = table(inline_game(held=True), session_limit_s=3, session_limit_message="enough")
    await t.clock.advance(10)
    t.game.answer()
    t.game.held = False
    await t.clock.advance(2.9)
    assert not t.task.done()
    await t.clock.advance(0.2)
    ending = t.task.result()
    await t.session.close(ending)
    assert ending.kind == "limit"
    assert t.socket.texts("session_over") == [{"type": "session_over", "message": "enough", "limit_s": 3.0}]
    assert t.socket.closed == (1000, "enough")


async def test_a_failed_frame_closes_with_the_errors_name_and_no_path(table, inline_game) -> None:
    t = table(inline_game({2: EngineError("no memory in /srv/secret/place.bin " + "x" * 200)}))
    await t.clock.advance(1.0)
    await t.session.close(t.task.result())
    code, reason = t.socket.closed
    assert code == 1011
    assert reason.startswith("EngineError: no memory in <path>")
    assert len(reason.encode()) <= 123


async def test_when_the_world_ends_what_is_queued_is_still_sent(table, inline_game) -> None:
    t = table(inline_game({2: SessionEndedError("the table is full")}))
    await t.clock.advance(1.0)
    await t.session.close(t.task.result())
    assert [unit[1] for _, unit in t.socket.pictures] == [0, 1, 1, 1, 1]
    assert t.socket.closed == (1000, "the table is full")


async def test_a_slow_client_is_closed_and_told(table, inline_game) -> None:
    t = table(inline_game(), slow_client_s=4)
    await t.clock.advance(0.5)
    asked = len(t.game.controls)
    t.socket.stuck = True
    await t.clock.advance(3.0)
    assert not t.task.done()
    assert len(t.game.controls) <= asked + 1
    await t.clock.advance(2.0)
    await t.session.close(t.task.result())
    code, reason = t.socket.closed
    assert code == 1008
    assert "4 s" in reason


async def test_stop_tells_the_player(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(0.2)
    t.session.end(over("stopped", "closing down"))
    t.session.end(over("stopped", "again"))
    await t.clock.advance(0)
    await t.session.close(t.task.result())
    assert t.socket.texts("session_over")[0]["message"] == "closing down"
    assert t.socket.closed == (1001, "closing down")
    assert t.encoder.closed


async def test_what_is_measured_has_every_stage(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(0.5)
    assert set(t.counts.stages) == {"generate", "encode", "send"}
    await t.leave()


async def test_after_a_break_every_picture_is_shown_once_and_in_order(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(0.55)
    assert await t.leave(1006) is BROKEN
    before, asked = t.socket.pictures, len(t.game.controls)
    await t.clock.advance(5)
    assert len(t.game.controls) == asked, "nothing is asked for without a socket"
    t.progress.let_go()
    t.connect()
    await t.clock.advance(0.95)
    shown = [unit[1] for _, unit in [*before, *t.socket.pictures]]
    assert shown == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4]
    # A decoder can start at the first picture, and the schedule starts there too.
    assert [unit[:1] for _, unit in t.socket.pictures][:2] == [b"\x01", b"\x00"]
    assert [round(at, 6) for at, _ in t.socket.pictures][:3] == [5.55, 5.65, 5.75]
    await t.leave()


async def test_a_frame_that_was_in_the_making_is_shown_after_the_break(table, inline_game) -> None:
    t = table(inline_game(held=True))
    await t.clock.advance(0)
    t.game.answer()
    await t.clock.advance(0.05)
    await t.leave(1006)
    t.game.answer()
    t.game.held = False
    t.progress.let_go()
    t.connect()
    await t.clock.advance(0.45)
    assert [unit[1] for _, unit in t.socket.pictures] == [1, 1, 1, 1, 2]
    assert t.counts.stages.count("generate") == len(t.game.controls) - 1, "the carried frame is not timed"
    await t.leave()


async def test_a_picture_that_was_not_taken_is_sent_on_the_next_socket(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(0.15)
    t.socket.stuck = True
    await t.clock.advance(0.3)
    before = [unit[1] for _, unit in t.socket.pictures]
    t.session.end(MOVED)
    await t.clock.advance(0)
    assert t.task.result() is MOVED
    t.progress.let_go()
    t.connect()
    await t.clock.advance(0.35)
    assert before == [0, 1]
    assert [unit[1] for _, unit in t.socket.pictures] == [1, 1, 1, 2]
    await t.leave()


async def test_after_a_break_nothing_is_held_and_nothing_acknowledged_but_rates_stay(
    table, inline_game
) -> None:
    t = table(inline_game())
    await t.clock.advance(0.05)
    await t.say(keys("w", seq=5, stream_fps=20, fps_embedding=None))
    await t.clock.advance(0.1)
    await t.leave(1006)
    assert t.game.controls[-1].pressed == {"w"}
    assert t.socket.texts("ack") == [], "its pictures still wait"
    t.progress.let_go()
    t.connect()
    asked = len(t.game.controls)
    await t.clock.advance(1)
    assert {made.pressed for made in t.game.controls[asked:]} == {frozenset()}
    assert {made.fps for made in t.game.controls[asked:]} == {None}
    assert t.socket.texts("ack") == []
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(t.socket.pictures)]
    assert {round(gap, 6) for gap in gaps} == {0.05}
    await t.say(keys("d", seq=1))
    await t.clock.advance(0.5)
    assert t.game.controls[-1].pressed == {"d"}
    assert [ack["seq"] for ack in t.socket.texts("ack")] == [1]
    await t.leave()


async def test_the_limits_clock_stands_still_without_a_socket(table, inline_game) -> None:
    t = table(inline_game(), session_limit_s=3)
    await t.clock.advance(2)
    await t.leave(1006)
    assert round(t.progress.played_s, 6) == 2
    await t.clock.advance(100)
    t.connect()
    await t.clock.advance(0.9)
    assert not t.task.done()
    await t.clock.advance(0.2)
    assert t.task.result().kind == "limit"


@pytest.mark.parametrize(("code", "ending"), [(1000, LEFT), (1001, LEFT), (1005, LEFT), (1006, BROKEN)])
async def test_a_send_that_fails_leaves_it_to_the_close_code_to_say_why(
    table, inline_game, code, ending
) -> None:
    t = table(inline_game())
    await t.clock.advance(0.05)
    t.socket.gone = True
    await t.say("not json")
    await t.clock.advance(5)
    assert not t.task.done()
    assert await t.leave(code) is ending


async def test_greeted_is_told_when_the_hello_was_taken_and_only_then(table, inline_game) -> None:
    t = table(inline_game())
    await t.clock.advance(0.05)
    assert t.greetings == 1
    await t.leave(1006)
    t.connect()
    t.socket.gone = True
    await t.clock.advance(0.05)
    assert t.greetings == 1
    assert await t.leave(1006) is BROKEN


class WayBack:
    """A game's way back: at once, to a frame whose pictures are of value 99."""

    def frames_of(self, seconds: float) -> int:
        return 1

    def rewind(self, frames: int, *, due: float = 0.0) -> Future[Emit]:
        again: Future[Emit] = Future()
        again.set_result(
            Emit(frames=np.full((4, 2, 2, 3), 99, np.uint8), media_time=0.0, input_ids=(), index=1)
        )
        return again


async def test_nothing_of_the_time_that_was_left_is_sent_after_the_way_back_was_told(
    table, inline_game
) -> None:
    t = table(type("Game", (WayBack, inline_game), {})())
    await t.clock.advance(0.55)
    shown = len(t.socket.pictures)
    # The next picture is encoded and waits for its time.
    await t.say({"type": "rewind", "seconds": 1})
    await t.clock.advance(0.35)
    messages = [message for _, message in t.socket.sent]
    (told,) = (k for k, m in enumerate(messages) if isinstance(m, str) and '"rewound"' in m)
    assert sum(isinstance(m, bytes) for m in messages[:told]) == shown
    assert [m[1] for m in messages[told:] if isinstance(m, bytes)][:3] == [99, 99, 99]
    await t.leave()
