"""What a checkpoint's config must hold. Whatever is missing or wrong is refused with its key, what was found and what
is allowed; nothing that decides what a model is has a default.

Owns the keys, their ranges and the checked form. Does not read files (`weights`) or know folders (`registry`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from worldloop.models.memory import Recency
from worldloop.models.sampling import Schedule, timestep_grid
from worldloop.models.summaryformer import SummaryformerConfig

FORMAT = "summaryformer-inference-1"
CACHE_MODES = ("recache", "last_step_writes")
REQUIRED = (
    "format", "timesteps", "timestep_shift", "noise_schedule", "shifted_cosine_ratio", "cache_mode", "recency",
    "sink_gap_max", "summary_tokens", "raw_window_frames", "summary_window_frames", "focus_region", "profile",
    "jump_sprint", "dim", "ffn_dim", "num_heads", "num_layers",
)  # fmt: skip
"""Keys of a checkpoint's config that are never defaulted."""
ARCHITECTURE = (
    "dim", "ffn_dim", "num_heads", "num_layers", "summary_tokens", "raw_window_frames", "summary_window_frames",
    "latent_hw", "latent_channels", "cond_dim", "grid_embedding", "rope_spatial_base",
)  # fmt: skip
"""Keys on which all checkpoints of a folder agree, so that one network serves them."""
OPTIONAL: dict[str, Any] = {
    "latent_channels": 48, "latent_hw": [24, 42], "encode_fps": 12, "autoencoder": None, "license": None,
    "trained_on": None, "cond_dim": 0, "rope_spatial_base": 10_000.0, "grid_embedding": False,
    "yaw": True,
}  # fmt: skip
"""Keys that may be missing, with the published model's constants."""


class ConfigError(ValueError):
    """A config that cannot be served.

    Attributes:
        key, found, allowed: which key is wrong, its value (None when it is missing), and what it may be.
    """

    def __init__(self, problem: str, *, key: str, found: object, allowed: str) -> None:
        super().__init__(problem)
        self.key, self.found, self.allowed = key, found, allowed


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """A checked config: the facts a session needs, and the architecture.

    Attributes:
        model: architecture, with the served memory window.
        timesteps, timestep_shift, schedule: the sampler's law; timesteps high to low.
        cache_mode: `recache` or `last_step_writes`.
        recency: the bias on summaries, or None; as read from a file, the trained one.
        profile, jump_sprint, yaw: what the player can do; what a world was not trained with is always 0.
        encode_fps: RGB frames a second that the model was trained at.
        step: training step, or None.
        saved: the config as it is in the file, optional keys filled in.
    """

    model: SummaryformerConfig
    timesteps: tuple[int, ...]
    timestep_shift: float
    schedule: Schedule
    cache_mode: str
    recency: Recency | None
    profile: str
    jump_sprint: bool
    yaw: bool
    encode_fps: int
    step: int | None
    saved: Mapping[str, Any]

    @property
    def recipe(self) -> str:
        """How a frame is made, as file names say it: `3r` is three passes and recache, `3nr` without."""
        return recipe_token(len(self.timesteps), self.cache_mode)

    @property
    def trained_window(self) -> int:
        """The file's own memory window; `model` has the served one."""
        window: int = self.saved["summary_window_frames"]
        return window


def recipe_token(passes: int, cache_mode: str) -> str:
    """The part of a file name that says how a frame is made, such as `3r`."""
    return f"{passes}{'r' if cache_mode == 'recache' else 'nr'}"


def parse_config(
    saved: Mapping[str, Any], step: int | None, *, rope_table_len: int = 4096, window: int | None = None
) -> CheckpointConfig:
    """Check a config's keys and values.

    Args:
        saved: as in the file.
        step: training step, or None.
        rope_table_len: capacity of the rotary table.
        window: memory window to serve with, or None for the trained one. Capacity only: no weight is sized by it.

    Raises:
        ConfigError: says which key is wrong and what is allowed.
    """
    found = saved.get("format")
    if found != FORMAT:
        raise ConfigError(
            f"config format={found!r}; this server reads {FORMAT!r}",
            key="format",
            found=found,
            allowed=FORMAT,
        )
    missing = [key for key in REQUIRED if key not in saved]
    if missing:
        raise ConfigError(
            f"config lacks {missing[0]!r}" + (f" (also {missing[1:]})" if missing[1:] else ""),
            key=missing[0],
            found=None,
            allowed="a value",
        )
    full = {**OPTIONAL, **saved}
    timesteps = _timesteps(full["timesteps"])
    if full["cache_mode"] not in CACHE_MODES:
        raise _wrong("cache_mode", full["cache_mode"], f"one of {CACHE_MODES}")
    for key in ("focus_region", "jump_sprint", "grid_embedding", "yaw"):
        if not isinstance(full[key], bool):
            raise _wrong(key, full[key], "true or false")
    shift = number(full, "timestep_shift")
    with _about(full, "timestep_shift", "a finite number above 0"):
        rebuilt = timestep_grid(len(timesteps), shift)
    if rebuilt != timesteps:
        raise ConfigError(
            f"timesteps={list(timesteps)} but timestep_shift={shift:g} gives {list(rebuilt)}",
            key="timesteps",
            found=list(timesteps),
            allowed=str(list(rebuilt)),
        )
    if full["autoencoder"] is not None and not isinstance(full["autoencoder"], Mapping):
        raise _wrong("autoencoder", full["autoencoder"], "null or hold file and sha256")
    with _about(full, "noise_schedule", "'cosine'"):
        Schedule(name=str(full["noise_schedule"]))
    with _about(full, "shifted_cosine_ratio", "a finite number above 0"):
        schedule = Schedule(ratio=number(full, "shifted_cosine_ratio"))
    model = _architecture(full, rope_table_len=rope_table_len, window=window)
    return CheckpointConfig(
        model=model,
        timesteps=timesteps,
        timestep_shift=shift,
        schedule=schedule,
        cache_mode=full["cache_mode"],
        recency=_recency(full, served=model.summary_window_frames),
        profile=str(full["profile"]),
        jump_sprint=full["jump_sprint"],
        yaw=full["yaw"],
        encode_fps=integer(full, "encode_fps", least=1),
        step=step,
        saved=full,
    )


