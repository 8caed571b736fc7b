"""The focus region of a start picture: which cells are marked as the subject to hold.

Owns the served default and the check of a player's own. Does not own the learned marker (`summaryformer`) or its wire
form (`wire.forms`). Called by `host`.
"""

from __future__ import annotations

from typing import Any

import torch

from worldloop.loops.model import WorldModel

COVERAGE = 0.20
TRAINED = (0.10, 0.30)
"""Shares of the grid that regions covered in training."""

Choice = str | tuple[tuple[bool, ...], ...] | None
"""None is the served default, "none" no region, else rows of booleans `[h][w]`."""


def region(model: WorldModel, choice: Choice) -> torch.Tensor | None:
    """Booleans `[N]` on the model's device, or None; ValueError when the model has no region or the grid is another."""
    grid = model.config.model.latent_hw
    if choice == "none" or (choice is None and not model.focus):
        return None
    if choice is None:
        return centred_diamond(grid, COVERAGE).flatten().to(model.device)
    if not model.focus:
        raise ValueError("focus_mask: this checkpoint was trained without a focus region; send '' or 'none'")
    cells = torch.tensor(choice, dtype=torch.bool)
    if tuple(cells.shape) != grid:
        raise ValueError(f"focus_mask is {tuple(cells.shape)} cells; {grid} are needed")
    return cells.flatten().to(model.device)


def answer(model: WorldModel, choice: Choice, cells: torch.Tensor | None) -> dict[str, Any]:
    """The `focus` object of the `POST /z0` answer."""
    tokens = 0 if cells is None else int(cells.sum())
    return {
        "mode": "none" if cells is None else "diamond" if choice is None else "custom",
        "tokens": tokens,
        "grid": None if cells is None else list(model.config.model.latent_hw),
        "coverage": tokens / model.config.model.raw_tokens,
    }


def facts(model: WorldModel) -> dict[str, Any]:
    """The `focus` object of `GET /models`."""
    return {
        "grid": list(model.config.model.latent_hw),
        "custom_supported": True,
        "trained": model.focus,
        "default": "diamond" if model.focus else "none",
        "default_coverage": COVERAGE,
        "coverage_trained": list(TRAINED),
    }


def centred_diamond(grid: tuple[int, int], coverage: float) -> torch.Tensor:
    """Booleans `[h, w]`: the cells nearest to the centre in scaled city-block distance, `coverage` of the grid."""
    height, width = grid
    row = ((torch.arange(height) + 0.5) / height - 0.5).abs()
    column = ((torch.arange(width) + 0.5) / width - 0.5).abs()
    distance = (row[:, None] + column[None, :]).flatten()
    nearest = torch.argsort(distance, stable=True)[: round(coverage * height * width)]
    cells = torch.zeros(height * width, dtype=torch.bool)
    cells[nearest] = True
    return cells.view(height, width)
