"""OpenAI's videos API: create, retrieve, list, content, remix, delete; and the bytes of a video while it is made.

Owns paths, and whose a job is: one that is posted with `Accept: video/mp4` ends with its
connection, any other only by DELETE. Fields are `wire.videos`', jobs `session.videos`', the
key and the form of errors `server.openai`'s.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from worldloop.codec.fmp4 import MEDIA_TYPE
from worldloop.codec.sandbox import read_stranger
from worldloop.core.errors import TooLargeError, WorldloopError
from worldloop.core.settings import Settings
from worldloop.server.openai import admission, content_type, json_fields, openai_route, while_connected
from worldloop.session.keys import Keys
from worldloop.session.observer import Observer
from worldloop.session.videos import NoSuchVideoError, Video, VideoOrder, Videos
from worldloop.wire.openai import WrongFieldError
from worldloop.wire.videos import (
    DeletedAnswer,
    VideoAnswer,
    VideoErrorAnswer,
    VideoFacts,
    VideoListAnswer,
    parse_page,
    parse_remix,
    parse_variant,
    parse_video,
)

MAX_FIELDS = 32
LAST_BYTES = 256
"""Of a form, in which its closing boundary is looked for."""
ID_HEADER = "X-Video-Id"
READERS = 2
"""First pictures that are read at once: fewer than the threads, which makers of pictures and videos use as well."""


def video_router(videos: Videos | None, settings: Settings, *, keys: Keys, observer: Observer) -> APIRouter:
    """Routes under `/v1/videos`; without a model they say so."""

    def served() -> Videos:
        if videos is None:
            raise NoSuchVideoError("no video model is served: the setting `video` names one")
        return videos

    reading = asyncio.Semaphore(READERS)
    router = APIRouter(
        prefix="/v1/videos",
        tags=["videos"],
        route_class=openai_route(observer),
        dependencies=[Depends(admission(keys))],
    )

    @router.post("", response_model=VideoAnswer)
    async def create(request: Request) -> Response:
        """Queue a video. With `Accept: video/mp4` the answer is the video itself, as it is made."""
        facts = _facts(served(), settings)
        form = parse_video(await _fields(request), facts)
        first = None
        if form.reference is not None:
            if len(form.reference) > settings.max_upload_bytes:
                raise TooLargeError(f"the upload is over the limit of {settings.max_upload_bytes} bytes")
            served().check_room()
            async with reading:
                first = await asyncio.to_thread(
                    read_stranger,
                    form.reference,
                    filename="input_reference",
                    height=facts.height,
                    width=facts.width,
                    max_bytes=settings.max_upload_bytes,
                    max_pixels=settings.max_pixels,
                )
        seed = secrets.randbelow(2**32) if form.seed is None else form.seed
        order = VideoOrder(prompt=form.prompt, seconds=form.seconds, seed=seed, first=first, drawn=form.drawn)
        video = served().submit(order)
        if MEDIA_TYPE in request.headers.get("accept", ""):
            return FragmentsResponse(served(), video, owned=True)
        return _json(served(), video)

    @router.get("")
    async def page(request: Request) -> VideoListAnswer:
        """Jobs, newest first unless `order=asc`; `limit` at once, those after the job `after`."""
        limit, order, after = parse_page(request.query_params)
        found, more = served().page(limit=limit, newest_first=order == "desc", after=after)
        data = [describe(served(), video) for video in found]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return VideoListAnswer(data=data, first_id=first, last_id=last, has_more=more)

    @router.get("/{video_id}", response_model=VideoAnswer)
    async def retrieve(video_id: str) -> Response:
        """One job, and how far it is."""
        return _json(served(), served().get(video_id))

    @router.head("/{video_id}/content", include_in_schema=False)
    @router.get("/{video_id}/content", response_class=Response)
    async def content(video_id: str, request: Request) -> Response:
        """The MP4: a finished one whole or by ranges, another one fragment by fragment as it is made."""
        parse_variant(request.query_params)
        video = served().get(video_id)
        if video.error is not None:
            raise WrongFieldError("video_id", f"the video failed: {video.error[1]}", code=video.error[0])
        if video.status == "completed":
            return FileResponse(video.path, media_type=MEDIA_TYPE, stat_result=video.path.stat())
        return FragmentsResponse(served(), video, owned=False)

    @router.post("/{video_id}/remix", response_model=VideoAnswer)
    async def remix(video_id: str, request: Request) -> Response:
        """Queue the same video with another prompt: same seed, length and given first picture."""
        return _json(served(), served().remix(video_id, parse_remix(await _fields(request))))

    @router.delete("/{video_id}")
    async def delete(video_id: str) -> DeletedAnswer:
        """Stop a job, or forget a finished video."""
        served().delete(video_id)
        return DeletedAnswer(id=video_id)

    return router


class FragmentsResponse(Response):
    """A video's bytes as they are made. When it fails the connection breaks off: what came is not all.

    Args:
        owned: the job is deleted when the client hangs up.
    """

    def __init__(self, videos: Videos, video: Video, *, owned: bool) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers={ID_HEADER: video.id, "Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._videos, self._video, self._owned = videos, video, owned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        try:
            await while_connected(receive, self._send(send))
        finally:
            if self._owned and not self._video.over:
                self._videos.delete(self._video.id)

    async def _send(self, send: Send) -> None:
        pieces: AsyncIterator[bytes] = self._videos.fragments(self._video)
        try:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (WorldloopError, OSError):
            # Without the last message the server closes the connection, which tells the client.
            return
        await send({"type": "http.response.body", "body": b""})


async def _fields(request: Request) -> dict[str, Any]:
    """The body's fields: a JSON object, or a form, whose files become bytes."""
    kind = content_type(request)
    if kind == "application/json":
        return await json_fields(request)
    if kind not in ("multipart/form-data", "application/x-www-form-urlencoded"):
        raise WrongFieldError(
            None, "the body must be JSON or a form, as its Content-Type says", code="invalid_type"
        )
    fields: dict[str, Any] = {}
    end = b""

    async def receive() -> Message:
        nonlocal end
        message = await request.receive()
        end = (end + message.get("body", b""))[-LAST_BYTES:]
        return message

    try:
        async with Request(request.scope, receive).form(max_files=1, max_fields=MAX_FIELDS) as form:
            for name, value in form.multi_items():
                if name in fields:
                    raise WrongFieldError(name[:64], f"field {name[:64]!r} was sent twice")
                fields[name] = await value.read() if isinstance(value, UploadFile) else value
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise WrongFieldError(None, f"the form cannot be read: {error.detail}", code="invalid_form") from None
    # A part that never ends is left out, and its video would begin with another picture than was sent.
    if kind == "multipart/form-data" and not end.rstrip().endswith(b"--"):
        raise WrongFieldError(
            None, "the form is cut off: its closing boundary is missing", code="invalid_form"
        )
    return fields


