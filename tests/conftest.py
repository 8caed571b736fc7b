"""What several folders of tests share: a random tiny world, requests for it, a picture host by script, and files."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.core.errors import DeviceLostError, SessionEndedError
from worldloop.session.picture_host import Picture, PictureFacts, PictureOrder, PictureTooLargeError, Step

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


@pytest.fixture(autouse=True)
def one_thread_again() -> Iterator[None]:
    """A command that took every core leaves them to no later test, whose bytes and time would be this machine's."""
    yield
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() != 1:
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


class ScriptedPicture:
    """A picture in the making that goes one pass further at each `step`; by itself unless its host is `held`."""

    def __init__(self, host: ScriptedPictures, order: PictureOrder) -> None:
        self.host, self.order = host, order
        self.done = 0
        self.closed = False
        self.ended = threading.Event()
        self.taker: Future[Step | Picture] | None = None

    @property
    def asked(self) -> bool:
        """Whether somebody waits for news."""
        return self.taker is not None and not self.taker.done()

    def take(self) -> Future[Step | Picture]:
        self.taker = Future()
        if self.closed:
            self.taker.set_exception(SessionEndedError("closed"))
        elif not self.host.held:
            self.step()
        return self.taker

    def step(self) -> None:
        assert self.taker is not None
        order = self.order
        error = self.host.script.pop((order.seed, self.done), None)
        if error is not None:
            if isinstance(error, DeviceLostError):
                self.host.lost = str(error)
            self.taker.set_exception(error)
        elif self.done < order.steps:
            self.done += 1
            shown = self.done in [
                round(order.steps * (k + 1) / (order.previews + 1)) for k in range(order.previews)
            ]
            self.taker.set_result(
                Step(done=self.done, steps=order.steps, preview=self.pixels() // 2 if shown else None)
            )
        else:
            self.taker.set_result(
                Picture(
                    pixels=self.pixels(),
                    order=order,
                    steps=order.steps,
                    noise_hash="0" * 64,
                    pixel_hash=hashlib.sha256(self.pixels().tobytes()).hexdigest(),
                    model_hash="1" * 64,
                    device_s={"denoise": 0.5, "decode": 0.25},
                )
            )

    def pixels(self) -> NDArray[np.uint8]:
        source = repr(replace(self.order, previews=0)).encode()
        seed = int.from_bytes(hashlib.sha256(source).digest()[:4])
        return np.random.default_rng(seed).integers(0, 256, (*self.order.size, 3), np.uint8)

    def close(self) -> None:
        self.closed = True
        self.ended.set()
        if self.asked:
            assert self.taker is not None
            self.taker.set_exception(SessionEndedError("closed"))


class ScriptedPictures:
    """A picture host without a device: `per_pass` seconds a pass; sizes over `fits` pixels do not fit.

    `script` maps (seed, passes done) to what the next pass fails with; `refuse` is what `start` raises.
    """

    machine: Mapping[str, Any] = {"device": "none"}

    def __init__(self, **facts: Any) -> None:
        known: dict[str, Any] = {
            "model": "scripted-picture", "size": (32, 48), "sizes": None, "multiple": 16, "max_pixels": 256 * 256,
            "steps": 4, "guidance": 3.0, "shift": 5.0, "steps_max": 50, "prompt_max": 100,
        }  # fmt: skip
        self.facts = PictureFacts(**{**known, **facts})
        self.held = False
        self.fits = 128 * 128
        self.per_pass: float | None = 0.5
        self.lost: str | None = None
        self.script: dict[tuple[int, int], Exception] = {}
        self.refuse: Exception | None = None
        self.jobs: list[ScriptedPicture] = []

    @property
    def orders(self) -> list[PictureOrder]:
        return [job.order for job in self.jobs]

    def admit(self, size: tuple[int, int]) -> None:
        if size[0] * size[1] > self.fits:
            raise PictureTooLargeError(
                f"{size[1]}x{size[0]} does not fit: the largest is 128x128", (128, 128)
            )

    def start(self, order: PictureOrder) -> ScriptedPicture:
        if self.refuse is not None:
            raise self.refuse
        if self.lost is not None:
            raise DeviceLostError(self.lost)
        self.jobs.append(ScriptedPicture(self, order))
        return self.jobs[-1]

    def seconds_left(self, order: PictureOrder, done: int = 0) -> float | None:
        return None if self.per_pass is None else self.per_pass * (order.steps - done)


@pytest.fixture
def scripted_pictures() -> type[ScriptedPictures]:
    return ScriptedPictures
