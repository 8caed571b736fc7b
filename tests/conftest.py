"""What several folders of tests share: a random tiny world, requests for it, and scripts by path."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from worldloop.loops.model import WorldModel

Load = Callable[[Path], ModuleType]


@pytest.fixture(scope="session")
def load_script() -> Load:
    """Imports a file that is in no package, such as an example."""

    def load(path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


# torch is imported inside the fixtures: most tests need none of it.
@pytest.fixture(scope="session")
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model(one_thread: None) -> WorldModel:
    """A random tiny world in memory."""
    from worldloop.testing import random_model

    return random_model("tiny")


@pytest.fixture(scope="session")
def ask(model: WorldModel) -> Callable[..., Any]:
    """A request with a start picture of random latents, of the tiny world's shape."""
    import torch

    from worldloop.loops.world import WorldRequest

    generator = torch.Generator().manual_seed(7)
    latent = torch.randn(1, *model.latent_shape, generator=generator)

    def make(seed: int = 1, **choices: Any) -> WorldRequest:
        return WorldRequest(latent=latent, seed=seed, **choices)

    return make
