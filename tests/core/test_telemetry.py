"""Log lines: their form, and whose they are."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from worldloop.core.telemetry import LOGGER, LogLine, SessionLog, log_event, session_log, setup_logging

log = logging.getLogger(f"{LOGGER}.test")


@pytest.fixture(autouse=True)
def restore_logger() -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    kept = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = kept


def test_text_is_one_line_an_event() -> None:
    out = io.StringIO()
    setup_logging(form="text", stream=out)
    log_event(log, "game.open", user="ann", fps=35.0, why="a\nb")
    (line,) = out.getvalue().splitlines()
    assert line.endswith('INFO game.open user=ann fps=35 why="a\\nb"')


def test_json_is_one_object_an_event() -> None:
    out = io.StringIO()
    setup_logging(form="json", stream=out)
    log_event(log, "game.open", user="ann", level=logging.WARNING)
    entry = json.loads(out.getvalue())
    assert (entry["event"], entry["user"], entry["level"]) == ("game.open", "ann", "warning")
    assert "ts" in entry


def test_the_level_is_kept_and_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(stream=first)
    setup_logging(level="error", stream=second)
    log_event(log, "a.b")
    log_event(log, "c.d", level=logging.ERROR)
    assert first.getvalue() == ""
    assert "c.d" in second.getvalue()
    assert "a.b" not in second.getvalue()


def test_an_event_goes_to_the_session_it_happens_in() -> None:
    async def play(name: str, sink: SessionLog) -> None:
        with session_log(sink):
            await asyncio.sleep(0)
            await asyncio.ensure_future(asyncio.sleep(0))
            log_event(log, "game.open", user=name)

    async def both() -> None:
        await asyncio.gather(play("ann", ann), play("bob", bob))
        log_event(log, "server.stop")

    ann, bob = SessionLog(), SessionLog()
    asyncio.run(both())
    assert ann.take() == LogLine(tag="game", msg="game.open user=ann")
    assert bob.take() == LogLine(tag="game", msg="game.open user=bob")
    assert ann.take() is None


def test_a_session_log_is_bounded_and_keeps_the_newest() -> None:
    sink = SessionLog(limit=2)
    with session_log(sink):
        for number in range(5):
            log_event(log, f"e.{number}")
    assert [sink.take(), sink.take(), sink.take()] == [
        LogLine(tag="e", msg="e.3"),
        LogLine(tag="e", msg="e.4"),
        None,
    ]
