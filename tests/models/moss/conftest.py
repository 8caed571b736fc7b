"""One tiny checkpoint for all tests of the folder, and what is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worldloop.loops.moss_pictures import MossPictures
from worldloop.testing_moss import tiny_moss


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_moss(tmp_path_factory.mktemp("moss"))


@pytest.fixture(scope="session")
def pictures(checkpoint: Path, one_thread: None) -> MossPictures:
    return MossPictures.load(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
