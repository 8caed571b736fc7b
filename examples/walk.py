"""Walk through a dreamed world from Python and write it to a video.

python examples/walk.py walk.mp4 --picture lakeside --keys dddddssssaaaawwww
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import worldloop
from worldloop.codec.mp4 import write_mp4
from worldloop.engine.contract import Frames


def walk(world: worldloop.World, picture: str, keys: str, seed: int) -> Iterator[Frames]:
    """The start picture, then four pictures for each key; any other letter than wasd stands still."""
    with world.start(picture, seed=seed) as session:
        yield session.first
        for key in keys:
            yield session.step({key} if key in "wasd" else ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("--world", default="meadow")
    parser.add_argument("--picture", default="lakeside")
    parser.add_argument("--keys", default="ddddd.ssss.aaaaa.wwww.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with worldloop.load_world(options.world) as world:
        chunks = walk(world, options.picture, options.keys, options.seed)
        count = write_mp4(options.video, (frame for chunk in chunks for frame in chunk), fps=35, scale=4)
    print(f"wrote {options.video}: {count} pictures")


if __name__ == "__main__":
    main()
