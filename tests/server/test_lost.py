"""A device that is lost stops the process: first the reason where it is asked for, then the end."""

from __future__ import annotations

import math
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from worldloop.core.errors import DeviceLostError
from worldloop.core.settings import Settings
from worldloop.host import WorldHost
from worldloop.picture_host import PictureHost
from worldloop.server import run
from worldloop.session.picture_host import PictureOrder
from worldloop.testing import tiny_picture, tiny_world

WAIT_S = 60


def test_a_lost_device_is_told_and_ends_the_server(
    tmp_path: Path, one_thread: None, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The moment in which the reason is told lasts until it was asked for.
    monkeypatch.setattr(run, "LOST_S", math.inf)
    # It would end this process, and all other tests with it, when its time has come.
    monkeypatch.setattr(run, "_give_up", lambda _status: None)
    folder = tiny_world(tmp_path / "tiny")
    tiny_picture(folder)
    settings = Settings(world=str(folder), port=0, threads=1)
    ready, url, answers = threading.Event(), [], []

    def told(address: str) -> None:
        url.append(address)
        ready.set()

    with closing(WorldHost.open(str(folder), threads=1, warmup=False)) as world:
        pictures = PictureHost.from_settings(settings, world.engine)
        assert pictures is not None

        def die(*args: Any, **more: Any) -> Any:
            raise torch.AcceleratorError("CUDA error: planted")

        def player() -> None:
            ready.wait()
            answers.append(httpx.get(f"{url[0]}/readyz", timeout=WAIT_S))
            monkeypatch.setattr(pictures.model.network, "pass_chunk", die)  # type: ignore[attr-defined]
            own = pictures.facts
            order = PictureOrder(
                prompt="", negative="", size=own.size, seed=0, steps=2, guidance=1.0, shift=own.shift
            )
            with pytest.raises(DeviceLostError):
                pictures.start(order).take().result(WAIT_S)
            answers.append(httpx.get(f"{url[0]}/readyz", timeout=WAIT_S))
            monkeypatch.setattr(run, "LOST_S", 0.0)

        asking = threading.Thread(target=player)
        asking.start()
        with pytest.raises(DeviceLostError, match="planted"):
            run.serve(world, settings, picture_host=pictures, on_ready=told)
        asking.join()

    assert [answer.status_code for answer in answers] == [200, 503]
    assert "planted" in answers[1].json()["reason"]
    assert [record.levelname for record in caplog.records if record.levelname == "ERROR"] == ["ERROR"]
