"""What a connection does when a sign of life is overdue. What clients see of it is in `tests/served`."""

from __future__ import annotations

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from worldloop.server.transport import PlayTransport

pytestmark = pytest.mark.anyio


class Wire:
    """A transport whose writes never leave: a close that waits for them would wait for ever."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")


@pytest.fixture
async def connection() -> PlayTransport:
    config = Config("unused", interface="asgi3", ws=PlayTransport, ws_ping_interval=10, log_config=None)
    config.loaded, config.loaded_app = True, None
    made = PlayTransport(config, ServerState(), {})
    made.transport = Wire()
    return made


async def test_a_dead_connection_is_cut_off_though_it_has_bytes_to_send(connection) -> None:
    connection.keepalive_timeout()
    assert connection.transport.done[-1] == "abort"


async def test_a_client_that_takes_nothing_is_left_to_the_rule_for_slow_clients(connection) -> None:
    connection.pause_writing()
    connection.keepalive_timeout()
    assert connection.transport.done == []
    assert not connection.close_sent, "that rule has a reason of its own to send"
    assert connection.ping_timer is not None, "it is asked again"
    connection.stop_keepalive()
    connection.resume_writing()
    connection.keepalive_timeout()
    assert connection.transport.done[-1] == "abort"
