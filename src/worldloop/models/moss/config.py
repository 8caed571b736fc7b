"""What the configs of a MOSS-Image checkpoint must hold: one table of key names for each, checked values, and no
defaults for anything that decides what the model is.

Owns key names and ranges. Does not read files (`files`). A refusal is a `ConfigError`, which `files` gives the file's
name. The key names of the transformer and the scheduler are this package's choice, see docs/reference/moss.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldloop.models.config import ConfigError, integer, number

PIPELINE = "MOSSImagePipeline"
ENCODER = ("transformers", "Qwen3_5Model")
AUTOENCODER = ("diffusers", "AutoencoderKLFlux2")

TRANSFORMER_KEYS: Mapping[str, str] = {
    "layers": "num_layers", "text_layers": "num_refiner_layers", "heads": "num_attention_heads",
    "head_dim": "attention_head_dim", "ffn_dim": "ffn_dim", "channels": "in_channels",
    "text_dim": "joint_attention_dim", "time_dim": "timestep_channels", "rope_axes": "axes_dims_rope",
    "rope_base": "rope_theta", "eps": "eps", "bias": "bias",
}  # fmt: skip
"""Fields of `TransformerConfig` and their keys in transformer/config.json."""

SCHEDULE_KEYS: Mapping[str, str] = {"train_steps": "num_train_timesteps", "shift": "shift"}
"""Fields of `ScheduleConfig` and their keys in scheduler/scheduler_config.json."""

SKIP_KEYS: Mapping[str, str] = {
    "layers": "skip_guidance_layers", "start": "skip_layer_guidance_start", "stop": "skip_layer_guidance_stop",
}  # fmt: skip
"""Fields of `Skip` and their keys in model_index.json, where they may be missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """Architecture of the denoising transformer.

    Attributes:
        layers, text_layers: blocks over the whole sequence, and over the text alone before it.
        heads, head_dim: of attention; the width is their product.
        ffn_dim: of the gated feed-forward.
        channels: of a packed latent row.
        text_dim: of an encoded token.
        time_dim: sinusoids of the timestep.
        rope_axes: rotated numbers of a head for each of the four axes.
        rope_base: longest wavelength over 2 pi.
        eps: of every norm.
        bias: whether linear layers of the blocks over the whole sequence have biases; those of the text always do.
    """

    layers: int
    text_layers: int
    heads: int
    head_dim: int
    ffn_dim: int
    channels: int
    text_dim: int
    time_dim: int
    rope_axes: tuple[int, ...]
    rope_base: float
    eps: float
    bias: bool

    @property
    def dim(self) -> int:
        """Width."""
        return self.heads * self.head_dim

    @classmethod
    def parse(cls, saved: Mapping[str, Any]) -> TransformerConfig:
        """Check the keys and values of transformer/config.json.

        Raises:
            ConfigError: says which key is wrong and what is allowed.
        """
        keys = TRANSFORMER_KEYS
        _only(saved, keys.values())
        sizes = {
            field: integer(saved, keys[field], least=0 if field == "text_layers" else 1)
            for field in (
                "layers", "text_layers", "heads", "head_dim", "ffn_dim", "channels", "text_dim", "time_dim",
            )
        }  # fmt: skip
        if sizes["time_dim"] % 2:
            raise wrong(keys["time_dim"], saved, "an even number")
        axes = saved[keys["rope_axes"]]
        if not _whole_numbers(axes) or len(axes) != 4 or any(n < 2 or n % 2 for n in axes):
            raise wrong(keys["rope_axes"], saved, "four even numbers, at least 2")
        if sum(axes) != sizes["head_dim"]:
            raise wrong(keys["rope_axes"], saved, f"four numbers whose sum is head_dim={sizes['head_dim']}")
        if not isinstance(saved[keys["bias"]], bool):
            raise wrong(keys["bias"], saved, "true or false")
        return cls(
            **sizes,
            rope_axes=tuple(axes),
            rope_base=_positive(saved, keys["rope_base"]),
            eps=_positive(saved, keys["eps"]),
            bias=saved[keys["bias"]],
        )

    def saved(self) -> dict[str, Any]:
        """As in transformer/config.json."""
        found = {key: getattr(self, field) for field, key in TRANSFORMER_KEYS.items()}
        return {**found, TRANSFORMER_KEYS["rope_axes"]: list(self.rope_axes)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """The grid that sigmas are snapped to, and the shift that is served by default."""

    train_steps: int = 1000
    shift: float = 5.0

    @classmethod
    def parse(cls, saved: Mapping[str, Any]) -> ScheduleConfig:
        """Check the keys and values of scheduler/scheduler_config.json; ConfigError says which one is wrong."""
        keys = SCHEDULE_KEYS
        _only(saved, keys.values())
        return cls(
            train_steps=integer(saved, keys["train_steps"], least=1), shift=_positive(saved, keys["shift"])
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """Blocks that the pass without the prompt leaves out at step i of N, while `start <= i / N < stop`."""

    layers: tuple[int, ...] = (22,)
    start: float = 0.01
    stop: float = 1.0

    @classmethod
    def parse(cls, saved: Mapping[str, Any], layers: int) -> Skip:
        """Check what model_index.json says; `layers` is how many there are. ConfigError says what is wrong."""
        default = cls()
        full = {key: getattr(default, field) for field, key in SKIP_KEYS.items()} | dict(saved)
        skipped = full[SKIP_KEYS["layers"]]
        if not _whole_numbers(skipped) or any(not 0 <= layer < layers for layer in skipped):
            raise wrong(SKIP_KEYS["layers"], full, f"a list of blocks in 0..{layers - 1}")
        start, stop = (number(full, SKIP_KEYS[field]) for field in ("start", "stop"))
        return cls(layers=tuple(skipped), start=start, stop=stop)

    def at(self, step: int, steps: int) -> frozenset[int]:
        """What is left out at this step."""
        return frozenset(self.layers) if self.start <= step / steps < self.stop else frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """What this package asks of the autoencoder's config; diffusers checks the rest.

    Attributes:
        latent_channels: of an unpacked latent.
        patch: rows and columns that are packed into one latent row.
        eps: added to the variance of the packed channels.
        widths: channels of the decoder, from full resolution down.
        sample_size: side of the square picture that it was made for.
    """

    latent_channels: int
    patch: tuple[int, int]
    eps: float
    widths: tuple[int, ...]
    sample_size: int

    @property
    def channels(self) -> int:
        """Of a packed row."""
        return self.latent_channels * self.patch[0] * self.patch[1]

    @property
    def scale(self) -> int:
        """Pixels a side of one packed row."""
        return int(2 ** (len(self.widths) - 1)) * self.patch[0]

    @classmethod
    def parse(cls, saved: Mapping[str, Any]) -> DecoderConfig:
        """Check the keys of vae/config.json that matter here; ConfigError says which one is wrong."""
        needed = ("latent_channels", "patch_size", "batch_norm_eps", "block_out_channels", "sample_size")
        if missing := [key for key in needed if key not in saved]:
            raise ConfigError(f"lacks {missing[0]!r}", key=missing[0], found=None, allowed="a value")
        patch = saved["patch_size"]
        if not _whole_numbers(patch) or len(patch) != 2 or patch[0] != patch[1] or patch[0] < 1:
            raise wrong("patch_size", saved, "two equal numbers, at least 1")
        key = (
            "decoder_block_out_channels" if saved.get("decoder_block_out_channels") else "block_out_channels"
        )
        widths = saved[key]
        if not _whole_numbers(widths) or not widths or min(widths) < 1:
            raise wrong(key, saved, "a list of numbers, at least 1")
        return cls(
            latent_channels=integer(saved, "latent_channels", least=1),
            patch=(patch[0], patch[1]),
            eps=_positive(saved, "batch_norm_eps"),
            widths=tuple(widths),
            sample_size=integer(saved, "sample_size", least=1),
        )


def wrong(key: str, saved: Mapping[str, Any], allowed: str) -> ConfigError:
    """The refusal of a value."""
    return ConfigError(f"{key}={saved[key]!r} must be {allowed}", key=key, found=saved[key], allowed=allowed)


def _only(saved: Mapping[str, Any], keys: Any) -> None:
    """Every key is there and none is unknown, but for those that libraries add, which begin with an underscore."""
    wanted = set(keys)
    found = {key for key in saved if not key.startswith("_")}
    if missing := sorted(wanted - found):
        raise ConfigError(f"lacks {missing[0]!r}", key=missing[0], found=None, allowed="a value")
    if unknown := sorted(found - wanted):
        raise ConfigError(
            f"has an unknown key {unknown[0]!r}; known are {sorted(wanted)}",
            key=unknown[0], found=saved[unknown[0]], allowed="nothing",
        )  # fmt: skip


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(n) is int for n in value)


def _positive(saved: Mapping[str, Any], key: str) -> float:
    value = number(saved, key)
    if value <= 0:
        raise wrong(key, saved, "a number above 0")
    return value
