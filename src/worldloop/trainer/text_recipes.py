"""Named recipes of the models that read text: what makes the meadow's picture model and its video model.

A recipe is plain data. Called by `text_run`, `recipes` and the command line.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from worldloop.models.causal import CausalConfig, vocabulary_of
from worldloop.simulators.captions import every_phrase
from worldloop.trainer.flow import FlowRecipe

Kind = Literal["picture", "video"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRecipe:
    """Everything that makes one checkpoint beside a world whose autoencoder it shares.

    Attributes:
        name: of the checkpoint, which ends in its kind.
        kind: `picture` learns single frames, `video` walks.
        world: whose autoencoder is used: a shipped world's name or a folder.
        start: checkpoint that training begins with; empty begins with random weights. A file name alone is looked for
            in the world's folder.
        seed: first world, and everything that is drawn.
        worlds, held_out: how many to learn from, and to validate on.
        walk: steps of the one walk in each world, for a video model.
        stills: share of a video model's steps that learn pictures, as many cells at once: first frames stay good.
        model: architecture.
        flow: how it is trained.
        grids: (h, w) cells of pictures; the first is the world's own.
        shares: how often each grid is learned.
        window_frames, sink_frames: memory that is served, in latent frames.
        sampler_steps, sampler_shift, solver, guidance: of the sampler that is served.
        fps: pictures a second.
        license, trained_on: written into the checkpoint.
    """

    name: str
    kind: Kind
    model: CausalConfig
    flow: FlowRecipe
    world: str = "meadow"
    start: str = ""
    seed: int = 1
    worlds: int = 100_000
    held_out: int = 1000
    walk: int = 60
    stills: float = 0.0
    grids: tuple[tuple[int, int], ...] = ((6, 10),)
    shares: tuple[float, ...] = (1.0,)
    window_frames: int = 1
    sink_frames: int = 0
    sampler_steps: int = 12
    sampler_shift: float = 1.5
    solver: str = "renoise"
    guidance: float = 2.0
    fps: int = 12
    license: str = "Apache-2.0"
    trained_on: str = "pictures of worldloop's own meadow simulator and their captions"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


VOCABULARY = vocabulary_of(every_phrase())

_PICTURE = TextRecipe(
    name="meadow-picture",
    kind="picture",
    model=CausalConfig.named("embedded", vocabulary=VOCABULARY),
    flow=FlowRecipe(steps=1000, batch=64),
    grids=((6, 10), (6, 6), (8, 8), (8, 12)),
    shares=(0.76, 0.08, 0.08, 0.08),
)

_VIDEO = replace(
    _PICTURE,
    name="meadow-video",
    kind="video",
    start="meadow-picture.safetensors",
    worlds=1500,
    held_out=32,
    stills=0.15,
    flow=FlowRecipe(steps=1600, batch=8, frames=9, warmup=30),
    grids=((6, 10),),
    shares=(1.0,),
    window_frames=4,
    sampler_steps=6,
    sampler_shift=2.0,
    guidance=1.5,
    trained_on="walks in worldloop's own meadow simulator and their captions",
)

_TINY = replace(
    _PICTURE,
    name="tiny-picture",
    model=CausalConfig.named("tiny", vocabulary=VOCABULARY, text_context=1, places=12),
    flow=FlowRecipe(steps=4, batch=3, warmup=2),
    grids=((6, 10), (4, 4)),
    shares=(0.5, 0.5),
    sampler_steps=2,
    trained_on="a few pictures of worldloop's own meadow simulator, for tests",
)

TEXT_RECIPES = {
    "meadow-picture": _PICTURE,
    "meadow-video": _VIDEO,
    "tiny-picture": _TINY,
    "tiny-video": replace(
        _TINY,
        name="tiny-video",
        kind="video",
        start="",
        worlds=3,
        held_out=2,
        walk=12,
        stills=0.5,
        flow=FlowRecipe(steps=4, batch=2, frames=4, warmup=2, own_from=0.0),
        grids=((6, 10),),
        shares=(1.0,),
        window_frames=3,
    ),
}
"""`meadow-picture` makes the shipped world's picture model, `meadow-video` its video model from that; the tiny ones
run the whole pipeline in seconds, beside the autoencoder of the recipe `tiny`."""
