"""One random tiny world in memory, and requests for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from worldloop.loops.model import WorldModel
from worldloop.loops.world import WorldRequest
from worldloop.testing import random_model

Ask = Callable[..., WorldRequest]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> WorldModel:
    return random_model("tiny")


@pytest.fixture(scope="session")
def ask(model: WorldModel) -> Ask:
    """A request with a start picture of random latents, of the tiny world's shape."""
    generator = torch.Generator().manual_seed(7)
    latent = torch.randn(1, *model.latent_shape, generator=generator)

    def make(seed: int = 1, **choices: object) -> WorldRequest:
        return WorldRequest(latent=latent, seed=seed, **choices)  # type: ignore[arg-type]

    return make
