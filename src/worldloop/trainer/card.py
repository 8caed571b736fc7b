"""The card of a recording: what was recorded, from where, under which licence, with the hash of every file.

    card.json        the format's root; the other files count only when it names them
    card.md          the same for people
    actions.parquet  a row a step (`table`)
    shard-00000.mkv  a group of episodes, frames one after the other (`shards`); .mp4 when not lossless

Owns the two cards. Called by `recorder` and `recorded`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from worldloop.core.errors import InvalidInputError
from worldloop.core.files import replacing
from worldloop.trainer.table import TABLE

FORMAT = "worldloop-recording-1"
CARD = "card.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One video file of a card: its name, what it was made from, counts, SHA-256."""

    file: str
    key: str
    episodes: int
    steps: int
    frames: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a recording says about itself.

    Attributes:
        source: environment or folder.
        license: of the pictures.
        fps: RGB frames a second.
        picture: (height, width).
        codec: of the shards.
        settings: what the recording was made with; resuming needs the same.
        shards: in order.
        table_sha256: of `actions.parquet`.
        complete: nothing is left to record.
        episodes, steps, frames: counts; steps without the episodes' first pictures.
    """

    source: str
    license: str
    fps: float
    picture: tuple[int, int]
    codec: str
    settings: dict[str, Any]
    shards: tuple[Shard, ...] = ()
    table_sha256: str = ""
    complete: bool = False
    format: str = FORMAT
    episodes: int = field(init=False)
    steps: int = field(init=False)
    frames: int = field(init=False)

    def __post_init__(self) -> None:
        for name in ("episodes", "steps", "frames"):
            object.__setattr__(self, name, sum(getattr(shard, name) for shard in self.shards))

    @classmethod
    def read(cls, folder: Path) -> Card:
        """The card in a folder.

        Raises:
            InvalidInputError: there is none, or it is of another format or damaged.
        """
        try:
            values = json.loads((folder / CARD).read_text())
            if values["format"] != FORMAT:
                raise InvalidInputError(f"{CARD} has format {values['format']!r}; {FORMAT!r} can be read")
            values = {f.name: values[f.name] for f in fields(cls) if f.init}
            values["shards"] = tuple(Shard(**shard) for shard in values["shards"])
            values["picture"] = (int(values["picture"][0]), int(values["picture"][1]))
            return cls(**values)
        except FileNotFoundError:
            raise InvalidInputError(f"folder {folder.name!r} has no {CARD}; it is not a recording") from None
        except (json.JSONDecodeError, KeyError, TypeError, IndexError) as error:
            raise InvalidInputError(
                f"{CARD} of {folder.name!r} is damaged: {error!r}; record again"
            ) from error

    def write(self, folder: Path) -> None:
        """Both forms of the card, the readable one first: `card.json` is what counts."""
        _replace(folder / "card.md", self._markdown().encode())
        _replace(folder / CARD, (json.dumps(asdict(self), indent=1) + "\n").encode())

    def _markdown(self) -> str:
        height, width = self.picture
        facts = {
            "source": self.source, "licence": self.license, "episodes": self.episodes, "steps": self.steps,
            "frames": self.frames, "frames a second": f"{self.fps:g}", "picture": f"{width}x{height}",
            "video": self.codec, "complete": "yes" if self.complete else "no; record again to go on",
            **{name: value for name, value in self.settings.items() if name not in ("source", "fps", "size")},
        }  # fmt: skip
        lines = ["# Recording", "", "| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in facts.items())]
        lines += ["", "| file | SHA-256 |", "| --- | --- |", f"| {TABLE} | `{self.table_sha256}` |"]
        lines += [f"| {shard.file} | `{shard.sha256}` |" for shard in self.shards]
        return "\n".join(lines) + "\n"


def _replace(path: Path, data: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(data)
