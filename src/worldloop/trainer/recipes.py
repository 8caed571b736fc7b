"""Named recipes: the data, the sizes and the two training loops of each shipped world, and reading any recipe.

A recipe is plain data. `load_recipe` also reads one from a TOML file. Does not own the recipes of models that read text
(`text_recipes`). Called by `run` and the command line.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from worldloop.core.errors import SettingsError
from worldloop.models.autoencoder import AutoencoderConfig
from worldloop.models.summaryformer import SummaryformerConfig
from worldloop.trainer.autoencoder import AutoencoderRecipe
from worldloop.trainer.text_recipes import TEXT_RECIPES, TextRecipe
from worldloop.trainer.world import WorldRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRecipe:
    """Simulated walks, or recorded ones.

    Attributes:
        simulator: `meadow`, or the folder of a recording.
        episodes, steps: how many walks, how long. Of a recording at most so many, each as long as it is.
        held_out: further walks in other worlds, for validation; the last ones of a recording.
        seed: first world; the players' choices too. Draws the sample that a recording's autoencoder sees.
    """

    simulator: str = "meadow"
    episodes: int = 3000
    steps: int = 120
    held_out: int = 64
    seed: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that makes one checkpoint, weights of the autoencoder included.

    Attributes:
        name: of the world.
        profile, jump_sprint, yaw: what the player can do: a name, and which keys beside W A S D are live.
        timestep_shift: law of the served timesteps; they are `world.timesteps`.
        encode_fps: RGB frames a second of the training data.
        start: checkpoint whose weights and autoencoder training begins with (a path, or a world's name for its first
            one); empty begins with random ones.
        license, trained_on: written into the checkpoint.
    """

    name: str
    data: DataRecipe
    model: SummaryformerConfig
    encoder: AutoencoderConfig
    autoencoder: AutoencoderRecipe
    world: WorldRecipe
    timestep_shift: float = 2.0
    profile: str = "meadow"
    jump_sprint: bool = False
    yaw: bool = False
    encode_fps: int = 12
    start: str = ""
    license: str = "Apache-2.0"
    trained_on: str = "walks in worldloop's own simulator"

    @classmethod
    def load(cls, name_or_file: str) -> Recipe:
        """A named recipe, or one from a TOML file whose tables change a named one (`base = "meadow"`).

        Raises:
            SettingsError: unknown name or key; the message lists what there is.
        """
        recipe = load_recipe(name_or_file)
        if not isinstance(recipe, Recipe):
            raise SettingsError(f"recipe {name_or_file!r} makes a model that reads text, not a world")
        return recipe

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def load_recipe(name_or_file: str) -> Recipe | TextRecipe:
    """`Recipe.load`, and the same for models that read text."""
    named: dict[str, Recipe | TextRecipe] = {**RECIPES, **TEXT_RECIPES}
    if name_or_file in named:
        return named[name_or_file]
    path = Path(name_or_file)
    if path.suffix != ".toml" or not path.is_file():
        raise SettingsError(f"recipe {name_or_file!r} must be one of {sorted(named)} or a .toml file")
    changes = tomllib.loads(path.read_text())
    base = load_recipe(str(changes.pop("base", "meadow")))
    changed: Recipe | TextRecipe = _change(base, changes, path.name)
    return changed


def _change(value: Any, changes: dict[str, Any], where: str) -> Any:
    names = {f.name for f in fields(value)}
    new: dict[str, Any] = {}
    for key, change in changes.items():
        if key not in names:
            raise SettingsError(f"{where}: unknown key {key!r}; have {sorted(names)}")
        old = getattr(value, key)
        if is_dataclass(old):
            new[key] = _change(old, change, f"{where}: {key}")
        else:
            new[key] = _tuples(change)
    return replace(value, **new)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


_MEADOW = Recipe(
    name="meadow",
    data=DataRecipe(),
    model=SummaryformerConfig.named("embedded"),
    encoder=AutoencoderConfig(channels=48, latent_hw=(6, 10)),
    autoencoder=AutoencoderRecipe(),
    world=WorldRecipe(),
    trained_on="walks in worldloop's own meadow simulator",
)

RECIPES = {
    "meadow": _MEADOW,
    "meadow-fast": replace(
        _MEADOW,
        name="meadow-fast",
        start="meadow",
        data=replace(_MEADOW.data, seed=7001),
        world=replace(
            _MEADOW.world,
            cache_mode="last_step_writes",
            steps=240,
            warmup=20,
            decay=0.9,
            muon_rate=0.01,
            adam_rate=5e-4,
            own_from=0.1,
            timestep_shares=(0.5, 0.25, 0.25),
        ),
    ),
    "tiny": Recipe(
        name="tiny",
        data=DataRecipe(episodes=8, steps=30, held_out=4),
        model=SummaryformerConfig.named("tiny", latent_channels=8, latent_hw=(6, 10), grid_embedding=True),
        encoder=AutoencoderConfig(channels=8, latent_hw=(6, 10), encoder_hidden=8, decoder_hidden=16),
        autoencoder=AutoencoderRecipe(steps=4, batch=2),
        world=WorldRecipe(steps=4, batch=2, frames=8, warmup=2),
        trained_on="a few walks in worldloop's own meadow simulator, for tests",
    ),
}
"""`meadow` makes the shipped world, `meadow-fast` one without the clean pass from it; `tiny` runs the whole
pipeline in seconds."""
