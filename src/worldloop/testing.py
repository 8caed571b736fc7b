"""Test doubles that anyone may use: random worlds of any size, a player by script, a clock that stands still.

Owns weights that mean nothing and are made in a moment, and playing a loop without an engine. Does not own trained
worlds (`trainer`). Called by tests, by benches and by users who test their own code against a world.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from worldloop.core.clock import ManualClock
from worldloop.core.types import KEYS, Controls
from worldloop.engine.contract import Done, Emit, Idle, Loop
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.model import WorldModel
from worldloop.loops.units import run_unit
from worldloop.loops.video_model import OwnPictures, OwnWords, VideoModel
from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig, LatentStats
from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.models.causal_weights import VideoConfig, save_video
from worldloop.models.compiled import Compile
from worldloop.models.config import FORMAT, parse_config
from worldloop.models.precision import Precision
from worldloop.models.sampling import Schedule, timestep_grid
from worldloop.models.summaryformer import Summaryformer, SummaryformerConfig
from worldloop.models.weights import save_autoencoder, save_checkpoint

__all__ = [
    "ManualClock", "ScriptedPlayer", "play", "random_model", "random_picture_model", "random_video_model",
    "run_unit", "tiny_picture", "tiny_video", "tiny_world",
]  # fmt: skip

SHIFT = 2.0
TINY_GRIDS = ((3, 4), (4, 3), (2, 2), (4, 6))
"""Latent cells of what `random_picture_model` makes, unless told otherwise."""
_STILL = {
    "chunk_frames": 1,
    "window_frames": 1,
    "sink_frames": 0,
    "guidance": 2.0,
    "facts": {"grids": TINY_GRIDS},
}
NetworkT = TypeVar("NetworkT", bound=torch.nn.Module)
WALKING = ("w", "a", "s", "d")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedPlayer:
    """Holds keys by a script that starts over at its end.

    Attributes:
        script: keys that are held while each latent frame is made; the start picture does not count.
    """

    script: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, *script: Iterable[str]) -> ScriptedPlayer:
        """A player from one group of keys a latent frame, such as `of("w", "wd", ())`: letters, or lists of names."""
        return cls(script=tuple(frozenset(keys) for keys in script))

    @classmethod
    def seeded(
        cls, seed: int, *, latents: int = 256, longest: int = 8, keys: Iterable[str] = WALKING
    ) -> ScriptedPlayer:
        """A player who holds one of `keys`, or none, for 1 to `longest` latent frames, then another."""
        draw = random.Random(seed)
        choices = [frozenset[str](), *(frozenset({key}) for key in keys)]
        script: list[frozenset[str]] = []
        held: frozenset[str] | None = None
        while len(script) < latents:
            held = draw.choice([choice for choice in choices if choice != held])
            script += [held] * draw.randint(1, longest)
        return cls(script=tuple(script[:latents]))

    def __post_init__(self) -> None:
        if not self.script:
            raise ValueError("a script needs at least one entry")
        if unknown := frozenset[str]().union(*self.script) - set(KEYS):
            raise ValueError(f"unknown keys {sorted(unknown)}; have {list(KEYS)}")

    def keys(self, latent: int) -> frozenset[str]:
        """What is held while body frame `latent` (from 0) is made."""
        return self.script[latent % len(self.script)]

    def controls(self, latent: int, *, fps: float | None = 12.0) -> Controls:
        """`keys`, as the model takes them."""
        return Controls(pressed=self.keys(latent), fps=fps)


def play(loop: Loop[Any], request: Any, player: ScriptedPlayer, latents: int) -> list[Emit]:
    """Play a session by itself, without an engine: the start picture's chunk and those of `latents` body frames."""
    state = loop.init(request)
    emits: list[Emit] = []
    for latent in range(-1, latents):
        loop.offer(state, Controls() if latent < 0 else player.controls(latent))
        while not isinstance(loop.next(state), Idle | Done):
            emits += run_unit(loop, state)
    return emits


