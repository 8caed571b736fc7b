"""Structured logging: one event a line, as text or JSON.

Owns the format of log lines and the route from an event to the session it belongs to. Does not own metrics
(`server.metrics`) or how a session sends its lines (`session.game`). Called by everything that logs.
"""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, Literal

LOGGER = "worldloop"

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One event of one session: `tag` is the event's first word, `msg` the whole line."""

    tag: str
    msg: str


class SessionLog:
    """Lines of one session that wait to go to its own player. Beyond `limit` the oldest fall out."""

    def __init__(self, *, limit: int = 64) -> None:
        self._lines: deque[LogLine] = deque(maxlen=limit)

    def put(self, line: LogLine) -> None:
        self._lines.append(line)

    def take(self) -> LogLine | None:
        """The oldest line, or None."""
        return self._lines.popleft() if self._lines else None


_current: contextvars.ContextVar[SessionLog | None] = contextvars.ContextVar("session_log", default=None)


@contextmanager
def session_log(sink: SessionLog) -> Iterator[SessionLog]:
    """Inside, and in tasks started inside, `log_event` also puts its lines into `sink`."""
    token = _current.set(sink)
    try:
        yield sink
    finally:
        _current.reset(token)


def log_event(logger: logging.Logger, event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log one event, such as `game.open`, with its fields. Fields never hold secrets or paths."""
    logger.log(level, event, extra={"fields": fields})
    sink = _current.get()
    if sink is not None and level >= logging.INFO:
        sink.put(LogLine(tag=event.partition(".")[0], msg=_as_text(event, fields)))


def setup_logging(
    *,
    form: Literal["text", "json"] = "text",
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: IO[str] | None = None,
) -> logging.Logger:
    """Send this package's log to `stream` (standard error when None), one line an event. Repeatable."""
    logger = logging.getLogger(LOGGER)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel(_LEVELS[level])
    logger.propagate = False
    return logger


def _as_text(event: str, fields: dict[str, object]) -> str:
    return " ".join([event, *(f"{key}={_one_line(value)}" for key, value in fields.items())])


def _one_line(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    quote = not text or any(c.isspace() or not c.isprintable() or c in '="' for c in text)
    return json.dumps(text) if quote else text


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        line = f"{_stamp(record)} {record.levelname} {_as_text(record.getMessage(), fields)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        entry: dict[str, Any] = {
            **fields,
            "ts": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
