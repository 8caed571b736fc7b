"""Words for what a meadow shows and where its walker goes, from its true labels, and other words for the same.

Owns the phrasing. Called by `meadow` for captions of start pictures, and by the trainer and the evaluation of models
that read text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.simulators.tiles import BRIDGE, FLOWERS, PATH, PINE, ROCK, SAND, TALL_GRASS, TREE, WATER

_SUBJECTS: Final = (
    ("a lake", (WATER, BRIDGE), 5),
    ("a sandy shore", (SAND,), 4),
    ("broad-leaved forest", (TREE,), 5),
    ("pine forest", (PINE,), 5),
    ("rocks", (ROCK,), 4),
    ("flowers", (FLOWERS,), 5),
    ("tall grass", (TALL_GRASS,), 5),
)
"""What is told, of which kinds it consists, and how many cells of them are worth telling."""

BARE: Final = "open grass"
STANDING: Final = "standing still"
_WAYS: Final = ("north", "south", "west", "east")
_SIDES: Final = (*_WAYS, "northwest", "northeast", "southwest", "southeast")

SYNONYMS: Final = {
    "a lake": ("a pond", "water", "the sea", "a blue lake", "lake"),
    "a sandy shore": ("sand", "a beach", "a sandy beach", "the shore"),
    "broad-leaved forest": ("forest", "trees", "woods", "a green forest", "broad-leaved trees"),
    "pine forest": ("pines", "pine trees", "fir trees", "a dark forest", "forest"),
    "rocks": ("stones", "boulders", "rocky hills", "mountains"),
    "flowers": ("blossoms", "many flowers", "a flower field"),
    "tall grass": ("high grass", "long grass", "reeds"),
    "a path": ("a trail", "a road", "a dirt track", "path"),
    "a bridge": ("a wooden bridge", "bridge"),
    BARE: ("grass", "a meadow", "grassland", "a green field"),
    STANDING: ("standing", "waiting", "not moving"),
    "walking": ("going", "a walk to the", "wandering"),
    **{f"in the {side}": (f"to the {side}", f"{side}") for side in _SIDES},
}
"""Other words for the same, by what `phrases` and `walk` say."""

_SEEN: Final = {"north": "at the top", "south": "at the bottom", "west": "on the left", "east": "on the right",
                "northwest": "at the top left", "northeast": "at the top right",
                "southwest": "at the bottom left", "southeast": "at the bottom right"}  # fmt: skip
"""Sides in the words of someone who looks at the picture."""


def _side(rows: NDArray[np.int64], columns: NDArray[np.int64], walker: tuple[int, int]) -> str:
    """Where the cells lie as seen from the walker, or "" when on all sides of him."""
    down, right = float(np.mean(rows)) - walker[0], float(np.mean(columns)) - walker[1]
    vertical = "" if abs(down) < 0.8 else "south" if down > 0 else "north"
    horizontal = "" if abs(right) < 1.3 else "east" if right > 0 else "west"
    return vertical + horizontal


def phrases(window: NDArray[np.int8], walker: tuple[int, int]) -> list[str]:
    """What is in view, the largest first: "a lake in the east", "a path"; `BARE` alone when there is nothing to tell.

    Args:
        window: int8 [rows, columns] of tile kinds.
        walker: the walker's row and column in it.
    """
    found = []
    for name, kinds, least in _SUBJECTS:
        rows, columns = np.nonzero(np.isin(window, kinds))
        if len(rows) >= least:
            side = _side(rows, columns, walker)
            found.append((len(rows), f"{name} in the {side}" if side else name))
    told = [phrase for _, phrase in sorted(found, key=lambda pair: -pair[0])]
    told += ["a path"] * bool((window == PATH).any()) + ["a bridge"] * bool((window == BRIDGE).any())
    return told or [BARE]


def describe(window: NDArray[np.int8], walker: tuple[int, int]) -> str:
    """One line such as "a lake in the east, pine forest in the north, a path"; "open grass" when bare.

    Args: as of `phrases`.
    """
    return ", ".join(phrases(window, walker))


def walk(directions: Sequence[int], *, least: int = 2) -> str:
    """Where somebody goes: "walking north, then east", or "standing still".

    Args:
        directions: of his steps as they happened: 0 none, 1 north, 2 south, 3 west, 4 east.
        least: a shorter stretch is not told, unless nothing else is.
    """
    runs = [(way, len(list(steps))) for way, steps in itertools.groupby(directions)]
    told = [way for way, steps in runs if steps >= least] or [way for way, _ in runs[:1]]
    ways = [way for way, _ in itertools.groupby(told)]
    if not any(ways):
        return STANDING
    words = []
    for before, way in zip([0, *ways], ways, strict=False):
        words.append(STANDING if way == 0 else _WAYS[way - 1] if before else f"walking {_WAYS[way - 1]}")
    return ", then ".join(words)


def motions() -> list[str]:
    """Every way to say how somebody moves, in whole phrases: what pictures at rest cannot show."""
    verbs = ("walk", "walking", *SYNONYMS["walking"], "then")
    ways = [f"{verb}{to} {way}" for verb in verbs for to in ("", " to the") for way in _WAYS]
    return [*ways, *verbs, STANDING, *SYNONYMS[STANDING]]


def rephrase(
    told: Sequence[str],
    rng: np.random.Generator,
    *,
    keep: float = 0.8,
    other: float = 0.3,
    always: Sequence[str] = (),
) -> str:
    """The same in other words: some phrases left out, in another order, with synonyms.

    Args:
        told: phrases of `phrases` and `walk`.
        keep: share of phrases that are told, in half of all captions; the other half tells all of them.
        other: share of the words that have synonyms and are replaced by one.
        always: phrases that are never left out.
    """
    kept = [phrase for phrase in told if rng.random() < keep] if rng.random() < 0.5 else list(told)
    kept += always
    if rng.random() < 0.5:
        kept = [kept[n] for n in rng.permutation(len(kept))]
    for known, others in SYNONYMS.items():
        if rng.random() < other:
            chosen = others[int(rng.integers(len(others)))]
            kept = [_replaced(phrase, known, chosen) for phrase in kept]
    if rng.random() < other:
        kept = [_as_seen(phrase) for phrase in kept]
    return ", ".join(kept)


def _replaced(phrase: str, known: str, chosen: str) -> str:
    """`known` in a phrase's whole words replaced; "in the north" is no part of "in the northeast"."""
    return f"{phrase} ".replace(f"{known} ", f"{chosen} ").replace(f"{known},", f"{chosen},").rstrip()


def _as_seen(phrase: str) -> str:
    head, told, side = phrase.rpartition(" in the ")
    return f"{head} {_SEEN[side]}" if told and side in _SEEN else phrase


def every_phrase() -> list[str]:
    """Texts that hold every word that captions have."""
    subjects = [name for name, _, _ in _SUBJECTS]
    ways = [walk([1, 1, 4, 4]), *_SIDES]
    return [*SYNONYMS, *itertools.chain(*SYNONYMS.values()), *_SEEN.values(), *subjects, *ways]
