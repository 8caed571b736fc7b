"""Pictures with captions: places, latents that are the encoder's, and the walker."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig, LatentStats
from worldloop.simulators.meadow import VIEW, WALKER_CELL, Meadow
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.stills import Scenes, StillCodes, scenes


@pytest.fixture
def coder() -> tuple[Autoencoder, LatentStats]:
    torch.manual_seed(0)
    model = Autoencoder(AutoencoderConfig(channels=8, latent_hw=VIEW, encoder_hidden=8, decoder_hidden=8))
    mean, std = torch.randn(8), 1 + torch.rand(8)
    return model.requires_grad_(False), LatentStats(
        first_mean=mean, first_std=std, rest_mean=mean, rest_std=std
    )


def test_latents_are_those_of_the_drawn_picture(coder: tuple[Autoencoder, LatentStats]) -> None:
    autoencoder, stats = coder
    world = Meadow(5)
    picture = world.step((0.0,) * 5)[-1]
    drawn = Scenes(windows=world.window()[None], facings=np.array([1]))
    assert drawn.walker == WALKER_CELL
    ours = StillCodes(autoencoder, stats).latents(drawn)[0]
    theirs = stats.gaussianise(autoencoder.encode_first(torch.from_numpy(picture)[None])[0], first=True)
    assert (ours - theirs[0].T.view(8, *VIEW)).abs().max() < 1e-4
    other = StillCodes(autoencoder, stats).latents(Scenes(windows=drawn.windows, facings=np.array([0])))[0]
    assert (ours - other).abs()[:, 3, 5].max() > 0.1, "another facing"
    assert torch.equal(ours[:, :3], other[:, :3])


@pytest.mark.parametrize("grid", [VIEW, (4, 7)])
def test_walkers_stand_where_they_can(grid: tuple[int, int]) -> None:
    views = scenes(40, grid, np.random.default_rng(0), first_world=1, worlds=50)
    assert views.windows.shape == (40, *grid)
    assert not SOLID[views.windows[:, grid[0] // 2, grid[1] // 2]].any()
    assert set(views.facings) == {0, 1, 2, 3}
    assert len({view.tobytes() for view in views.windows}) == 40
    again = scenes(40, grid, np.random.default_rng(0), first_world=1, worlds=50)
    assert np.array_equal(views.windows, again.windows)


def test_varied_places_show_more_kinds() -> None:
    kinds = [
        np.mean([len(np.unique(view)) for view in scenes(60, VIEW, np.random.default_rng(0), first_world=1,
                                                         worlds=50, varied=share).windows])
        for share in (0.0, 1.0)
    ]  # fmt: skip
    assert kinds[1] > kinds[0] + 0.5