def _architecture(full: Mapping[str, Any], *, rope_table_len: int, window: int | None) -> SummaryformerConfig:
    raw, trained = (integer(full, key) for key in ("raw_window_frames", "summary_window_frames"))
    if not 1 <= raw <= trained:
        raise _wrong("raw_window_frames", raw, f"in 1..summary_window_frames={trained}")
    if window is not None and window < raw:
        raise ConfigError(
            f"serve_window_frames={window} must be at least raw_window_frames={raw}",
            key="serve_window_frames",
            found=window,
            allowed=f"at least raw_window_frames={raw}",
        )
    gap = full["sink_gap_max"]
    if type(gap) is not int or not 2 <= gap <= 64:
        raise _wrong("sink_gap_max", gap, "an integer in [2, 64]")
    sizes = {
        key: integer(full, key, least=1)
        for key in ("dim", "ffn_dim", "num_heads", "num_layers", "latent_channels")
    }
    if number(full, "rope_spatial_base") <= 0:
        raise _wrong("rope_spatial_base", full["rope_spatial_base"], "a number above 0")
    with _about(full, "num_heads", "a number of heads whose width is dim / num_heads, such as 64"):
        model = SummaryformerConfig(
            **sizes,
            **{key: integer(full, key) for key in ("summary_tokens", "cond_dim")},
            raw_window_frames=raw,
            summary_window_frames=trained if window is None else window,
            sink_gap_max=gap,
            latent_hw=grid(full["latent_hw"]),
            focus_region=full["focus_region"],
            grid_embedding=full["grid_embedding"],
            rope_spatial_base=number(full, "rope_spatial_base"),
            rope_table_len=rope_table_len,
        )
        _ = model.memory, model.rope  # both refuse a geometry that cannot work
    return model


def _recency(full: Mapping[str, Any], *, served: int) -> Recency | None:
    """The trained bias; `decay_end` null means W + 1 of the served window."""
    value, trained = full["recency"], full["summary_window_frames"]
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"flat_until", "decay_end", "beta", "gamma"}:
        raise _wrong("recency", value, "null or hold flat_until, decay_end, beta and gamma")
    with _about(full, "recency", "whole numbers flat_until < decay_end, numbers beta and gamma above 0"):
        end = served + 1 if value["decay_end"] is None else integer(value, "decay_end")
        bias = Recency(
            flat_until=integer(value, "flat_until"),
            decay_end=end,
            beta=number(value, "beta"),
            gamma=number(value, "gamma"),
        )
    if value["decay_end"] is not None and end > trained + 1:
        raise ConfigError(
            f"recency decay_end={end} must be at most W + 1 = {trained + 1}",
            key="recency",
            found=dict(value),
            allowed=f"decay_end at most {trained + 1}",
        )
    return bias


def _timesteps(value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list | tuple) and all(type(t) is int for t in value)
    if not whole or not value or any(a <= b for a, b in itertools.pairwise(value)):
        raise _wrong("timesteps", value, "a non-empty list of integers, high to low")
    return tuple(value)


def integer(config: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    """The whole number under `key`, no bool. ConfigError says what is allowed."""
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(key, value, f"an integer, at least {least}")
    return value


def number(config: Mapping[str, Any], key: str) -> float:
    """The finite number under `key`, no bool. ConfigError says what is allowed."""
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(key, value, "a number")
    return float(value)


def grid(value: Any) -> tuple[int, int]:
    """Rows and columns of a latent. ConfigError says what is allowed."""
    whole = (
        isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)
    )
    if not whole:
        raise _wrong("latent_hw", value, "two integers above 0, rows and columns")
    return value[0], value[1]


def _wrong(key: str, found: object, allowed: str) -> ConfigError:
    return ConfigError(f"{key}={found!r} must be {allowed}", key=key, found=found, allowed=allowed)


@contextmanager
def _about(config: Mapping[str, Any], key: str, allowed: str) -> Iterator[None]:
    """Inside, another module's ValueError becomes a refusal of `key`."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error), key=key, found=config[key], allowed=allowed) from error
