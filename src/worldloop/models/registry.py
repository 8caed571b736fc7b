"""Checkpoints of a folder: names, one entry each, how each is served, agreement of the architecture, and the default.

    <labels>-<K><r|nr>.safetensors | .pt      meadow-3r, gta-rec-3nr; a name without the token is allowed

The stem is the model id. A token that disagrees with the config is refused. A bias on summaries is the trained one,
else the server's own when the name carries `rec`, else none. Weights are not read here. Called by `host` and by
`worldloop inspect`.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from worldloop.core.errors import CheckpointError, InvalidInputError
from worldloop.core.files import file_hash
from worldloop.models.config import ARCHITECTURE, CheckpointConfig, recipe_token
from worldloop.models.memory import Recency
from worldloop.models.weights import read_config

WORLDS = Path(__file__).parents[1] / "assets" / "worlds"
"""Shipped worlds, a folder each."""
AUTOENCODER = "autoencoder.safetensors"
"""File of a folder's autoencoder."""
PIPELINE_INDEX = "model_index.json"
"""File that tells a folder in the layout of diffusers."""
SUFFIXES = (".safetensors", ".pt")
SERVE_RECENCY = Recency(flat_until=5, decay_end=17, beta=6.0, gamma=2.0)
"""Bias of a checkpoint whose name carries `rec` and that was trained without one, unless the server says else."""
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
        return (
            None
            if self.steps is None or self.cache_mode is None
            else recipe_token(self.steps, self.cache_mode)
        )

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
class Rules:
    """What a server says about every checkpoint that it serves.

    Attributes:
        rope_table_len: capacity of the rotary table.
        window: memory window for all of them, or None for each one's own.
        recency_enabled: whether summaries may be biased at all.
        serve_recency: see `SERVE_RECENCY`.
    """

    rope_table_len: int = 4096
    window: int | None = None
    recency_enabled: bool = True
    serve_recency: Recency = SERVE_RECENCY

    def recency(self, name: Name, config: CheckpointConfig) -> tuple[Recency | None, str]:
        """(bias, where it comes from): `trained`, `serve`, `off`, or `off (disabled)`."""
        if not self.recency_enabled:
            return None, "off (disabled)"
        if config.recency is not None:
            return config.recency, "trained"
        if "rec" in name.labels:
            return self.serve_recency, "serve"
        return None, "off"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One servable checkpoint, weights not held.

    Attributes:
        name, path: of the file.
        config: as it is served, its `recency` included.
        recency_source: where that comes from, see `Rules.recency`.
    """

    name: Name
    path: Path
    config: CheckpointConfig
    recency_source: str

    @property
    def profile(self) -> dict[str, Any]:
        """What the player can do: `{"name", "jump_sprint", "controls"}`."""
        turn = ["left", "right"] if self.config.yaw else []
        jump = ["space", "shift"] if self.config.jump_sprint else []
        controls = ["w", "a", "s", "d", *turn, *jump]
        return {"name": self.config.profile, "jump_sprint": self.config.jump_sprint, "controls": controls}

    def details(self) -> dict[str, Any]:
        """The entry of `GET /models`."""
        config, model, bias = self.config, self.config.model, self.config.recency
        return {
            "recipe": config.recipe,
            "steps": len(config.timesteps),
            "cache_mode": config.cache_mode,
            "timesteps": list(config.timesteps),
            "summary_tokens": model.summary_tokens,
            "raw_window_frames": model.raw_window_frames,
            "summary_window_frames": model.summary_window_frames,
            "sink_gap_max": model.sink_gap_max,
            "recency": None if bias is None else asdict(bias),
            "recency_source": self.recency_source,
            "noise_schedule": f"{config.schedule.name}:{config.schedule.ratio}",
            "train_step": config.step,
            "file": self.path.name,
            "labels": list(self.name.labels),
            "focus": "diamond" if model.focus_region else "none",
            "profile": self.profile,
        }

    def line(self) -> dict[str, Any]:
        """The facts of one line of the log."""
        config, model, bias = self.config, self.config.model, self.config.recency
        law = "" if bias is None else (
            f"0 to age {bias.flat_until}, -{bias.beta:g} at {bias.decay_end}, gamma {bias.gamma:g}"
        )  # fmt: skip
        return {
            "id": self.name.model_id,
            "t": list(config.timesteps),
            "cache_mode": config.cache_mode,
            "recency": f"{law} ({self.recency_source})" if law else self.recency_source,
            "gap": model.sink_gap_max,
            "focus": "diamond" if model.focus_region else "none",
            "X": model.summary_tokens,
            "Y": model.raw_window_frames,
            "W": model.summary_window_frames,
            "schedule": f"{config.schedule.name}:{config.schedule.ratio}",
            "step": config.step,
            "profile": config.profile + (" jump+sprint" if config.jump_sprint else ""),
            "file": self.path.name,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """The checkpoints of one folder and the autoencoder that they share.

    Attributes:
        entries: by model id, sorted.
        autoencoder: its file.
        rules: what they were read with.
    """

    entries: dict[str, Entry]
    autoencoder: Path
    rules: Rules = Rules()

    def default(self, wanted: str | None = None) -> str:
        """The model id that is served first: the first sorted one, `latest` (highest training step), or `wanted`.

        Raises:
            CheckpointError: no such id; lists what is there.
        """
        if wanted is None:
            return next(iter(self.entries))
        if wanted.lower() == "latest":
            steps = {key: entry.config.step for key, entry in self.entries.items()}
            return max(steps, key=lambda key: (-1 if steps[key] is None else steps[key], key))
        if wanted not in self.entries:
            raise CheckpointError(wanted, f"no such model; have {list(self.entries)}")
        return wanted

    def reread(self, model_id: str) -> Entry:
        """The entry of a file as it is now; it may have been replaced since the folder was read.

        Raises:
            CheckpointError: the file is refused now.
        """
        entry = read_entry(self.entries[model_id].path, self.rules)
        _check_autoencoder(entry, self.autoencoder, file_hash(self.autoencoder))
        return entry


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanReport:
    """A folder as it is, whatever is wrong with it.

    Attributes:
        entries: what could be served, by model id, sorted; refused files are not in it.
        autoencoder: the file that they share.
        refusals: everything that is wrong, in the order of the files.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    autoencoder: Path
    refusals: list[CheckpointError] = field(default_factory=list)


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


