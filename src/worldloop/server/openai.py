"""What all of OpenAI's routes have in common: the key, bodies, the form of errors, events, and clients that hang up.

Owns no route. Called by `server.video_routes`, `server.image_routes` and `server.models_routes`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from worldloop.core.errors import CapacityError, PictureError, TicketError, WorldloopError
from worldloop.server.errors import RETRY_AFTER_S
from worldloop.session.arena import reason_of
from worldloop.session.keys import Keys
from worldloop.session.line import QueueFullError, StoppingError
from worldloop.session.observer import Observer
from worldloop.session.picture_host import PictureTooLargeError
from worldloop.wire.openai import REQUEST_ERROR, WrongFieldError, error_body, printable

CLOSED_REQUEST = 499
"""Status of an answer that nobody reads: the client has hung up."""

MAX_MARKS = 10_000
"""Commas and opening brackets of a JSON body. A picture is one long text; millions of values would hold up the games
while they are parsed."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
T = TypeVar("T")


def admission(keys: Keys) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """A dependency that lets only those with a key pass."""

    async def admit(request: Request) -> None:
        keys.check(request.headers.get("authorization", ""))

    return admit


def openai_route(observer: Observer) -> type[APIRoute]:
    """A class of routes that answer errors in OpenAI's form."""

    class Route(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def answer(request: Request) -> Response:
                try:
                    return await handle(request)
                except ClientDisconnect:  # before its body was complete
                    return Response(status_code=CLOSED_REQUEST)
                except HTTPException as error:  # a body over the limit, see `guards`
                    body = error_body(error.detail, kind=REQUEST_ERROR)
                    return JSONResponse(body, status_code=error.status_code)
                except WorldloopError as error:
                    observer.refused(reason_of(error))
                    status, body, headers = error_of(error)
                    return JSONResponse(body, status_code=status, headers=headers)

            return answer

    return Route


def error_of(error: WorldloopError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers that tell an error in OpenAI's form."""
    status = error.http_status
    param = code = None
    headers: dict[str, str] = {}
    if isinstance(error, WrongFieldError):
        param, code = error.param, error.code
    elif isinstance(error, TicketError):
        code, headers = "invalid_api_key", {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, PictureTooLargeError):
        param, code = "size", "size_too_large"
    elif isinstance(error, PictureError):
        param, code = "input_reference", "invalid_image"
    elif isinstance(error, QueueFullError):
        code, headers = "queue_full", _retry(error.retry_s)
    elif isinstance(error, CapacityError | StoppingError):
        # Of all clients only players read 423.
        status, headers = 503, _retry(None)
        code = "capacity" if isinstance(error, CapacityError) else "stopping"
    elif status == 404:
        code = "not_found"
    kind = REQUEST_ERROR if status < 500 and status != 429 else "server_error"
    return status, error_body(str(error), kind=kind, param=param, code=code), headers


def _retry(seconds: float | None) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds or RETRY_AFTER_S)))}


async def json_fields(request: Request) -> dict[str, Any]:
    """The fields of a JSON body. Raises `WrongFieldError`."""
    if content_type(request) != "application/json":
        raise WrongFieldError(None, "the body must be JSON, as its Content-Type says", code="invalid_type")
    body = await request.body()
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_MARKS:
        raise WrongFieldError(None, "the body holds too many values", code="invalid_json")
    try:
        values = json.loads(body, object_pairs_hook=_once)
    except WrongFieldError:
        raise
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise WrongFieldError(None, "the body must be a JSON object", code="invalid_json")
    return values


def content_type(request: Request) -> str:
    """What the body is said to be, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            short = printable(name[:64])
            raise WrongFieldError(short, f"field {short!r} was sent twice")
        fields[name] = value
    return fields


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None when the client hangs up first, which cancels it. The body has been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventsResponse(Response):
    """Server-sent events, each named by its field `type`.

    Args:
        events: what is sent; ends the answer with its own end.
        on_end: called once, however it ends: the last event is sent, or the client hung up.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[Mapping[str, Any], None], *, on_end: Callable[[], None]
    ) -> None:
        # Proxies that collect an answer before they pass it on would hold every event back.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._on_end = events, on_end

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await while_connected(receive, self._send(send))
        finally:
            self._on_end()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
