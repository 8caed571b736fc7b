"""The HTTP and WebSocket application of one host.

Owns the assembly: arena, routes, guards, error map. Called by `server.run`, by the command line and by tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from worldloop.core.clock import Clock, SystemClock
from worldloop.core.settings import Settings
from worldloop.server.errors import install_error_map
from worldloop.server.guards import BodyLimit, OriginGuard, Origins, SecurityHeaders
from worldloop.server.metrics import Metrics
from worldloop.server.ops_routes import ops_router
from worldloop.server.session_routes import session_router
from worldloop.server.video_routes import video_router
from worldloop.server.web_routes import Gallery, add_web_routes
from worldloop.server.world_routes import world_router
from worldloop.session.arena import Arena
from worldloop.session.game import Encoder
from worldloop.session.host import Host
from worldloop.session.videos import VideoHost, VideoLimits, Videos

STOPPING = "The server is stopping. Come back in a moment."


def create_app(
    host: Host,
    settings: Settings,
    *,
    clock: Clock | None = None,
    make_encoder: Callable[[], Encoder] | None = None,
    gallery: Gallery | None = None,
    video_host: VideoHost | None = None,
) -> FastAPI:
    """The application. `app.state.arena` is its `Arena`; the hosts stay the caller's to close.

    Args:
        clock: the system's when None.
        make_encoder: H.264 by the settings when None.
        gallery: the start pictures that ship for `settings.world`, else for the default model, when None.
        video_host: makes videos on order; None serves none.
    """
    metrics, clock = Metrics(), clock or SystemClock()
    arena = Arena(host, settings, clock=clock, observer=metrics, make_encoder=make_encoder)
    metrics.watch(arena.levels)
    videos = None if video_host is None else Videos(video_host, _limits(settings), clock=clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if videos is not None:
            await videos.close()
        await arena.stop(STOPPING)
        arena.close()

    app = FastAPI(title="worldloop", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.arena, app.state.metrics, app.state.videos = arena, metrics, videos
    install_error_map(app, metrics)
    app.include_router(world_router(arena, settings))
    app.include_router(session_router(arena, settings))
    app.include_router(ops_router(arena, metrics))
    app.include_router(video_router(videos, settings, metrics))
    add_web_routes(app, gallery or _shipped(host, settings))
    # The last one added is the first that a request meets.
    app.add_middleware(BodyLimit, max_upload_bytes=settings.max_upload_bytes, observer=metrics)
    app.add_middleware(OriginGuard, origins=Origins(settings.cors_allow_origins), observer=metrics)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_allow_origins),
        allow_credentials=True,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
    )
    app.add_middleware(SecurityHeaders)
    return app


def _limits(settings: Settings) -> VideoLimits:
    return VideoLimits(
        waiting=settings.video_queue,
        keep_s=settings.video_keep_s,
        keep_bytes=settings.video_keep_mib * 2**20,
    )


def _shipped(host: Host, settings: Settings) -> Gallery:
    named = Gallery.of_world(settings.world)
    return named if named.files else Gallery.of_world(host.default_model_id)
