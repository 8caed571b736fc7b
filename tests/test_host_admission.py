"""Games share a device: by memory, by measured time, in batches, and through its failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from worldloop.core.errors import CapacityError, DeviceLostError, DeviceMemoryError
from worldloop.core.types import Controls
from worldloop.engine.contract import Emit
from worldloop.host import LiveGame, WorldHost
from worldloop.loops.model import WorldModel
from worldloop.session.host import GameOptions
from worldloop.testing import tiny_world

PICTURE = np.full((48, 64, 3), 90, np.uint8)
WAIT_S = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_world(tmp_path_factory.mktemp("worlds"))


@contextmanager
def opened(folder: Path, **choices: Any) -> Iterator[WorldHost]:
    host = WorldHost.open(str(folder), dtype="fp32", threads=1, **{"warmup": False, **choices})
    try:
        yield host
    finally:
        host.close()


def begin(host: WorldHost, seed: int = 1) -> LiveGame:
    return host.start(host.encode(PICTURE), options=GameOptions(), seed=seed)


def frames(game: LiveGame, count: int) -> list[Emit]:
    futures: list[Future[Emit]] = [game.submit(Controls()) for _ in range(count)]
    return [future.result(WAIT_S) for future in futures]


def test_a_game_that_no_memory_is_left_for_is_refused_and_fits_later(folder: Path) -> None:
    with opened(folder) as host:
        needs = host.engine.admission.base_bytes / 2**20
    assert 7.5 < needs < 8.5, "the limit of 9 MiB is to hold the weights and a few games"
    with opened(folder, memory_limit_mib=9) as host:
        games: list[LiveGame] = []
        with pytest.raises(
            CapacityError, match=r"this needs 0\.2 MiB .* of 9\.0 MiB are free: it would fit beside"
        ):
            while len(games) < 20:
                games.append(begin(host))
        assert 1 <= len(games) < 10
        games[0].close()
        assert len(frames(begin(host), 3)) == 3


def test_a_game_that_the_device_has_no_time_left_for_is_refused(folder: Path) -> None:
    with opened(folder, rate=1.0, load_limit=1.0) as host:
        frames(begin(host), 4)
        load = host.report().load
        assert 0 < load < 1, "nothing was known of its cost when it began; now it is"
        second = begin(host)
        assert host.report().load > load
        host.engine.admission.load_limit = host.report().load * 1.25
        with pytest.raises(CapacityError, match="of its time left and this needs"):
            begin(host)
        second.close()
        begin(host)


def test_a_host_that_has_warmed_up_knows_what_its_first_game_costs(folder: Path) -> None:
    with opened(folder, rate=1.0, load_limit=1.0, warmup=True) as host:
        begin(host)
        load = host.report().load
        assert load > 0
        host.engine.admission.load_limit = load * 1.5
        with pytest.raises(CapacityError, match="of its time left and this needs"):
            begin(host)


def test_fast_mode_shares_passes_and_exact_mode_never_does(folder: Path) -> None:
    made = {}
    for batching in ("exact", "fast"):
        with opened(folder, batching=batching) as host:
            games = [begin(host, seed) for seed in (1, 2)]
            # The device begins once both have asked.
            gate = threading.Event()
            host.engine.command(gate.wait)
            futures = [[game.submit(Controls()) for _ in range(6)] for game in games]
            gate.set()
            made[batching] = [
                np.concatenate([future.result(WAIT_S).frames for future in mine]).astype(int)
                for mine in futures
            ]
            shared = host.engine.plans - host.engine.batches
            assert (shared > 5) == (batching == "fast")
    for exact, fast in zip(made["exact"], made["fast"], strict=True):
        assert np.abs(exact - fast).max() <= 1


@pytest.mark.parametrize(
    ("error", "seen", "lost"),
    [
        (torch.OutOfMemoryError("planted"), DeviceMemoryError, False),
        (RuntimeError("CUDA error: planted"), DeviceLostError, True),
    ],
    ids=["out of memory", "device lost"],
)
def test_what_a_failing_device_does_to_the_games(
    error: Exception,
    seen: type[Exception],
    lost: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    with opened(folder) as host:
        well, ill = begin(host, 1), begin(host, 2)
        frames(well, 2)
        frames(ill, 2)
        doomed = ill.state.memory  # type: ignore[union-attr]
        run_pass = WorldModel.run_pass

        def fail(self: WorldModel, latent: Any, film: Any, memory: Any, **more: Any) -> Any:
            if memory is doomed:
                raise error
            return run_pass(self, latent, film, memory, **more)

        monkeypatch.setattr(WorldModel, "run_pass", fail)
        with pytest.raises(seen, match="planted"):
            ill.submit(Controls()).result(WAIT_S)
        assert (host.report().lost is not None) == lost
        if lost:
            with pytest.raises(DeviceLostError):
                well.submit(Controls()).result(WAIT_S)
            with pytest.raises(DeviceLostError):
                begin(host)
        else:
            assert len(frames(well, 2)) == 2
            assert len(frames(begin(host), 2)) == 2
    assert "failed" in caplog.text
