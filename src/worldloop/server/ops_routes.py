"""What an operator's machines ask: is it alive, is it ready, how is it doing."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from worldloop.server.metrics import Metrics
from worldloop.session.arena import Arena
from worldloop.session.pictures import Pictures


def ops_router(arena: Arena, pictures: Pictures | None, metrics: Metrics) -> APIRouter:
    """`/healthz`, `/readyz` and `/metrics`."""
    router = APIRouter(tags=["operation"])

    @router.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """The process answers."""
        return {"ok": True}

    @router.get("/readyz")
    async def readyz() -> Response:
        """200 when a model is in service, games may begin and pictures can be made, else 503."""
        reason = arena.unready or (pictures and pictures.host.lost)
        return JSONResponse({"ready": reason is None, "reason": reason}, status_code=503 if reason else 200)

    @router.get("/metrics")
    async def show_metrics() -> Response:
        """Prometheus' text format."""
        return Response(metrics.render(), media_type=metrics.content_type)

    return router
