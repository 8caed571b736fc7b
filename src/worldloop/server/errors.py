"""The one place where errors become HTTP answers.

Every answer is `{"detail": message}`, except 423, which is plain text as on the published server. Status
codes come from the exception tree. Called by `server.app`.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from worldloop.core.errors import BusyError, WorldloopError
from worldloop.core.telemetry import log_event
from worldloop.session.arena import reason_of
from worldloop.session.observer import Observer

RETRY_AFTER_S = 5

_log = logging.getLogger(__name__)


def install_error_map(app: FastAPI, observer: Observer) -> None:
    """Answer every error of this package, of validation, and every other one, from here."""

    async def on_worldloop(request: Request, error: Exception) -> Response:
        if not isinstance(error, WorldloopError):
            raise error
        observer.refused(reason_of(error))
        level = logging.ERROR if error.http_status >= 500 else logging.INFO
        log_event(_log, "http.refused", level=level, route=_route(request), status=error.http_status)
        if isinstance(error, BusyError):
            return PlainTextResponse(
                str(error), status_code=error.http_status, headers={"Retry-After": str(RETRY_AFTER_S)}
            )
        return JSONResponse({"detail": str(error)}, status_code=error.http_status)

    async def on_validation(_: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        observer.refused("form")
        problems = [f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors()]
        return JSONResponse({"detail": "; ".join(problems)}, status_code=422)

    async def on_other(request: Request, error: Exception) -> Response:
        log_event(_log, "http.failed", level=logging.ERROR, route=_route(request), error=type(error).__name__)
        return JSONResponse({"detail": "the server failed to answer"}, status_code=500)

    app.add_exception_handler(WorldloopError, on_worldloop)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(Exception, on_other)


def _route(request: Request) -> str:
    """The route's pattern: the path itself may hold anything, the query a ticket."""
    return str(getattr(request.scope.get("route"), "path", "-"))
