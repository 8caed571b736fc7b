"""Clocking of frames and counting of their work."""

from __future__ import annotations

import itertools

import pytest
import torch

from worldloop.loops.model import WorldModel
from worldloop.loops.timing import FrameWork, steady_session, time_frames
from worldloop.loops.world import WorldLoop
from worldloop.models.precision import Precision
from worldloop.testing import random_model


def test_a_steady_session_has_a_full_memory_and_can_go_on(model: WorldModel) -> None:
    loop = WorldLoop(model)
    state = steady_session(loop)
    end = state.memory.end
    state.memory.advance()

    assert end == state.memory.end == model.config.model.memory.capacity
    assert state.frame > model.config.model.summary_window_frames
    assert state.step == 0


def test_every_unit_of_a_frame_is_clocked(model: WorldModel) -> None:
    ticks = itertools.count()

    times = time_frames(model, frames=2, clock=lambda: float(next(ticks)))

    assert times.seconds == ({"denoise": 3.0, "decode": 1.0, "write_memory": 1.0},) * 2
    assert times.encode_s == 1.0
    assert times.median_ms() == 5000
    assert times.median_ms("denoise", "write_memory") == 4000
    assert times.keys == 76


def test_no_frames_is_refused(model: WorldModel) -> None:
    with pytest.raises(ValueError, match="frames=0 must be at least 1"):
        time_frames(model, frames=0)


def test_the_work_of_a_frame_follows_the_written_formula() -> None:
    model = random_model(focus_region=False)
    work = FrameWork.of(model, keys=76)
    # L 2, R 16, D 128, F 192, C 8, N 12, E 76, S 128, by hand.
    trunk = 2 * 16 * (4 * 128**2 + 3 * 128 * 192 + 2 * 128 * 76) + 2 * 128 * 8 * 12
    film = 2 * (128 + 1) * (2 * 6 * 128 + 2 * 128)
    numbers = 2 * ((128 + 1) * 128 + (128 + 1) * 128)
    rest = (5 + 1) * 128 + (128 + 1) * 128 + 2 * 2 * 128

    assert work.passes == 4
    assert work.pass_operations == 4 * (trunk + film + numbers + rest)
    assert work.decode_bytes == 4 * sum(p.numel() for p in model.autoencoder.dec.parameters())


def test_a_checkpoint_that_writes_with_its_last_step_saves_a_pass() -> None:
    assert FrameWork.of(random_model(cache_mode="last_step_writes"), 76).passes == 3


def test_half_the_format_is_half_the_bytes(model: WorldModel) -> None:
    half = FrameWork.of(random_model(precision=Precision(mode="bf16", decoder=torch.bfloat16)), 76)
    whole = FrameWork.of(model, 76)

    assert half.decode_bytes * 2 == whole.decode_bytes
    assert whole.pass_bytes / 2 < half.pass_bytes < whole.pass_bytes, "the conditioning stays float32"
