"""The published routes of a game: models, status, start picture, switch, reserve, play.

Owns paths and form fields only; every decision is `session.arena`'s.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, UploadFile, WebSocket
from fastapi.exceptions import RequestValidationError

from worldloop.core.errors import TooLargeError
from worldloop.core.settings import Settings
from worldloop.server.socket import WebSocketPlayer
from worldloop.session.arena import Arena, Upload
from worldloop.wire.forms import parse_start_form
from worldloop.wire.world import ModelsAnswer, ReserveAnswer, StartAnswer, StatusAnswer, SwitchAnswer

Field = Annotated[str, Form()]


def world_router(arena: Arena, settings: Settings) -> APIRouter:
    """Routes of one arena."""
    router = APIRouter(tags=["world"])

    @router.get("/models")
    async def models() -> ModelsAnswer:
        """Models that can be served, and the choices of the active one."""
        return arena.models()

    @router.get("/status")
    async def status() -> StatusAnswer:
        """Health and occupancy."""
        return arena.status()

    @router.post("/z0/{user_id}")
    async def start_picture(
        user_id: str,
        z0_image: Annotated[UploadFile | None, File()] = None,
        picture_id: Field = "",
        model_id: Field = "",
        nfe: Field = "",
        nfe_mode: Field = "",
        sphere: Field = "",
        reprefill_every: Field = "",
        focus_mask: Field = "",
        ticket: Field = "",
    ) -> StartAnswer:
        """Keep a start picture for this player's next game: a file, or one that was made here."""
        upload = None
        if z0_image is not None:
            if z0_image.size is not None and z0_image.size > settings.max_upload_bytes:
                raise TooLargeError(f"the upload is over the limit of {settings.max_upload_bytes} bytes")
            upload = Upload(data=await z0_image.read(), filename=z0_image.filename or "")
        elif not picture_id.strip():
            missing = "a picture is needed, as this file or as picture_id of one that was made here"
            raise RequestValidationError([{"loc": ("body", "z0_image"), "msg": missing}])
        return await arena.prepare(
            user_id,
            ticket=ticket,
            upload=upload,
            model_id=model_id,
            form=lambda: parse_start_form(
                picture_id=picture_id,
                file=upload is not None,
                nfe=nfe,
                nfe_mode=nfe_mode,
                sphere=sphere,
                reprefill_every=reprefill_every,
                focus_mask=focus_mask,
                nfe_max=settings.nfe_max,
            ),
        )

    @router.post("/switch")
    async def switch(model_id: Field, user_id: Field = "", ticket: Field = "") -> SwitchAnswer:
        """Serve another model."""
        return await arena.switch(user_id, ticket=ticket, model_id=model_id)

    @router.get("/create-game/{user_id}")
    async def create_game(user_id: str, ticket: str = "") -> ReserveAnswer:
        """Hold a slot until this player's socket opens."""
        return arena.reserve(user_id, ticket=ticket)

    @router.websocket("/ws/{user_id}")
    async def play(websocket: WebSocket, user_id: str, ticket: str = "", resume: str = "") -> None:
        await websocket.accept()
        await arena.play(user_id, ticket=ticket, socket=WebSocketPlayer(websocket), resume=resume)

    return router
