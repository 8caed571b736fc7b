"""Ways through a game's time over HTTP: its moment as a file, a game from such a file, forks, going back, the tape.

Owns paths, form fields and file names only; every decision is `session.arena`'s.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Response, UploadFile

from worldloop.core.errors import TooLargeError
from worldloop.core.settings import Settings
from worldloop.session.arena import Arena
from worldloop.wire.world import MomentAnswer, RewindAnswer

Field = Annotated[str, Form()]


def session_router(arena: Arena, settings: Settings) -> APIRouter:
    """Routes of one arena."""
    router = APIRouter(prefix="/sessions", tags=["session"])

    @router.post("/{user_id}/snapshot")
    async def snapshot(user_id: str, ticket: Field = "") -> Response:
        """The present moment of this player's game, as a file."""
        return _file(await arena.snapshot(user_id, ticket=ticket), f"{user_id}.world")

    @router.get("/{user_id}/tape")
    async def tape(user_id: str, ticket: str = "") -> Response:
        """What was played in this player's game, as a file."""
        return _file(await arena.tape(user_id, ticket=ticket), f"{user_id}.tape")

    @router.post("/{user_id}/restore")
    async def restore(user_id: str, world: Annotated[UploadFile, File()], ticket: Field = "") -> MomentAnswer:
        """Begin this player's next game from a snapshot's file."""
        if world.size is not None and world.size > settings.max_upload_bytes:
            raise TooLargeError(f"the upload is over the limit of {settings.max_upload_bytes} bytes")
        return await arena.restore(user_id, ticket=ticket, data=await world.read())

    @router.post("/{user_id}/fork")
    async def fork(user_id: str, to: Field = "", ticket: Field = "") -> MomentAnswer:
        """Begin the next game of `to`, or of this player, where this player's game is now."""
        return await arena.fork(user_id, ticket=ticket, to=to or user_id)

    @router.post("/{user_id}/rewind")
    async def rewind(user_id: str, seconds: Annotated[float, Form()], ticket: Field = "") -> RewindAnswer:
        """Take this player back."""
        return await arena.rewind(user_id, ticket=ticket, seconds=seconds)

    return router


def _file(data: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(data, media_type="application/octet-stream", headers=headers)
