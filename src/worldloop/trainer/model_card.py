"""The card of a trained world or model: what it is, what it was made from, what may be done with it.

Owns the text. Called by `run` and `text_run` whenever they save a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from worldloop.core.files import file_hash
from worldloop.models.causal import CausalTransformer
from worldloop.models.summaryformer import Summaryformer
from worldloop.models.weights import parameter_count
from worldloop.trainer.recipes import Recipe
from worldloop.trainer.text_recipes import TextRecipe


def model_card(recipe: Recipe, model: Summaryformer, step: int, files: list[Path]) -> str:
    """Markdown; one table of facts, and the files with their hashes."""
    data, world, c = recipe.data, recipe.world, recipe.model
    height, width = recipe.encoder.picture_hw
    facts = {
        "what it is": "a Summaryformer world model and its autoencoder: a start picture and held keys in, video out",
        "pictures": f"{height} x {width}, 4 a latent frame",
        "size": f"{parameter_count(model):,} weights, {c.num_layers} blocks of width {c.dim}, "
        f"X = {c.summary_tokens}, Y = {c.raw_window_frames}, W = {c.summary_window_frames}",
        "trained on": f"{recipe.trained_on}: {data.episodes} walks of {data.steps} steps, seed {data.seed}",
        "training": f"step {step} of {world.steps}, {world.batch} clips of {world.frames} frames a step"
        + (f", begun with the weights of {Path(recipe.start).stem}" if recipe.start else ""),
        "timesteps": ", ".join(str(t) for t in world.timesteps) + f"; {world.cache_mode}",
        "controls": "forward, back, left, right"
        + (", turn" if recipe.yaw else "")
        + (", jump, sprint" if recipe.jump_sprint else ""),
        "licence": recipe.license,
        "made by": f"`worldloop train {recipe.name}`",
        "good for": "playing, tests, and research on small world models; it knows only what it was trained on",
    }
    return _card(recipe.name, facts, files)


def text_card(recipe: TextRecipe, model: CausalTransformer, step: int, files: list[Path]) -> str:
    """The same for a model that reads text."""
    c, flow = recipe.model, recipe.flow
    sizes = ", ".join(f"{16 * h} x {16 * w}" for h, w in recipe.grids)
    made, clips = {
        "picture": ("pictures of the meadow from a line of text", f"{flow.batch} pictures a step"),
        "video": (
            "video of the meadow from a line of text",
            f"{flow.batch} clips of {flow.frames} frames a step",
        ),
    }[recipe.kind]
    facts = {
        "what it is": f"a causal video transformer that makes {made}; its autoencoder is that of {recipe.world}",
        "pictures": sizes + ("" if recipe.kind == "picture" else ", 4 a latent frame"),
        "size": f"{parameter_count(model):,} weights, {c.num_layers} blocks of width {c.dim}, {len(c.vocabulary)} words"
        + ("" if recipe.kind == "picture" else f", a window of {recipe.window_frames} frames"),
        "trained on": recipe.trained_on,
        "training": f"step {step} of {flow.steps}, {clips}"
        + (f", begun with the weights of {Path(recipe.start).stem}" if recipe.start else ""),
        "sampler": f"{recipe.sampler_steps} steps, shift {recipe.sampler_shift:g}, {recipe.solver}, "
        f"guidance {recipe.guidance:g}",
        **({} if recipe.kind == "picture" else {"first frame": "drawn by the picture model beside it"}),
        "words": ", ".join(c.vocabulary),
        "licence": recipe.license,
        "made by": f"`worldloop train {recipe.name}`",
        "good for": "start pictures, tests, and research on small models; it knows only what it was trained on",
    }
    return _card(recipe.name, facts, files)


def _card(name: str, facts: dict[str, str], files: list[Path]) -> str:
    rows = [f"# {name}", "", "| | |", "| --- | --- |"]
    rows += [f"| {fact} | {value} |" for fact, value in facts.items()]
    rows += ["", "| file | SHA-256 |", "| --- | --- |"]
    rows += [f"| `{path.name}` | `{file_hash(path)}` |" for path in files]
    return "\n".join(rows) + "\n"
