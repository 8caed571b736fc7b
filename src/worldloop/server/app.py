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
from worldloop.server.guards import BodyLimit, HostGuard, OriginGuard, Origins, SecurityHeaders, is_loopback
from worldloop.server.image_routes import image_router
from worldloop.server.metrics import Metrics
from worldloop.server.models_routes import models_router
from worldloop.server.ops_routes import ops_router
from worldloop.server.session_routes import session_router
from worldloop.server.video_routes import video_router
from worldloop.server.web_routes import Gallery, add_web_routes, offers
from worldloop.server.world_routes import world_router
from worldloop.session.arena import Arena
from worldloop.session.game import Encoder
from worldloop.session.host import Host
from worldloop.session.keys import Keys
from worldloop.session.line import QueueLimits
from worldloop.session.picture_host import PictureHost
from worldloop.session.pictures import Pictures
from worldloop.session.videos import VideoHost, Videos

STOPPING = "The server is stopping. Come back in a moment."


def create_app(
    host: Host,
    settings: Settings,
    *,
    clock: Clock | None = None,
    make_encoder: Callable[[], Encoder] | None = None,
    gallery: Gallery | None = None,
    video_host: VideoHost | None = None,
    picture_host: PictureHost | None = None,
) -> FastAPI:
    """The application. `app.state.arena` is its `Arena`; the hosts stay the caller's to close.

    Args:
        clock: the system's when None.
        make_encoder: H.264 by the settings when None.
        gallery: the start pictures that ship for `settings.world`, else for the default model, when None.
        video_host: makes videos on order; None serves none.
        picture_host: makes pictures on order; None serves none.
    """
    metrics, clock, keys = Metrics(), clock or SystemClock(), Keys(settings)
    videos = None if video_host is None else Videos(video_host, _video_limits(settings), clock=clock)
    pictures = None
    if picture_host is not None:
        pictures = Pictures(picture_host, _picture_limits(settings), clock=clock, observer=metrics)
        metrics.watch_images(lambda: pictures.waiting, lambda: pictures.kept_bytes)
    arena = Arena(
        host,
        settings,
        clock=clock,
        observer=metrics,
        make_encoder=make_encoder,
        find_picture=None if pictures is None else pictures.get,
    )
    metrics.watch(arena.levels)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if videos is not None:
            await videos.close()
        if pictures is not None:
            await pictures.close()
        await arena.stop(STOPPING)
        arena.close()

    app = FastAPI(title="worldloop", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.arena, app.state.metrics = arena, metrics
    app.state.videos, app.state.pictures = videos, pictures
    install_error_map(app, metrics)
    app.include_router(world_router(arena, settings))
    app.include_router(session_router(arena, settings))
    app.include_router(ops_router(arena, pictures, metrics))
    app.include_router(video_router(videos, settings, keys=keys, observer=metrics))
    app.include_router(image_router(pictures, keys=keys, observer=metrics))
    app.include_router(
        models_router(host, videos, pictures, keys=keys, observer=metrics, created=int(clock.time()))
    )
    # The page has no key, so it offers nothing that needs one.
    drawn = None if pictures is None or keys.needed else pictures.host.facts
    add_web_routes(app, gallery or _shipped(host, settings), offers(drawn))
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
    if is_loopback(settings.host):
        app.add_middleware(HostGuard, allowed=settings.allowed_hosts, observer=metrics)
    app.add_middleware(SecurityHeaders)
    return app


def _video_limits(settings: Settings) -> QueueLimits:
    return QueueLimits(
        waiting=settings.video_queue,
        keep_s=settings.video_keep_s,
        keep_bytes=settings.video_keep_mib * 2**20,
    )


def _picture_limits(settings: Settings) -> QueueLimits:
    return QueueLimits(
        waiting=settings.picture_queue,
        keep_s=settings.picture_keep_s,
        keep_bytes=settings.picture_keep_mib * 2**20,
    )


def _shipped(host: Host, settings: Settings) -> Gallery:
    named = Gallery.of_world(settings.world)
    return named if named.files else Gallery.of_world(host.default_model_id)