def describe(videos: Videos, video: Video) -> VideoAnswer:
    """A job as the API shows it."""
    height, width = videos.host.frame_size
    done = video.status == "completed"
    eta = videos.eta_s(video)
    return VideoAnswer(
        id=video.id,
        model=videos.host.model_id,
        status=video.status,
        progress=video.progress,
        created_at=int(video.created_at),
        completed_at=int(video.completed_at) if done and video.completed_at is not None else None,
        expires_at=_whole(videos.expires_at(video)) if done else None,
        error=None if video.error is None else VideoErrorAnswer(code=video.error[0], message=video.error[1]),
        prompt=video.order.prompt,
        seconds=str(video.order.seconds),
        size=f"{width}x{height}",
        remixed_from_video_id=video.remixed_from,
        seed=video.order.seed,
        first_frame=videos.first_frame(video),
        queue_position=videos.position(video),
        eta_seconds=None if eta is None else round(eta, 1),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _json(videos: Videos, video: Video) -> Response:
    answer = describe(videos, video)
    poll = {} if answer.eta_seconds is None else {"openai-poll-after-ms": str(_poll_ms(answer.eta_seconds))}
    return JSONResponse(answer.model_dump(), headers=poll)


def _poll_ms(eta_s: float) -> int:
    """When it is worth while to ask again: at the expected end, within bounds."""
    return int(1000 * min(max(eta_s, 0.2), 5.0))


def _facts(videos: Videos, settings: Settings) -> VideoFacts:
    height, width = videos.host.frame_size
    return VideoFacts(
        model=videos.host.model_id, width=width, height=height, longest_s=settings.video_seconds_max
    )
