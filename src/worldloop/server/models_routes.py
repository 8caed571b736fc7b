"""OpenAI's list of models: every family's, with what each can do."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from worldloop.core.errors import WorldloopError
from worldloop.server.openai import admission, openai_route
from worldloop.session.host import Host
from worldloop.session.keys import Keys
from worldloop.session.observer import Observer
from worldloop.session.picture_host import PictureFacts
from worldloop.session.pictures import Pictures
from worldloop.session.videos import Videos
from worldloop.wire.images import written
from worldloop.wire.openai import Capability, ModelAnswer, ModelListAnswer, PictureFactsAnswer


class NoSuchModelError(WorldloopError):
    """No model of this id is served."""

    http_status = 404


def models_router(
    host: Host,
    videos: Videos | None,
    pictures: Pictures | None,
    *,
    keys: Keys,
    observer: Observer,
    created: int,
) -> APIRouter:
    """Routes under `/v1/models`. `created`: what clients are told of every model, in seconds since the epoch."""

    def models() -> dict[str, ModelAnswer]:
        found: dict[str, ModelAnswer] = {}

        def add(name: str, capability: Capability, facts: PictureFactsAnswer | None = None) -> None:
            known = found.setdefault(name, ModelAnswer(id=name, created=created, capabilities=[]))
            known.capabilities.append(capability)
            known.picture = known.picture or facts

        for name in host.model_ids():
            add(name, "world")
        if videos is not None:
            add(videos.host.model_id, "video")
        if pictures is not None:
            facts = pictures.host.facts
            add(facts.model, "picture", _answer(facts))
        return found

    router = APIRouter(
        prefix="/v1/models",
        tags=["models"],
        route_class=openai_route(observer),
        dependencies=[Depends(admission(keys))],
    )

    @router.get("", response_model_exclude_none=True)
    async def listed() -> ModelListAnswer:
        """Every model."""
        return ModelListAnswer(data=list(models().values()))

    @router.get("/{model_id}", response_model_exclude_none=True)
    async def one(model_id: str) -> ModelAnswer:
        """One model."""
        found = models()
        if model_id not in found:
            raise NoSuchModelError(f"model {model_id[:64]!r} is not served; have {', '.join(found)}")
        return found[model_id]

    return router


def _answer(facts: PictureFacts) -> PictureFactsAnswer:
    return PictureFactsAnswer(
        size=written(facts.size),
        sizes=None if facts.sizes is None else [written(size) for size in facts.sizes],
        multiple=facts.multiple,
        max_pixels=facts.max_pixels,
        num_inference_steps=facts.steps,
        guidance_scale=facts.guidance,
        flow_shift=facts.shift,
        prompt_max=facts.prompt_max,
    )
