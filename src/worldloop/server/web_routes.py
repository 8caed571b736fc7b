"""The page and its start pictures: files that ship with the package.

Owns where they are and under which paths they are served. Their content is in `server/web` and
`assets/pictures`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from worldloop.session.picture_host import PictureFacts
from worldloop.wire.images import written
from worldloop.wire.world import PageAnswer, PictureAnswer, PromptAnswer

WEB_DIR = Path(__file__).parent / "web"
PICTURES_DIR = Path(__file__).parent.parent / "assets" / "pictures"

REVALIDATE = {"Cache-Control": "no-cache"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gallery:
    """Start pictures of one world: what the list says, and the file of each name."""

    entries: tuple[PictureAnswer, ...] = ()
    files: Mapping[str, Path]

    @classmethod
    def of_world(cls, world: str, *, root: Path = PICTURES_DIR) -> Gallery:
        """Pictures in `root/<world>`, in the order of its `pictures.json`; empty for a world without any."""
        folder = root / Path(world).name
        files = {path.stem: path for path in sorted(folder.glob("*.png"))} if folder.is_dir() else {}
        notes: list[dict[str, Any]] = []
        if (folder / "pictures.json").is_file():
            notes = json.loads((folder / "pictures.json").read_text(encoding="utf-8"))
        told = {str(note["name"]): note for note in notes if note["name"] in files}
        names = [*told, *(name for name in files if name not in told)]
        entries = tuple(
            PictureAnswer(
                name=name,
                title=str(told.get(name, {}).get("title", name)),
                caption=str(told.get(name, {}).get("caption", "")),
                url=f"pictures/{name}.png",
            )
            for name in names
        )
        return cls(entries=entries, files=files)


def offers(facts: PictureFacts | None) -> PageAnswer:
    """What the page offers where these pictures can be ordered without a key; None: no pictures can."""
    if facts is None:
        return PageAnswer()
    prompt = PromptAnswer(
        model=facts.model,
        size=written(facts.size),
        sizes=[written(size) for size in facts.sizes or ()],
        prompt_max=facts.prompt_max,
    )
    return PageAnswer(prompt=prompt)


class _Modules(StaticFiles):
    """Static files that a browser asks about again, so that an upgrade is seen at once."""

    def file_response(
        self, full_path: Any, stat_result: Any, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(REVALIDATE)
        return response


def add_web_routes(app: FastAPI, gallery: Gallery, page: PageAnswer) -> None:
    """`/`, `/web/...`, `/page`, `/pictures` and `/pictures/{name}.png`."""
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(WEB_DIR / "index.html", headers=REVALIDATE)

    @router.get("/page")
    async def offered() -> PageAnswer:
        """What the page offers beside start pictures."""
        return page

    @router.get("/pictures")
    async def pictures() -> list[PictureAnswer]:
        """Start pictures of this world."""
        return list(gallery.entries)

    @router.get("/pictures/{name}.png", response_class=FileResponse)
    async def picture(name: str) -> Response:
        """One start picture."""
        path = gallery.files.get(name)
        if path is None:
            raise HTTPException(404, "no such picture; GET /pictures lists them")
        return FileResponse(path, media_type="image/png", headers=REVALIDATE)

    app.include_router(router)
    app.mount("/web", _Modules(directory=WEB_DIR), name="web")
