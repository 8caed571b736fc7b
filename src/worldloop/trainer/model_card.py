"""The card of a trained world: what it is, what it was made from, what may be done with it.

Owns the text. Called by `run` whenever it saves a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from worldloop.core.files import file_hash
from worldloop.models.summaryformer import Summaryformer
from worldloop.models.weights import parameter_count
from worldloop.trainer.recipes import Recipe


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
    rows = [f"# {recipe.name}", "", "| | |", "| --- | --- |"]
    rows += [f"| {name} | {value} |" for name, value in facts.items()]
    rows += ["", "| file | SHA-256 |", "| --- | --- |"]
    rows += [f"| `{path.name}` | `{file_hash(path)}` |" for path in files]
    return "\n".join(rows) + "\n"
