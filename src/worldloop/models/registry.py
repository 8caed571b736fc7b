"""Checkpoints of a folder: names, one entry each, agreement of the architecture, and the default.

    <labels>-<K><r|nr>.safetensors | .pt      meadow-3r, gta-rec-3nr; a name without the token is allowed

The stem is the model id. A token that disagrees with the config is refused. Weights are not read here. Called by
`loops.host` and `worldloop inspect`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldloop.core.errors import CheckpointError, InvalidInputError
from worldloop.models.memory import Recency
from worldloop.models.weights import ARCHITECTURE, CheckpointConfig, file_hash, read_config

WORLDS = Path(__file__).parents[1] / "assets" / "worlds"
"""Shipped worlds, a folder each."""
AUTOENCODER = "autoencoder.safetensors"
"""File of a folder's autoencoder."""
SUFFIXES = (".safetensors", ".pt")
SERVE_RECENCY = Recency(flat_until=5, decay_end=17, beta=6.0, gamma=2.0)
"""Bias given to a checkpoint whose name carries `rec` and that was trained without one."""
_TOKEN = re.compile(r"(\d+)(nr|r)")
_STEM = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Name:
    """A checkpoint's file name, taken apart.

    Attributes:
        model_id: the stem, lower case.
        labels: its parts without the recipe token.
        steps, cache_mode: what the token says, or None.
    """

    model_id: str
    labels: tuple[str, ...]
    steps: int | None
    cache_mode: str | None

    @property
    def recipe(self) -> str | None:
        """The token, such as `3r`."""
        return None if self.steps is None else f"{self.steps}{'r' if self.cache_mode == 'recache' else 'nr'}"

    @classmethod
    def parse(cls, file: str) -> Name:
        """Take a file name apart; CheckpointError when it cannot be a model id."""
        stem = Path(file).stem.lower()
        if not _STEM.fullmatch(stem):
            raise CheckpointError(
                file, "a model id is made of letters, digits, '.', '_' and '-', such as meadow-3r"
            )
        *labels, last = stem.split("-")
        token = _TOKEN.fullmatch(last)
        if token is None:
            return cls(model_id=stem, labels=(*labels, last), steps=None, cache_mode=None)
        mode = "recache" if token[2] == "r" else "last_step_writes"
        return cls(model_id=stem, labels=tuple(labels), steps=int(token[1]), cache_mode=mode)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One servable checkpoint, weights not held."""

    name: Name
    path: Path
    config: CheckpointConfig

    @property
    def profile(self) -> dict[str, Any]:
        """What the player can do: `{"name", "jump_sprint", "controls"}`."""
        turn = ["left", "right"] if self.config.yaw else []
        jump = ["space", "shift"] if self.config.jump_sprint else []
        controls = ["w", "a", "s", "d", *turn, *jump]
        return {"name": self.config.profile, "jump_sprint": self.config.jump_sprint, "controls": controls}

    def recency(self, *, enabled: bool = True) -> tuple[Recency | None, str]:
        """(bias, where it comes from): trained, serve, off, or off (disabled)."""
        if not enabled:
            return None, "off (disabled)"
        if self.config.recency is not None:
            return self.config.recency, "trained"
        if "rec" in self.name.labels:
            return SERVE_RECENCY, "serve"
        return None, "off"

    def details(self, *, recency_enabled: bool = True) -> dict[str, Any]:
        """The entry of `GET /models`."""
        config, model = self.config, self.config.model
        bias, source = self.recency(enabled=recency_enabled)
        return {
            "recipe": self.name.recipe,
            "steps": self.name.steps,
            "cache_mode": config.cache_mode,
            "timesteps": list(config.timesteps),
            "summary_tokens": model.summary_tokens,
            "raw_window_frames": model.raw_window_frames,
            "summary_window_frames": model.summary_window_frames,
            "sink_gap_max": model.sink_gap_max,
            "recency": None if bias is None else {
                "flat_until": bias.flat_until, "decay_end": bias.decay_end, "beta": bias.beta, "gamma": bias.gamma,
            },
            "recency_source": source,
            "noise_schedule": f"{config.schedule.name}:{config.schedule.ratio}",
            "train_step": config.step,
            "file": self.path.name,
            "labels": list(self.name.labels),
            "focus": "diamond" if model.focus_region else "none",
            "profile": self.profile,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """The checkpoints of one folder and the autoencoder that they share.

    Attributes:
        entries: by model id, sorted.
        autoencoder: its file.
    """

    entries: dict[str, Entry]
    autoencoder: Path

    def default(self, wanted: str | None = None) -> str:
        """The model id that is served first: the first sorted one, `latest` (highest training step), or `wanted`.

        Raises:
            CheckpointError: no such id; lists what is there.
        """
        if wanted is None:
            return next(iter(self.entries))
        if wanted == "latest":
            return max(self.entries, key=lambda key: (self.entries[key].config.step or -1, key))
        if wanted not in self.entries:
            raise CheckpointError(wanted, f"no such model; have {list(self.entries)}")
        return wanted


def find_world(name: str) -> Path:
    """Folder of a shipped world by name, or the folder that a path names (a checkpoint's own folder for a file).

    Raises:
        InvalidInputError: neither; lists the shipped worlds.
    """
    shipped = WORLDS / name
    if shipped.is_dir():
        return shipped
    path = Path(name)
    if path.is_file():
        return path.parent
    if path.is_dir():
        return path
    have = sorted(p.name for p in WORLDS.iterdir() if p.is_dir()) if WORLDS.is_dir() else []
    raise InvalidInputError(
        f"no world {name!r}: give one of {have}, or the path of a folder with checkpoints"
    )


def find_checkpoint(name: str) -> Path:
    """The checkpoint that a path names, or the first one of a world's folder; errors as in `find_world` and `scan`."""
    path = Path(name)
    if path.is_file():
        return path
    registry = scan(find_world(name))
    return registry.entries[registry.default()].path


def scan(
    folder: Path, *, rope_table_len: int = 4096, window: int | None = None, recency_enabled: bool = True
) -> Registry:
    """Check every checkpoint of a folder.

    Args:
        folder: holds checkpoints and the autoencoder's file.
        rope_table_len: capacity of the rotary table.
        window: memory window that every checkpoint is served with, or None for its own.
        recency_enabled: whether recency biases count.

    Raises:
        CheckpointError: the folder is empty, a file is refused, or two files disagree on the architecture.
    """
    autoencoder = folder / AUTOENCODER
    if not autoencoder.is_file():
        raise CheckpointError(folder.name, f"holds no {AUTOENCODER}")
    files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p != autoencoder)
    if not files:
        raise CheckpointError(
            folder.name, "holds no checkpoint (*.safetensors or *.pt), such as meadow-3r.safetensors"
        )
    entries: dict[str, Entry] = {}
    digest = file_hash(autoencoder)
    for path in files:
        entry = read_entry(path, rope_table_len=rope_table_len, window=window)
        if entry.name.model_id in entries:
            raise CheckpointError(path.name, f"a second file with model id {entry.name.model_id!r}")
        made_for = entry.config.saved["autoencoder"]
        if made_for is not None and made_for.get("sha256") != digest:
            raise CheckpointError(path.name, f"was trained on another autoencoder than {autoencoder.name}")
        bias, source = entry.recency(enabled=recency_enabled)
        if bias is not None and bias.decay_end > entry.config.model.summary_window_frames + 1:
            raise CheckpointError(
                path.name, f"recency ({source}) decay_end={bias.decay_end} is past eviction"
            )
        entries[entry.name.model_id] = entry
    _agree(entries)
    return Registry(entries=dict(sorted(entries.items())), autoencoder=autoencoder)


def read_entry(path: Path, *, rope_table_len: int = 4096, window: int | None = None) -> Entry:
    """One checkpoint's entry; CheckpointError when its name or config is refused or they disagree."""
    name = Name.parse(path.name)
    config = read_config(path, rope_table_len=rope_table_len, window=window)
    if name.steps is not None and (name.steps, name.cache_mode) != (len(config.timesteps), config.cache_mode):
        raise CheckpointError(
            path.name,
            f"the name says {name.steps} steps, {name.cache_mode}; the config says {len(config.timesteps)}, "
            f"{config.cache_mode}",
        )
    return Entry(name=name, path=path, config=config)


def _agree(entries: dict[str, Entry]) -> None:
    first = next(iter(entries.values()))
    for entry in entries.values():
        ours, theirs = entry.config.model, first.config.model
        odd = [key for key in ARCHITECTURE if getattr(ours, key) != getattr(theirs, key)]
        if odd:
            key = odd[0]
            raise CheckpointError(
                entry.path.name,
                f"{key}={getattr(ours, key)} but {first.path.name} has {getattr(theirs, key)}; all checkpoints "
                f"of a folder share {', '.join(ARCHITECTURE)}",
            )