def random_model(
    size: str | SummaryformerConfig = "tiny",
    *,
    seed: int = 0,
    steps: int = 3,
    cache_mode: str = "recache",
    jump_sprint: bool = False,
    precision: Precision = Precision(mode="fp32", decoder=torch.float32),  # noqa: B008 (frozen)
    compile: Compile = Compile(),  # noqa: B008 (frozen)
    device: torch.device | str = "cpu",
    **changes: Any,
) -> WorldModel:
    """A world of random weights in memory, ready to run. The same arguments give the same weights on one build.

    Args:
        size: a named size or a config.
        steps: denoising passes a frame.
        precision, compile: as of `WorldModel`.
        changes: fields of the config that differ, such as `rope_table_len=64`.
    """
    base = SummaryformerConfig.named(size) if isinstance(size, str) else size
    facts = {**base.to_dict(), **changes}
    table = facts.pop("rope_table_len")
    saved = {
        "format": FORMAT,
        "timesteps": list(timestep_grid(steps, SHIFT)),
        "timestep_shift": SHIFT,
        "noise_schedule": Schedule().name,
        "shifted_cosine_ratio": Schedule().ratio,
        "cache_mode": cache_mode,
        "recency": None,
        "profile": "random",
        "jump_sprint": jump_sprint,
        **facts,
    }
    config = parse_config(saved, None, rope_table_len=table)
    place = torch.device(device)
    with _seeded(seed, place):
        network = precision.cast(_without_zeros(Summaryformer(config.model)), place)
        autoencoder, stats = _random_autoencoder(config.model.latent_channels, config.model.latent_hw)
        autoencoder.to(device=place, dtype=precision.decoder).eval().requires_grad_(False)
    return WorldModel.assemble(
        config, network, autoencoder, stats, device=place, precision=precision, compile=compile
    )


