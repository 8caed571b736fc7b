"""What every request passes before a route sees it: name, origin, body size, security headers.

Owns four small ASGI wrappers. CORS itself is Starlette's. Built by `server.app`.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worldloop.session.observer import Observer
from worldloop.wire.openai import REQUEST_ERROR, error_body

MULTIPART_SLACK_BYTES = 256 * 1024
"""Room in a body for the form fields beside the picture; a painted focus mask has up to 64 KiB."""

DISCARD_LIMITS = 8
"""A body that is refused is read to its end unless it is longer than this many times the limit."""

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self' blob: data:",
        "worker-src 'self' blob:",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Origins:
    """Which pages may use this server: its own, and the configured ones."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed

    def admits(self, headers: Headers) -> bool:
        """No Origin: not a browser's page. Else it is the address that was asked, or a configured one."""
        origin = headers.get("origin")
        if origin is None or origin in self.allowed:
            return True
        try:
            place = urlsplit(origin).netloc
        except ValueError:  # no address at all, such as half an IPv6 one
            return False
        return bool(place) and place == headers.get("host")


class OriginGuard:
    """Refuses (403) sockets, posts and deletions from pages of other origins, which CORS alone would let act unseen."""

    def __init__(self, app: ASGIApp, *, origins: Origins, observer: Observer) -> None:
        self._app, self._origins, self._observer = app, origins, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        acts = scope["type"] == "websocket" or (
            scope["type"] == "http" and scope["method"] in ("POST", "DELETE")
        )
        if not acts or self._origins.admits(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        self._observer.refused("origin")
        await _refuse(scope, receive, send, "origin not allowed")


class HostGuard:
    """Refuses (403) to be addressed by a domain name that anyone may point at this machine.

    For a server that listens on a loopback address only. A browser takes a page of such a name for this server's own
    page, so that any site could use the server ("DNS rebinding"). Addresses, names without a dot and `*.localhost`
    can't be a stranger's.

    Args:
        allowed: further names; `*` is every name.
    """

    def __init__(self, app: ASGIApp, *, allowed: tuple[str, ...], observer: Observer) -> None:
        self._app, self._allowed, self._observer = app, allowed, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._knows(Headers(scope=scope).get("host", "")):
            await self._app(scope, receive, send)
            return
        self._observer.refused("host")
        await _refuse(scope, receive, send, "this name is not known here; the setting allowed_hosts adds it")

    def _knows(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        own = "." not in name or name.endswith(".localhost") or is_address(name)
        return own or name in self._allowed or "*" in self._allowed


def is_address(name: str) -> bool:
    """Whether it is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Whether it means this machine alone."""
    return name == "localhost" or (is_address(name) and ip_address(name).is_loopback)


async def _refuse(scope: Scope, receive: Receive, send: Send, text: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": text})
        return
    await _answer(scope, 403, text)(scope, receive, send)


def _answer(scope: Scope, status: int, text: str) -> JSONResponse:
    """A refusal in the form that the clients of this address read."""
    openai = scope["path"].startswith("/v1/")
    body = error_body(text, kind=REQUEST_ERROR) if openai else {"detail": text}
    return JSONResponse(body, status_code=status)


class BodyLimit:
    """Refuses (413) bodies over the limit: by their stated length at once, else as they grow."""

    def __init__(self, app: ASGIApp, *, max_upload_bytes: int, observer: Observer) -> None:
        self._app, self._observer = app, observer
        self._limit = max_upload_bytes + MULTIPART_SLACK_BYTES
        self._detail = f"the upload is over the limit of {max_upload_bytes} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isdecimal() and int(stated) > self._limit:
            self._observer.refused("toolarge")
            await self._discard(receive)
            await _answer(scope, 413, self._detail)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                self._observer.refused("toolarge")
                # Form parsing passes this one class on unchanged.
                raise HTTPException(413, self._detail)
            return message

        await self._app(scope, counted, send)

    async def _discard(self, receive: Receive) -> None:
        """Read the body away, within reason: a browser shows no answer that comes before it has sent all."""
        seen = 0
        while seen <= DISCARD_LIMITS * self._limit:
            message = await receive()
            seen += len(message.get("body", b""))
            if not message.get("more_body", False):
                return


class SecurityHeaders:
    """Adds the headers that keep a browser to this server's own modules."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
