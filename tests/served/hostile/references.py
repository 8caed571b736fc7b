"""First pictures of videos: bombs, broken ones, and odd ones that are right."""

from __future__ import annotations

import numpy as np

from . import files
from .case import Case
from .files import image, quarters, saved
from .orders import data_url, ordering
from .pictures import bombs, broken, not_pictures
from .studio import VIDEO, VIDEOS, form, post

BOMBS = [
    "png of 60000 x 60000", "png of 4 billion x 1", "png that unfolds", "16-bit png that unfolds",
    "png with a text that unfolds", "jpeg of 65535 x 65535", "gif picture over its canvas", "webp canvas of 16 million",
    "tiff of 4 billion rows", "tiff of overlapping tags", "vp8 picture of 16383 x 16383", "mp4 of 4294967295 samples",
]  # fmt: skip
BROKEN = [
    "png mark alone",
    "png of no size",
    "floating-point tiff",
    "gif without a picture",
    "mp4 with sound only",
]
OTHERS = ["svg", "html", "zip", "eps", "play list", "pickle", "heic"]


def odd() -> dict[str, bytes]:
    """Unusual, and right."""
    return {
        "cmyk jpeg": saved(image().convert("CMYK"), "JPEG"),
        "16-bit png": files.raw_png(files.deep(quarters()), colour_type=2, depth=16),
        "16-bit grey png": files.raw_png(np.full((48, 64, 1), 999), colour_type=0, depth=16),
        "palette gif": saved(files.palette(), "GIF"),
        "one pixel": saved(image(quarters()[:1, :1]), "PNG"),
        "a video": files.video(),
    }


def reference_cases() -> list[Case]:
    """Each as a file of a form, or as a data address."""
    good = saved(image(), "PNG")
    bad = bombs() | broken()
    wrong = {name: bad[name] for name in (*BOMBS, *BROKEN)}
    others = not_pictures()
    wrong |= {name: (others[name], "400 no known kind") for name in OTHERS}
    wrong |= {f"cut to {size} bytes": (good[:size], "400 ") for size in (0, 1, 20, 60, len(good) // 2)}
    found = {
        name: (data, "400 invalid_image" if right == "400 " else right)
        for name, (data, right) in wrong.items()
    }
    found |= {name: (data, "200 queued | 200 in_progress") for name, data in odd().items()}
    found["cut to 0 bytes"] = (b"", '400 "param":"input_reference"')
    cases = []
    for number, (name, (data, right)) in enumerate(found.items()):
        parts = [("prompt", None, b"a lake"), ("seconds", None, b"1"), ("input_reference", "a.png", data)]
        body = {**VIDEO, "input_reference": data_url(data)}
        ways = {"file": form(VIDEOS, parts), "address": post(VIDEOS, body)}
        # One way each: a file that ends its reader has the next one wait for another.
        way = list(ways)[number % 2]
        cases.append(Case(name=f"{way} {name}", expected=right, run=ordering(ways[way])))
    return cases
