from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from worldloop.simulators.gallery import INDEX, MEADOW, index, picture, write
from worldloop.simulators.tiles import KINDS

SHIPPED = files("worldloop") / "assets" / "pictures" / "meadow"


def test_shipped_pictures_are_what_the_simulator_draws() -> None:
    names = {entry.name for entry in SHIPPED.iterdir()}
    assert names == {f"{start.name}.png" for start in MEADOW} | {INDEX}
    for start in MEADOW:
        with (SHIPPED / f"{start.name}.png").open("rb") as file:
            np.testing.assert_array_equal(np.asarray(Image.open(file)), picture(start))


def test_shipped_index_is_what_the_simulator_tells() -> None:
    assert json.loads((SHIPPED / INDEX).read_text(encoding="utf-8")) == index()


def test_writes_pictures_and_index(tmp_path: Path) -> None:
    write(tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == len(MEADOW)
    assert json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))[0]["title"] == "Lakeside"


def test_together_they_show_every_kind() -> None:
    seen = {int(kind) for start in MEADOW for kind in np.unique(start.world().window())}
    assert seen == set(range(len(KINDS)))