def tiny_world(
    folder: Path, *, name: str | None = None, seed: int = 0, step: int = 1, **choices: Any
) -> Path:
    """Write a random checkpoint and its autoencoder into `folder` in the layout that is served; returns the folder.

    Called again with another `name` or `seed`, it adds a checkpoint beside the first for the same autoencoder.

    Args:
        name: file name without suffix; None is `tiny-3r` or `tiny-3nr`, by the choices.
        choices: as of `random_model`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = random_model(seed=seed, **choices)
    config = model.config
    autoencoder = folder / "autoencoder.safetensors"
    if not autoencoder.exists():
        save_autoencoder(
            autoencoder, model.autoencoder, model.stats, {"trained_on": "nothing: random weights"}
        )
    save_checkpoint(
        folder / f"{name or f'tiny-{config.recipe}'}.safetensors",
        model.network,
        timesteps=config.timesteps,
        timestep_shift=config.timestep_shift,
        cache_mode=config.cache_mode,
        profile=config.profile,
        jump_sprint=config.jump_sprint,
        step=step,
        autoencoder=autoencoder,
        trained_on="nothing: random weights",
    )
    return folder


def random_video_model(
    size: str | CausalConfig = "tiny",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **facts: Any,
) -> VideoModel:
    """A video model of random weights in memory, ready to run, in which every input shapes the output.

    Args:
        size: a named size or a config; it needs a vocabulary.
        facts: fields of `VideoConfig`. `tiny` is 3 x 4 cells, chunks of 2 frames, a window of 6 with 1 sink frame.
    """
    small = {
        "latent_hw": (3, 4),
        "chunk_frames": 2,
        "window_frames": 6,
        "sink_frames": 1,
        "steps": 3,
        "fps": 12,
    }
    model = CausalConfig.named(size) if isinstance(size, str) else size
    config = VideoConfig(model=model, **{**small, **facts})
    place = torch.device(device)
    with _seeded(seed, place):
        network = CausalTransformer(model)
        _without_zeros(network)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if (
                    "modulation" in name
                ):  # nearly shut in a fresh network: what attention reads would hardly count
                    parameter.normal_(std=0.6)
                elif name.startswith(("text_embedding", "time_")) and parameter.ndim == 2:
                    parameter.normal_(std=parameter.shape[1] ** -0.5)
        autoencoder, stats = _random_autoencoder(model.channels, config.latent_hw)
        autoencoder.to(device=place, dtype=dtype).eval().requires_grad_(False)
    return VideoModel(
        config=config, network=network.to_serving(dtype, place), pictures=OwnPictures(autoencoder, stats),
        texts=OwnWords(model), device=place, dtype=dtype,
    )  # fmt: skip


def tiny_video(folder: Path, *, name: str = "tiny-video", seed: int = 0, **choices: Any) -> Path:
    """Write a random video checkpoint and, unless there is one, `autoencoder.safetensors`; returns the checkpoint.

    Args:
        name: file name without suffix.
        choices: as of `random_video_model`.
    """
    return _save_video(folder, name, random_video_model(seed=seed, **choices))


def random_picture_model(*, device: torch.device | str = "cpu", **choices: Any) -> CausalPictures:
    """A text-to-picture model of random weights in memory; `tiny` makes the sizes of `TINY_GRIDS`, (3, 4) by itself.

    Args:
        choices: as of `random_video_model`.
    """
    video = random_video_model(device=device, **{**_STILL, **choices})
    assert isinstance(video.pictures, OwnPictures)
    return CausalPictures(
        config=video.config, network=video.network, autoencoder=video.pictures.autoencoder,
        stats=video.pictures.stats, grids=tuple(map(tuple, video.config.facts["grids"])), device=video.device,
        dtype=video.dtype, file_hash="0" * 64, autoencoder_hash="1" * 64,
    )  # fmt: skip


def tiny_picture(folder: Path, *, name: str = "tiny-picture", seed: int = 0, **choices: Any) -> Path:
    """Write a random picture checkpoint and, unless there is one, `autoencoder.safetensors`; returns the checkpoint.

    In a folder of `tiny_world` its pictures of (48, 64) pixels are that world's start pictures.

    Args:
        name: file name without suffix.
        choices: as of `random_video_model`; see `random_picture_model` for what it is without.
    """
    return _save_video(folder, name, random_video_model(seed=seed, **{**_STILL, **choices}))


def _save_video(folder: Path, name: str, model: VideoModel) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    assert isinstance(model.pictures, OwnPictures)
    autoencoder = folder / "autoencoder.safetensors"
    if not autoencoder.exists():
        facts = {"trained_on": "nothing: random weights"}
        save_autoencoder(autoencoder, model.pictures.autoencoder, model.pictures.stats, facts)
    save_video(folder / f"{name}.safetensors", model.network, model.config)
    return folder / f"{name}.safetensors"


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch draws from `seed` and makes tensors on `device`; outside, nothing has changed."""
    devices = [device] if device.type != "cpu" else []
    with torch.random.fork_rng(devices=devices, device_type=device.type), device:
        torch.manual_seed(seed)
        yield


def _without_zeros(network: NetworkT) -> NetworkT:
    """Give the parameters that training starts at zero a small random value, so that every input shapes the output."""
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                fan_in = parameter.shape[-1] if parameter.ndim > 1 else 1
                parameter.normal_(std=(0.5 if parameter.ndim > 1 else 0.02) / fan_in**0.5)
    return network


def _random_autoencoder(channels: int, latent_hw: tuple[int, int]) -> tuple[Autoencoder, LatentStats]:
    model = Autoencoder(AutoencoderConfig(channels=channels, latent_hw=latent_hw))
    with torch.no_grad():
        for layer in (model.enc.out, model.dec.out):
            layer.weight.normal_(std=0.3 / layer.in_features**0.5)
        model.dec.linear.weight.normal_(std=channels**-0.5)
    mean, spread = torch.randn(2, channels) * 0.1, 1.0 + 0.2 * torch.rand(2, channels)
    return model, LatentStats(first_mean=mean[0], first_std=spread[0], rest_mean=mean[1], rest_std=spread[1])
