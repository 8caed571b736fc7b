"""The game before the first player's: how long it is, what it says of its times, and frames that compile again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch

from worldloop.loops.model import WorldModel
from worldloop.loops.warmup import WarmUp, warm_up
from worldloop.models.compiled import Compile
from worldloop.testing import random_model

WINDOW = 5


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> WorldModel:
    """A model that believes that it is compiled."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    return random_model(compile=Compile(network="default"))


def clock(*seconds: float) -> Callable[[], float]:
    """Time that passes by these amounts, one a frame."""

    def ticks() -> Iterator[float]:
        now = 0.0
        for each in seconds:
            yield now
            now += each
            yield now

    return ticks().__next__


def test_a_compiled_model_fills_its_window_first(compiled: WorldModel) -> None:
    result = warm_up(compiled, frames=3)

    assert (len(result.seconds), result.fill) == (WINDOW + 3, WINDOW)
    assert result.steady == min(result.seconds[WINDOW:])


def test_what_settled_frames_cost_is_told_unit_by_unit(model: WorldModel) -> None:
    told: list[str] = []

    warm_up(model, frames=5, seen=lambda work, seconds: told.append(work.op) if seconds > 0 else None)

    assert told == ["denoise", "denoise", "denoise", "decode", "write_memory"] * 2


def test_what_is_not_compiled_plays_its_frames_only(model: WorldModel) -> None:
    result = warm_up(model, frames=2)

    assert (len(result.seconds), result.fill) == (2, 0)
    assert result.filling is None


def test_times_are_told_in_one_line(compiled: WorldModel, caplog: pytest.LogCaptureFixture) -> None:
    times = clock(9.0, 0.5, 0.4, 0.03, 0.05, 0.025, 0.02, 0.03)
    with caplog.at_level(logging.INFO, "worldloop"):
        result = warm_up(compiled, frames=3, clock=times)

    (record,) = [r for r in caplog.records if r.message == "warmup.done"]
    assert record.levelno == logging.INFO
    assert record.fields == {
        "compile": "default", "compile_decoder": "off", "frames": 8, "first_s": 9.0, "fill_ms": "30.0..50.0",
        "steady_ms": 20.0, "latents_per_s": 50.0,
    }  # fmt: skip
    assert result.recompiled == ()


def test_a_slow_settled_frame_is_named(model: WorldModel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "worldloop"):
        result = warm_up(model, frames=6, clock=clock(30.0, 5.0, 5.0, 0.1, 2.5, 0.1))

    (record,) = [r for r in caplog.records if r.message == "warmup.done"]
    assert result.recompiled == (5,)
    assert record.levelno == logging.WARNING
    assert record.fields["probably_compiled_again_in_frames"] == "5"


def test_the_game_ends_before_the_rotary_table() -> None:
    for mode in ("recache", "last_step_writes"):
        model = random_model(rope_table_len=9, cache_mode=mode)
        assert len(warm_up(model, frames=20).seconds) == 7


def test_no_frame_is_refused(model: WorldModel) -> None:
    with pytest.raises(ValueError, match="frames=0 must be at least 1"):
        warm_up(model, frames=0)


def test_settled_frames_are_those_after_the_third() -> None:
    result = WarmUp(seconds=(9.0, 8.0, 7.0, 0.4, 0.6, 0.5, 0.2), fill=6)

    assert result.first == 9.0
    assert result.filling == (0.4, 0.6)
    assert (result.steady, result.ceiling) == (0.2, 5.0)
