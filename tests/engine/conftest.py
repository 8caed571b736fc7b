"""The tiny video and picture models of the engine's gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from worldloop.loops.causal_pictures import CausalPictures
    from worldloop.loops.video_model import VideoModel


@pytest.fixture(scope="session")
def video(one_thread: None) -> VideoModel:
    from worldloop.testing import random_video_model

    return random_video_model()


@pytest.fixture(scope="session")
def picture(one_thread: None) -> CausalPictures:
    from worldloop.testing import random_picture_model

    return random_picture_model(seed=1)
