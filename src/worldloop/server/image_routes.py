"""OpenAI's images API: generate, as one answer or as events, and the pictures by their address.

Owns paths, and whose a request is: hanging up ends it. Fields are `wire.images`', requests `session.pictures`', the key
and the form of errors `server.openai`'s.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from worldloop.codec.still import encode_picture
from worldloop.core.errors import WorldloopError
from worldloop.server.openai import (
    CLOSED_REQUEST,
    EventsResponse,
    admission,
    error_of,
    json_fields,
    openai_route,
    while_connected,
)
from worldloop.session.keys import Keys
from worldloop.session.observer import Observer
from worldloop.session.picture_host import PictureOrder
from worldloop.session.pictures import (
    Finished,
    Making,
    NoSuchPictureError,
    PictureRequest,
    Pictures,
    Queued,
)
from worldloop.wire.images import (
    CompletedEvent,
    ErrorAnswer,
    FailedEvent,
    ImageAnswer,
    ImageForm,
    ImagesAnswer,
    ImageTimings,
    PartialImageEvent,
    QueuedEvent,
    StepEvent,
    parse_image,
    written,
)
from worldloop.wire.openai import MAX_SEED

PREFIX = "/v1/images"


def image_router(pictures: Pictures | None, *, keys: Keys, observer: Observer) -> APIRouter:
    """Routes under `/v1/images`; without a model they say so."""

    def served() -> Pictures:
        if pictures is None:
            raise NoSuchPictureError("no picture model is served: the setting `picture` names one")
        return pictures

    router = APIRouter(
        prefix=PREFIX,
        tags=["images"],
        route_class=openai_route(observer),
        dependencies=[Depends(admission(keys))],
    )

    @router.post("/generations", response_model=ImagesAnswer)
    async def generate(request: Request) -> Response:
        """Make pictures. With `stream` the answer is their course, as events."""
        form = parse_image(await json_fields(request), served().host.facts)
        asked = served().submit(_orders(form), file_format=form.file_format)
        answers = Answers(served(), form, base_url=str(request.base_url))
        if form.stream:
            return EventsResponse(answers.events(asked), on_end=lambda: served().cancel(asked))
        try:
            made = await while_connected(request.receive, served().result(asked))
        finally:
            served().cancel(asked)
        if made is None:
            return Response(status_code=CLOSED_REQUEST)
        # Megabytes of text take a while.
        return await asyncio.to_thread(lambda: JSONResponse(answers.whole(made)))

    @router.head("/{image_id}", include_in_schema=False)
    @router.get("/{image_id}", response_class=Response)
    async def file(image_id: str) -> Response:
        """A picture's file, while it is kept."""
        kept = served().kept(image_id)
        return Response(kept.file, media_type=f"image/{kept.file_format}")

    @router.get("/{image_id}/receipt")
    async def receipt(image_id: str) -> dict[str, Any]:
        """What `worldloop verify` reads."""
        return served().kept(image_id).receipt.to_dict()

    return router


class Answers:
    """Answers to one request.

    Args:
        base_url: of this server as the client knows it, with a slash at its end.
    """

    def __init__(self, pictures: Pictures, form: ImageForm, *, base_url: str) -> None:
        self._pictures, self._form, self._base_url = pictures, form, base_url

    def whole(self, made: Sequence[Finished]) -> dict[str, Any]:
        """All pictures at once."""
        answer = ImagesAnswer(
            created=int(made[-1].created_at),
            output_format=self._form.file_format,
            size=written(self._form.size),
            data=[ImageAnswer(**self._image(each)) for each in made],
        )
        return answer.model_dump(exclude_none=True)

    async def events(self, asked: PictureRequest) -> AsyncGenerator[dict[str, Any], None]:
        """The course of the request; ends with its last picture, or with why there is none."""
        try:
            async for news in self._pictures.watch(asked):
                if isinstance(news, Queued):
                    yield QueuedEvent(position=news.position, eta_seconds=_rounded(news.eta_s)).model_dump()
                elif isinstance(news, Finished):
                    yield await asyncio.to_thread(self._completed, news)
                else:
                    yield StepEvent(
                        index=news.index, done=news.done, of=news.steps, eta_seconds=_rounded(news.eta_s)
                    ).model_dump()
                    if news.preview is not None:
                        yield await asyncio.to_thread(self._partial, news)
        except WorldloopError as error:
            _, body, _ = error_of(error)
            yield FailedEvent(error=ErrorAnswer(**body["error"])).model_dump()

    def _completed(self, made: Finished) -> dict[str, Any]:
        return CompletedEvent(
            index=made.index,
            created_at=int(made.created_at),
            output_format=self._form.file_format,
            **self._image(made),
        ).model_dump(exclude_none=True)

    def _partial(self, news: Making) -> dict[str, Any]:
        assert news.preview is not None
        return PartialImageEvent(
            index=news.index,
            partial_image_index=news.nth,
            b64_json=_base64(encode_picture(news.preview, self._form.file_format)),
            created_at=int(news.at),
            output_format=self._form.file_format,
            size=written(self._form.size),
        ).model_dump()

    def _image(self, made: Finished) -> dict[str, Any]:
        """The fields of one picture: what it was really made with."""
        picture, order = made.picture, made.picture.order
        where = f"{self._base_url}{PREFIX.removeprefix('/')}/{made.id}"
        device = {phase: round(seconds, 4) for phase, seconds in picture.device_s.items()}
        return {
            **({"url": where} if self._form.as_url else {"b64_json": _base64(made.file)}),
            "id": made.id,
            "model": made.receipt.model,
            "size": written(order.size),
            "seed": order.seed,
            "num_inference_steps": picture.steps,
            "guidance_scale": order.guidance,
            "flow_shift": order.shift,
            "negative_prompt": order.negative,
            "pixel_hash": made.receipt.pixel_hash,
            "file_hash": made.receipt.file_hash,
            "noise_hash": made.receipt.noise_hash,
            "model_hash": made.receipt.model_hash,
            "timings": ImageTimings(
                queued=round(made.queued_s, 4),
                device=device,
                file=round(made.file_s, 4),
                total=round(made.total_s, 4),
            ),
            "receipt": made.receipt.to_dict(),
        }


def _orders(form: ImageForm) -> list[PictureOrder]:
    first = secrets.randbelow(MAX_SEED + 2 - form.count) if form.seed is None else form.seed
    return [
        PictureOrder(
            prompt=form.prompt,
            negative=form.negative,
            size=form.size,
            seed=first + index,
            steps=form.steps,
            guidance=form.guidance,
            shift=form.shift,
            previews=form.previews,
        )
        for index in range(form.count)
    ]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
