"""Makes a recording: any Gymnasium environment with pictures, or a folder of videos with a table of actions.

Written so that stopping it anywhere loses at most one shard: a shard appears whole, then the table with its rows, then
the card that names it. Recording into the same folder again goes on.

Owns the order of writing and what is kept. Does not own pictures and actions (`environment`, `videos`) or formats
(`card`, `table`, `shards`). Called by the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldloop.codec.mp4 import write_mp4
from worldloop.core.errors import InvalidInputError
from worldloop.trainer.card import CARD, Card, Shard, sha256
from worldloop.trainer.environment import EnvironmentEpisodes
from worldloop.trainer.episodes import EpisodeSource
from worldloop.trainer.shards import LOSSLESS, LOSSY, write_lossless
from worldloop.trainer.table import ACTIONS, TABLE, Row, read_columns, read_table, write_table
from worldloop.trainer.videos import VideoEpisodes

EPISODES = 100
"""Of an environment, when nobody says how many."""


def record(
    source: str | Path,
    out: str | Path,
    *,
    license: str,
    episodes: int | None = None,
    steps: int = 120,
    seed: int = 1,
    policy: str = "walkers",
    lossless: bool = True,
    size: tuple[int, int] | None = None,
    fps: float | None = None,
    actions: Path | None = None,
    on_shard: Callable[[Card], None] | None = None,
) -> Card:
    """Record into a folder, or go on with a recording that was stopped.

    Args:
        source: an environment's id, or a folder of videos with a table (see `videos`).
        out: folder of the recording; made when missing.
        license: of the pictures, as it goes onto the card; an SPDX name or a sentence.
        episodes: of an environment, 100 when None; of videos, those that are enough for so many (None: all).
        steps: of an episode, at most; a step is 4 frames.
        seed: of the worlds and of the player's choices (environments).
        policy: who plays an environment, `walkers` or `random`.
        lossless: every bit comes back; otherwise MP4 that plays everywhere, which loses a little.
        size: (height, width), multiples of 16, that pictures are scaled and cut to; None keeps theirs.
        fps: RGB frames a second; None takes the source's own.
        actions: CSV or Parquet that says what each action of a discrete environment means, a row each.
        on_shard: told the card after every shard.

    Returns:
        The finished card.

    Raises:
        InvalidInputError: the source or an argument is wrong, or the folder holds a recording made otherwise.
        SettingsError: gymnasium or pyarrow is missing.
    """
    folder = Path(out)
    if episodes is not None and episodes < 1:
        raise InvalidInputError(f"episodes is {episodes}; at least 1 is needed")
    with closing(
        _open(
            source,
            folder,
            episodes,
            steps=steps,
            seed=seed,
            policy=policy,
            size=size,
            fps=fps,
            actions=actions,
        )
    ) as opened:
        most = (episodes or EPISODES) if isinstance(opened, EnvironmentEpisodes) else None
        enough = episodes if isinstance(opened, VideoEpisodes) else None
        return write_recording(
            opened, folder, license=license, lossless=lossless, most=most, enough=enough, on_shard=on_shard
        )


def write_recording(
    source: EpisodeSource,
    folder: Path,
    *,
    license: str,
    lossless: bool = True,
    most: int | None = None,
    enough: int | None = None,
    on_shard: Callable[[Card], None] | None = None,
) -> Card:
    """Record a source that is open; arguments, result and errors as of `record`.

    Args:
        most: more episodes in the folder than this are another recording's.
        enough: so many episodes end it.
    """
    if not license.strip():
        raise InvalidInputError("license is empty; say under which licence the pictures may be used")
    wanted = Card(
        source=source.name, license=license, fps=source.fps, picture=source.picture,
        codec=LOSSLESS if lossless else LOSSY, settings=dict(source.settings),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".*.part"):
        stale.unlink()
    card, rows = _kept(folder, wanted, list(source.keys), most)
    for index in range(len(card.shards), len(source.keys)):
        if enough is not None and card.episodes >= enough:
            break
        shard, fresh = _write_shard(folder, card, source, index)
        rows += fresh
        write_table(folder / TABLE, rows)
        card = replace(card, shards=(*card.shards, shard), table_sha256=sha256(folder / TABLE))
        card.write(folder)
        if on_shard is not None:
            on_shard(card)
    if not card.complete:
        card = replace(card, complete=True, table_sha256=sha256(folder / TABLE))
        card.write(folder)
    return card


def _open(
    source: str | Path,
    out: Path,
    episodes: int | None,
    *,
    steps: int,
    seed: int,
    policy: str,
    size: tuple[int, int] | None,
    fps: float | None,
    actions: Path | None,
) -> EnvironmentEpisodes | VideoEpisodes:
    folder = Path(source)
    if folder.is_dir():
        if folder.resolve() == out.resolve():
            raise InvalidInputError("source and out are the same folder; record into another one")
        if actions is not None:
            raise InvalidInputError(
                "a table of discrete actions is for environments; a folder has its own table"
            )
        return VideoEpisodes(folder, steps=steps, size=size, fps=fps)
    if isinstance(source, Path):
        raise InvalidInputError(f"folder {source.name!r} does not exist")
    table = None
    if actions is not None:
        columns = read_columns(actions)
        if missing := [name for name in ACTIONS if name not in columns]:
            raise InvalidInputError(f"{actions.name} lacks the columns {missing}")
        table = np.stack([columns[name] for name in ACTIONS], axis=1).astype(np.float32)
    return EnvironmentEpisodes(
        source, episodes=episodes or EPISODES, steps=steps, seed=seed, policy=policy,
        actions=table, size=size, fps=fps,
    )  # fmt: skip


def _kept(folder: Path, wanted: Card, keys: list[str], most: int | None) -> tuple[Card, list[Row]]:
    """The card to go on from, with the shards that are whole and still wanted, and their rows."""
    if not (folder / CARD).exists():
        return wanted, []
    found = Card.read(folder)
    for name in ("source", "license", "fps", "picture", "codec", "settings"):
        was, now = getattr(found, name), getattr(wanted, name)
        if was != now:
            raise InvalidInputError(
                f"folder {folder.name!r} holds a recording with {name} {was!r}, not {now!r}; record into another folder"
            )
    if len(found.shards) > len(keys) or (most is not None and found.episodes > most):
        raise InvalidInputError(
            f"folder {folder.name!r} holds {found.episodes} episodes, more than are asked for; ask for as many or more"
        )
    rows = read_table(folder / TABLE) if found.shards and (folder / TABLE).exists() else []
    shards: list[Shard] = []
    for index, (shard, key) in enumerate(zip(found.shards, keys, strict=False)):
        path = folder / shard.file
        complete = sum(row.shard == index for row in rows) == shard.steps + shard.episodes
        if shard.key != key or not complete or not path.exists() or sha256(path) != shard.sha256:
            break
        shards.append(shard)
    finished = found.complete and len(shards) == len(found.shards) == len(keys)
    kept = replace(wanted, shards=tuple(shards), table_sha256=found.table_sha256, complete=finished)
    return kept, [row for row in rows if row.shard < len(shards)]


def _write_shard(folder: Path, card: Card, source: EpisodeSource, index: int) -> tuple[Shard, list[Row]]:
    rows: list[Row] = []

    def frames() -> Iterator[NDArray[np.uint8]]:
        count = 0
        for episode, steps in enumerate(source.group(index), start=card.episodes):
            for number, step in enumerate(steps):
                rows.append(
                    Row(
                        episode=episode,
                        step=number,
                        shard=index,
                        frame=count,
                        time=step.time,
                        action=step.action,
                    )
                )
                count += len(step.frames)
                yield from step.frames

    if card.codec == LOSSLESS:
        path = folder / f"shard-{index:05d}.mkv"
        count = write_lossless(path, frames(), fps=card.fps)
    else:
        path = folder / f"shard-{index:05d}.mp4"
        count = write_mp4(path, frames(), fps=card.fps)
    episodes = rows[-1].episode + 1 - card.episodes
    shard = Shard(
        file=path.name, key=source.keys[index], episodes=episodes, steps=len(rows) - episodes, frames=count,
        sha256=sha256(path),
    )  # fmt: skip
    return shard, rows
