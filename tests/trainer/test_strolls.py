"""Strolls: people turn before what they cannot walk on, and captions say where they really went."""

from __future__ import annotations

import numpy as np
import torch

from worldloop.models.autoencoder import Autoencoder, AutoencoderConfig
from worldloop.simulators.captions import phrases, walk
from worldloop.simulators.meadow import VIEW, WALKER_CELL, VectorMeadow
from worldloop.simulators.patches import OFFSETS
from worldloop.simulators.tiles import SOLID
from worldloop.trainer.datasets import LatentWalks
from worldloop.trainer.strolls import StrollClips, record_strolls

STROLLS = record_strolls(range(1, 9), 30, seed=3)


def test_directions_are_what_happened() -> None:
    worlds = VectorMeadow(range(1, 9))
    before = worlds.positions()
    for step in range(1, 31):
        worlds.step_indices(STROLLS.walks.actions[:, step])
        after = worlds.positions()
        np.testing.assert_array_equal(after - before, OFFSETS[STROLLS.directions[:, step]])
        np.testing.assert_array_equal(worlds.windows(), STROLLS.windows[:, step])
        before = after


def test_strollers_go_on_and_seldom_bump() -> None:
    ways = STROLLS.directions[:, 1:]
    held = (STROLLS.walks.actions[:, 1:, :2] != 0).any(2)
    assert 0.7 < (ways > 0).mean() < 0.99
    assert ((ways == 0) & held).mean() < 0.05, "bumps"
    assert (ways[:, 1:] == ways[:, :-1]).mean() > 0.6
    assert not SOLID[STROLLS.windows[(slice(None), slice(None), *WALKER_CELL)]].any()
    assert set(np.unique(ways)) == {0, 1, 2, 3, 4}
    again = record_strolls(range(1, 9), 30, seed=3)
    np.testing.assert_array_equal(again.directions, STROLLS.directions)
    assert not np.array_equal(record_strolls(range(1, 9), 30, seed=4).directions, STROLLS.directions)


def test_clips_have_their_own_captions() -> None:
    torch.manual_seed(0)
    model = Autoencoder(AutoencoderConfig(channels=8, latent_hw=VIEW, encoder_hidden=8, decoder_hidden=8))
    stats = LatentWalks(STROLLS.walks, model.requires_grad_(False)).stats
    made = StrollClips(STROLLS, model, stats)
    latents, told = made.clips(5, 7, np.random.default_rng(0))
    assert latents.shape == (5, 7, 8, *VIEW)
    # The same draws by hand: the latents of that stretch, the view at its first frame, the way from there.
    rng = np.random.default_rng(0)
    episodes, starts = rng.integers(0, 8, 5), rng.integers(0, 31 - 7 + 1, 5)
    walks = LatentWalks(STROLLS.walks, model, stats)
    for clip, episode, start, says in zip(latents, episodes, starts, told, strict=True):
        first = torch.from_numpy(walks.start(episode, start))
        assert torch.equal(clip[0].flatten(1).T, first)
        rest = torch.from_numpy(walks.body(episode, start + 1, start + 6))
        assert torch.equal(clip[1:].flatten(2).transpose(1, 2), rest)
        ways = STROLLS.directions[episode, start + 1 : start + 7].tolist()
        assert says == [*phrases(STROLLS.windows[episode, start], WALKER_CELL), walk(ways)]
