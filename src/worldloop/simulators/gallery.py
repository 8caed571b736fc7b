"""The start pictures of the meadow that ship with the package.

Owns which worlds were picked and how their files are made. Does not own how they are offered. Called to write
`assets/pictures/meadow`, and by the test that proves that the shipped files are what it writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from worldloop.simulators.meadow import Meadow

INDEX: Final = "pictures.json"


@dataclass(frozen=True, kw_only=True)
class StartPicture:
    """One start: file name without ending, title, and the seed of the world whose start it shows."""

    name: str
    title: str
    seed: int

    def world(self) -> Meadow:
        """The simulator at this start."""
        return Meadow(self.seed)


MEADOW: Final = (
    StartPicture(name="lakeside", title="Lakeside", seed=133),
    StartPicture(name="boardwalk", title="Boardwalk", seed=38),
    StartPicture(name="greenwood", title="Greenwood", seed=404),
    StartPicture(name="pine-road", title="Pine road", seed=192),
    StartPicture(name="flower-coast", title="Flower coast", seed=299),
    StartPicture(name="boulder-field", title="Boulder field", seed=338),
    StartPicture(name="tall-grass", title="Tall grass", seed=537),
    StartPicture(name="crossroads", title="Crossroads", seed=467),
)
"""The start pictures in the order they are shown."""


def picture(start: StartPicture) -> NDArray[np.uint8]:
    """The picture of a start, uint8 [96, 160, 3]."""
    return start.world().reset()


def index() -> list[dict[str, str | int]]:
    """The entries of `pictures.json`: name, title, seed and caption of each start picture."""
    return [
        {"name": start.name, "title": start.title, "seed": start.seed, "caption": start.world().caption()}
        for start in MEADOW
    ]


def write(folder: Path) -> None:
    """Write every start picture as `<name>.png`, and `pictures.json`, into an existing folder.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    for start in MEADOW:
        Image.fromarray(picture(start)).save(folder / f"{start.name}.png", optimize=True)
    (folder / INDEX).write_text(json.dumps(index(), indent=2) + "\n", encoding="utf-8")
