"""The ten ground pictures of the meadow, drawn as text.

Owns the kinds, their 16x16 pictures and which of them stop a walker. Does not own where they lie (`terrain`)
or who walks on them (`walker`). Called by `patches`, `meadow` and `measure`.

Each kind has exactly one picture: what a model has to learn about a cell is then its kind and nothing else.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

TILE_SIZE: Final = 16
"""Side of a tile in pixels."""

KINDS: Final = ("water", "sand", "grass", "flowers", "tall grass", "tree", "pine", "rock", "path", "bridge")
"""Names of the kinds; a kind's number is its place here."""

WATER, SAND, GRASS, FLOWERS, TALL_GRASS, TREE, PINE, ROCK, PATH, BRIDGE = range(len(KINDS))

SOLID: Final[NDArray[np.bool_]] = np.isin(np.arange(len(KINDS)), (WATER, TREE, PINE, ROCK))
"""bool [10]: the kinds that nobody can walk onto."""

_INK: Final = {
    # grass, light to deep
    "'": (158, 222, 108),
    ".": (116, 194, 82),
    ",": (78, 154, 64),
    ";": (58, 128, 60),
    # water
    "~": (74, 148, 226),
    "-": (134, 200, 252),
    "=": (52, 116, 200),
    "*": (236, 250, 255),
    # sand
    "s": (240, 220, 158),
    "t": (212, 184, 116),
    "u": (255, 242, 200),
    # path
    "p": (190, 146, 96),
    "q": (156, 112, 72),
    "r": (218, 180, 128),
    # planks and trunks
    "B": (104, 62, 46),
    "b": (158, 104, 60),
    "c": (196, 140, 80),
    "d": (228, 180, 112),
    # leaves, outline to highlight
    "K": (26, 66, 50),
    "1": (40, 102, 56),
    "2": (58, 138, 62),
    "3": (98, 178, 70),
    "4": (160, 220, 98),
    # needles, outline to highlight
    "k": (22, 52, 66),
    "5": (30, 84, 80),
    "6": (46, 118, 98),
    "7": (84, 158, 118),
    "8": (152, 210, 154),
    # stone
    "x": (62, 62, 84),
    "l": (98, 98, 120),
    "m": (130, 130, 150),
    "n": (166, 166, 180),
    "o": (204, 204, 212),
    "w": (238, 238, 240),
    # petals
    "R": (232, 64, 80),
    "P": (176, 36, 76),
    "Y": (255, 224, 88),
    "O": (236, 148, 44),
    "W": (255, 252, 246),
    "V": (198, 196, 226),
}

_WATER = """
~~~~~~~~~~~~~~~~
~~~---~~~~~~~~~~
~~-===-~~~~~~~~~
~-=~~~=--~~~~~~~
~=~~~~~==~~~~~~~
~~~~~~~~~~~~~~~~
~~~~~~~~~~~---~~
~~~~~~~~~~-===-~
--~~~~~~~-=~~~=-
==~~~~~~~=~~~~~=
~~~~~~~~~~~~~~~~
~~~~---~~~~~~~~~
~~~-===-~~~~*~~~
~~-=~~~=--~~~~~~
~~=~~~~~==~~~~~~
~~~~~~~~~~~~~~~~
"""

_SAND = """
ssssssssssssssss
ssuusssssssstsss
sttttsssssssssss
tssssttsssssssss
ssssssssssuuusss
sssssssssttttsss
ssutssttssssstts
ssssssssssssssss
sssssssssssssuts
uussssuuusssssss
ttsssttttsssssut
ssttssssstttsstt
ssssssssssssssss
sssutsssssssssss
sssssssssssuusss
ssssssssssttttss
"""

_GRASS = """
................
..'.'......,....
..,',.......,...
...,.....'......
.........,'.'...
.....'...',',...
......,...,.....
................
.'.'.........'..
.,',....'.'...,.
..,.....,',.....
.........,......
....'.........'.
.....,..'....,..
...........'....
.,.........,....
"""

