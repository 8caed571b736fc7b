"""A client that takes nothing of its answer, seen from its connection. `tests/served/hostile` has what clients see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from worldloop.server.http_transport import HttpTransport

pytestmark = pytest.mark.anyio


class Wire:
    """A transport on which `waiting` bytes lie unread."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.waiting = 0
        self.closing = self.aborted = False

    def get_protocol(self) -> Any:
        return self.protocol

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def connection() -> AsyncIterator[Any]:
    config = Config("unused", interface="asgi3", http=HttpTransport, log_config=None)
    config.loaded, config.loaded_app, config.ws_protocol_class = True, None, None
    made: Any = HttpTransport(config, ServerState(), {})
    made.transport = wire = Wire()
    wire.protocol, made.flow = made, FlowControl(made.transport)
    yield made
    if made._look is not None:
        made._look.cancel()


async def test_who_takes_nothing_is_let_go_at_the_second_look(connection) -> None:
    connection.pause_writing()
    connection.transport.waiting = 70_000
    connection._look_at_client()
    assert not connection.transport.aborted, "it may have begun to wait just now"
    connection._look_at_client()
    assert connection.transport.aborted


async def test_who_takes_little_is_waited_for(connection) -> None:
    connection.pause_writing()
    for waiting in range(70_000, 60_000, -1000):
        connection.transport.waiting = waiting
        connection._look_at_client()
    assert not connection.transport.aborted
    connection._look_at_client()
    assert connection.transport.aborted


async def test_who_is_behind_again_has_taken_something_in_between(connection) -> None:
    connection.pause_writing()
    connection.transport.waiting = 70_000
    connection._look_at_client()
    connection.resume_writing()
    connection.pause_writing()
    connection.transport.waiting = 90_000
    connection._look_at_client()
    assert not connection.transport.aborted


async def test_an_answer_that_is_being_made_is_no_answer_unread(connection) -> None:
    connection.transport.waiting = 30_000
    for _ in range(5):
        connection._look_at_client()
    assert not connection.transport.aborted, "the next event may take hours to come"


async def test_the_end_of_an_answer_is_not_waited_for_for_ever(connection) -> None:
    connection.transport.waiting, connection.transport.closing = 200, True
    connection._look_at_client()
    assert not connection.transport.aborted
    connection._look_at_client()
    assert connection.transport.aborted


async def test_a_game_has_rules_of_its_own(connection) -> None:
    connection.pause_writing()
    connection.transport.waiting = 70_000
    connection.transport.protocol = object()
    for _ in range(3):
        connection._look_at_client()
    assert not connection.transport.aborted