def is_video(path: Path) -> bool:
    """Whether a file's name says that it is a video model, which lies beside worlds: `[<labels>-]video.safetensors`."""
    return _is_kind(path, "video")


def is_picture(path: Path) -> bool:
    """The same for a picture model: `[<labels>-]picture.safetensors`."""
    return _is_kind(path, "picture")


def find_video(name: str, world: str) -> Path | None:
    """The video model that a path names (a file, or a folder with one); when it is empty, the world's own, or None.

    Raises:
        InvalidInputError: the path holds none; or the world does not exist.
    """
    return _find_beside(name, world, "video")


def find_picture(name: str, world: str) -> Path | None:
    """The same for a picture model. A path may also be a pipeline's folder, which has a `model_index.json`."""
    if name and (Path(name) / PIPELINE_INDEX).is_file():
        return Path(name)
    return _find_beside(name, world, "picture")


def _is_kind(path: Path, kind: str) -> bool:
    return path.suffix == ".safetensors" and path.stem.split("-")[-1] == kind


def _find_beside(name: str, world: str, kind: str) -> Path | None:
    path = Path(name) if name else find_world(world)
    if name and path.is_file():
        return path
    found = sorted(file for file in path.iterdir() if _is_kind(file, kind)) if path.is_dir() else []
    if name and not found:
        raise InvalidInputError(
            f"no {kind} model in {path.name!r}: give a checkpoint, or a folder with a *-{kind}.safetensors"
        )
    return found[0] if found else None


def find_checkpoint(name: str) -> Path:
    """The checkpoint that a path names, or the first one of a world's folder; errors as in `find_world` and `scan`."""
    path = Path(name)
    if path.is_file():
        return path
    registry = scan(find_world(name))
    return registry.entries[registry.default()].path