_FLOWERS = """
.........'......
..RR......WW..'.
.RYYR....WYYV...
.RYYP....WYYV.,.
..PP.,....VV;...
.;,;......;,....
...,....'..,....
'.....'.........
.....YY......RR.
....YOOY....RYYR
....YOOO....RYYP
.'...OO;.....PP.
.....;,.....;,;.
..WW.,..'....,..
.WYYV...........
.;VV,.....'.'...
"""

_TALL_GRASS = """
,,4,,,,,,,4,,,,,
4,34,,4,4,34,,4,
34334,4334334,43
;334343;;334343;
;2343332;2343332
;2233223;2233223
,;22222;,;22222;
,,;;;;;,,,;;;;;,
,,,,,,4,,,,,,,4,
,,4,4,34,,4,4,34
4,4334334,433433
343;;334343;;334
3332;2343332;234
3223;2233223;223
222;,;22222;,;22
;;;,,,;;;;;,,,;;
"""

_TREE = """
.....KKKKKK.....
...KK344433KK...
..K3444333322K..
.K344333332221K.
.K333332222112K.
K23322211122333K
K12211234443322K
K34432234333221K
K44333223332211K
K33332212222111K
K12222111221111K
.K112212211111K.
.;K1111111111K;.
..;KKK1111KKK;;.
..,;;KBccBK;;;,.
....,;BbbB;;,...
"""

_PINE = """
.......kk.......
......k87k......
.....k8776k.....
.....k7665k.....
....k877665k....
...k87766655k...
...kk7666655k...
....k877665kk...
...k87776665k...
..k8776766555k..
..kk766676555k..
...k8776665kkk..
..k87767666555k.
.k8776666765555k
.;kkkk5665kkkk;,
..,;;;kBbk;;;;,.
"""

_ROCK = """
................
.....xxxxxx.....
...xxowwoonxx...
..xowwwoonnmmx..
..xowwoonnnmmx..
.xnowoonnmnmmlx.
.xnooonnmmmmmlx.
xnnonnnmmnmmmllx
xnnnnnmmnoommllx
xmnnnmmnnnmmlllx
xmmnmmmmmmmmlllx
xlmmmmlmmmmlllxx
.xllmmmllllllxx;
.;xxllllllxxxx;;
.,;;xxxxxx;;;;,.
...,,;;;;;;,,...
"""

_PATH = """
pppppppppppppppp
pprrppppppqppppp
prrpqpppppppprrp
ppqqppppppppprpq
pppppprrpppppqqp
ppppprrpqppppppp
qpppppqqpppppppp
ppppppppppprrrpp
ppprpppppprrppqp
pprrqpppppppqqpp
pppqppppqppppppp
pppppppppppppppp
rrpppppprrpppprp
rpqpppprrpqppppq
pqqpppppqqpppppp
pppppqpppppppppp
"""

_BRIDGE = """
dddddddddddddddd
ccccddccccccccdd
ccbccccccbbbcccc
BBBBBBBBBBBBBBBB
dddddddddddddddd
dcccccccdddccccc
ccccbbccccccccbc
BBBBBBBBBBBBBBBB
dddddddddddddddd
ccddccccccccdccc
cccccccbbccccccc
BBBBBBBBBBBBBBBB
dddddddddddddddd
ccccccddcccccccc
cbbbccccccccbbcc
BBBBBBBBBBBBBBBB
"""


def picture(drawing: str, ink: dict[str, tuple[int, int, int]]) -> NDArray[np.uint8]:
    """Turn 16 lines of 16 marks into uint8 [16, 16, 3].

    Raises:
        KeyError: a mark has no ink.
        ValueError: the drawing is not 16x16.
    """
    pixels = np.array([[ink[mark] for mark in line] for line in drawing.split()], np.uint8)
    if pixels.shape != (TILE_SIZE, TILE_SIZE, 3):
        raise ValueError(f"a drawing is {TILE_SIZE}x{TILE_SIZE} marks, not {pixels.shape[:2]}")
    return pixels


TILES: Final[NDArray[np.uint8]] = np.stack(
    [
        picture(drawing, _INK)
        for drawing in (
            *(_WATER, _SAND, _GRASS, _FLOWERS, _TALL_GRASS),
            *(_TREE, _PINE, _ROCK, _PATH, _BRIDGE),
        )
    ]
)
"""uint8 [10, 16, 16, 3]: the picture of each kind."""
