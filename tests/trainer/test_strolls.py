"""Strolls: people turn or stop before what they cannot walk on, and captions say where they want to go."""

from __future__ import annotations

import numpy as np
import torch

from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig
from worldloop.simulators.captions import phrases, walk
from worldloop.simulators.meadow import VIEW, WALKER_CELL, VectorMeadow
from worldloop.simulators.patches import OFFSETS
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.datasets import LatentWalks
from worldloop.trainer.stills import Scenes, StillCodes
from worldloop.trainer.strolls import StrollClips, record_strolls

STROLLS = record_strolls(range(1, 9), 30, seed=3)


def test_who_is_stopped_stays_where_he_is() -> None:
    worlds = VectorMeadow(range(1, 9))
    before, stops, ahead = worlds.positions(), 0, OFFSETS + np.array(WALKER_CELL)
    for step in range(1, 31):
        worlds.step_indices(STROLLS.walks.actions[:, step])
        after = worlds.positions()
        ways, views = STROLLS.ways[:, step], STROLLS.windows[:, step - 1]
        solid = SOLID[views[np.arange(8), ahead[ways, 0], ahead[ways, 1]]]
        np.testing.assert_array_equal(after - before, OFFSETS[np.where(solid, 0, ways)])
        stops += int(solid.sum())
        np.testing.assert_array_equal(worlds.windows(), STROLLS.windows[:, step])
        before = after
    assert 0.05 < stops / (8 * 30) < 0.3, "some walk against what is solid, and most turn"


def test_strollers_go_on() -> None:
    ways = STROLLS.ways[:, 1:]
    held = (STROLLS.walks.actions[:, 1:, :2] != 0).any(2)
    assert 0.7 < (ways > 0).mean() < 0.99
    np.testing.assert_array_equal(ways > 0, held)
    assert (ways[:, 1:] == ways[:, :-1]).mean() > 0.6
    assert not SOLID[STROLLS.windows[(slice(None), slice(None), *WALKER_CELL)]].any()
    assert set(np.unique(ways)) == {0, 1, 2, 3, 4}
    again = record_strolls(range(1, 9), 30, seed=3)
    np.testing.assert_array_equal(again.ways, STROLLS.ways)
    assert not np.array_equal(record_strolls(range(1, 9), 30, seed=4).ways, STROLLS.ways)


def test_clips_have_their_own_captions() -> None:
    torch.manual_seed(0)
    model = Autoencoder(AutoencoderConfig(channels=8, latent_hw=VIEW, encoder_hidden=8, decoder_hidden=8))
    stats = LatentWalks(STROLLS.walks, model.requires_grad_(False)).stats
    made = StrollClips(STROLLS, model, stats)
    latents, told = made.clips(5, 7, np.random.default_rng(0))
    assert latents.shape == (5, 7, 8, *VIEW)
    # The same draws by hand: a picture at rest of the view at first, the latents of that stretch, the way from there.
    rng = np.random.default_rng(0)
    episodes, starts = rng.integers(0, 8, 5), rng.integers(0, 31 - 7 + 1, 5)
    windows, facings = STROLLS.windows[episodes, starts], rng.integers(0, 4, 5)
    walks = LatentWalks(STROLLS.walks, model, stats)
    assert torch.equal(
        latents[:, 0], StillCodes(model, stats).latents(Scenes(windows=windows, facings=facings))
    )
    assert len(set(facings.tolist())) > 1
    for clip, window, episode, start, says in zip(latents, windows, episodes, starts, told, strict=True):
        rest = torch.from_numpy(walks.body(episode, start + 1, start + 6))
        assert torch.equal(clip[1:].flatten(2).transpose(1, 2), rest)
        ways = STROLLS.ways[episode, start + 1 : start + 7].tolist()
        assert says == [*phrases(window, WALKER_CELL), walk(ways, least=1)]