def scan(folder: Path, rules: Rules | None = None) -> Registry:
    """Check every checkpoint of a folder.

    Args:
        folder: holds checkpoints and the autoencoder's file.
        rules: what the server says about all of them.

    Raises:
        CheckpointError: the folder is empty, a file is refused, or two files disagree on the architecture.
    """
    report = scan_report(folder, rules)
    if report.refusals:
        raise report.refusals[0]
    return Registry(entries=report.entries, autoencoder=report.autoencoder, rules=rules or Rules())


def scan_report(folder: Path, rules: Rules | None = None) -> ScanReport:
    """Like `scan`, but goes on past what is wrong and lists it."""
    report = ScanReport(autoencoder=folder / AUTOENCODER)
    digest = file_hash(report.autoencoder) if report.autoencoder.is_file() else None
    if digest is None:
        report.refusals.append(CheckpointError(folder.name, f"holds no {AUTOENCODER}"))
    files = sorted(
        p
        for p in folder.iterdir()
        if p.suffix in SUFFIXES and p.name != AUTOENCODER and not is_video(p) and not is_picture(p)
    )
    if not files:
        report.refusals.append(
            CheckpointError(
                folder.name, "holds no checkpoint (*.safetensors or *.pt), such as meadow-3r.safetensors"
            )
        )
    found: list[Entry] = []
    for path in files:
        try:
            entry = read_entry(path, rules)
            _check_new(entry, found)
            if digest is not None:
                _check_autoencoder(entry, report.autoencoder, digest)
        except CheckpointError as error:
            report.refusals.append(error)
        else:
            found.append(entry)
    report.entries.update((e.name.model_id, e) for e in sorted(found, key=lambda e: e.name.model_id))
    return report


def read_entry(path: Path, rules: Rules | None = None) -> Entry:
    """One checkpoint's entry; CheckpointError when its name or config is refused or they disagree."""
    rules = rules or Rules()
    name = Name.parse(path.name)
    config = read_config(path, rope_table_len=rules.rope_table_len, window=rules.window)
    told, is_so = (name.steps, name.cache_mode), (len(config.timesteps), config.cache_mode)
    if name.steps is not None and told != is_so:
        raise CheckpointError(
            path.name,
            f"the name says {told[0]} steps, {told[1]}; the config says {is_so[0]}, {is_so[1]}",
            key="name",
            found=name.recipe,
            allowed=config.recipe,
        )
    bias, source = rules.recency(name, config)
    last = config.model.summary_window_frames + 1
    if bias is not None and bias.decay_end > last:
        raise CheckpointError(
            path.name,
            f"recency ({source}) decay_end={bias.decay_end} is past eviction: served with a memory window of "
            f"{last - 1}, it must be at most {last}",
            key="recency",
            found=bias.decay_end,
            allowed=f"decay_end at most {last}",
        )
    return Entry(name=name, path=path, config=replace(config, recency=bias), recency_source=source)


def _check_new(entry: Entry, others: list[Entry]) -> None:
    """CheckpointError when the id is taken, or the architecture is another than the first one's."""
    for other in others:
        if other.name.model_id == entry.name.model_id:
            raise CheckpointError(
                entry.path.name,
                f"a second file with model id {entry.name.model_id!r}, after {other.path.name}",
                key="name",
                found=entry.path.name,
                allowed="one file an id",
            )
    for first in others[:1]:
        ours, theirs = entry.config.model, first.config.model
        for key in ARCHITECTURE:
            mine, needed = getattr(ours, key), getattr(theirs, key)
            if mine != needed:
                raise CheckpointError(
                    entry.path.name,
                    f"{key}={mine} but {first.path.name} has {needed}; all checkpoints of a folder share "
                    f"{', '.join(ARCHITECTURE)}",
                    key=key,
                    found=mine,
                    allowed=str(needed),
                )


def _check_autoencoder(entry: Entry, autoencoder: Path, digest: str) -> None:
    made_for = entry.config.saved["autoencoder"]
    if made_for is not None and made_for.get("sha256") != digest:
        raise CheckpointError(
            entry.path.name,
            f"was trained on another autoencoder than {autoencoder.name}",
            key="autoencoder",
            found=made_for.get("sha256"),
            allowed=digest,
        )
