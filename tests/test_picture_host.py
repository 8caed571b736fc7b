"""Pictures on a device: who fits, what a failure costs the others, and the same bytes beside anything."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.core.errors import (
    CapacityError,
    DeviceLostError,
    DeviceMemoryError,
    InvalidInputError,
    SessionEndedError,
)
from worldloop.core.types import Controls
from worldloop.engine.admission import Admission, Share
from worldloop.engine.engine import Engine
from worldloop.host import WorldHost
from worldloop.loops.causal_pictures import CausalPictures
from worldloop.loops.failures import classify
from worldloop.loops.picture_model import PHASES, Phase, PhaseBytes, Size
from worldloop.picture_host import PROBE_SHRINK, PictureHost, PictureJob
from worldloop.session.host import GameOptions
from worldloop.session.picture_host import Picture, PictureOrder, PictureTooLargeError, Step
from worldloop.testing import random_picture_model, tiny_picture, tiny_world

SIZES = ((48, 64), (64, 48), (32, 32), (64, 96))
MIB = 2**20


class Faulty:
    """A picture model with stated bytes and planted faults; else another one.

    Attributes:
        faults: raised by the pass of that number, once.
        needs: by pixels, when its bytes are made up.
    """

    def __init__(self, model: CausalPictures, *, needs: Any = None, sizes: Any = SIZES) -> None:
        self._model, self._needs, self.sizes = model, needs, sizes
        self.faults: dict[int, BaseException] = {}
        self.passes, self.max_pixels = 0, 256 * 256
        self.placed: list[frozenset[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def bytes_of(self, size: Size) -> Mapping[Phase, PhaseBytes]:
        return self._model.bytes_of(size) if self._needs is None else self._needs(size[0] * size[1])

    def place(self, phases: frozenset[Phase]) -> None:
        self.placed.append(phases)

    def predict(self, *args: Any, **more: Any) -> Tensor:
        self.passes += 1
        if (fault := self.faults.pop(self.passes, None)) is not None:
            raise fault
        return self._model.predict(*args, **more)


def made_up(pixels: int) -> dict[Phase, PhaseBytes]:
    """Weights of 10, 20 and 5 MiB; a decode that grows fast: 16 MiB for 64 x 64."""
    return {
        "encode": PhaseBytes(weights=10 * MIB, scratch=MIB),
        "denoise": PhaseBytes(weights=20 * MIB, scratch=pixels * 1024),
        "decode": PhaseBytes(weights=5 * MIB, scratch=pixels * 4096),
    }


@pytest.fixture(scope="module")
def model(one_thread: None) -> CausalPictures:
    return random_picture_model()


@pytest.fixture(scope="module")
def pictures(model: CausalPictures) -> Iterator[PictureHost]:
    with closing(Engine()) as engine:
        yield PictureHost(engine, model, model_id="tiny")


def order(**wishes: Any) -> PictureOrder:
    own = {
        "prompt": "a lake", "negative": "", "size": (48, 64), "seed": 3, "steps": 3, "guidance": 2.0, "shift": 5.0,
    }  # fmt: skip
    return PictureOrder(**{**own, **wishes})


def finished(job: PictureJob) -> Picture:
    while not isinstance(news := job.take().result(60), Picture):
        assert isinstance(news, Step)
    return news


def make(host: PictureHost, **wishes: Any) -> bytes:
    return finished(host.start(order(**wishes))).pixels.tobytes()


# -- a picture ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("negative", ["", "walk"])
def test_the_same_order_gives_the_same_bytes(pictures: PictureHost, size: Size, negative: str) -> None:
    first, second = (finished(pictures.start(order(size=size, negative=negative))) for _ in range(2))

    assert np.array_equal(first.pixels, second.pixels)
    assert (first.pixel_hash, first.noise_hash) == (second.pixel_hash, second.noise_hash)
    assert first.pixels.shape == (*size, 3)
    assert first.model_hash == pictures.model.file_hash
    assert set(first.device_s) == set(PHASES)
    assert all(seconds > 0 for phase, seconds in first.device_s.items() if phase != "encode")
    assert first.steps == 3


def test_everything_in_an_order_shapes_it(pictures: PictureHost) -> None:
    wishes = (
        {}, {"prompt": "walk in the meadow"}, {"negative": "walk"}, {"seed": 4}, {"steps": 4}, {"guidance": 3.0},
        {"shift": 1.0}, {"size": (64, 48)},
    )  # fmt: skip
    made = [make(pictures, **wish) for wish in wishes]

    assert len({*made}) == len(wishes)
    assert make(pictures, previews=2) == made[0], "but not the previews"


def test_news_come_step_by_step(pictures: PictureHost) -> None:
    job = pictures.start(order(steps=4, previews=1))
    news = [job.take().result(60) for _ in range(5)]

    assert [each.done for each in news[:-1]] == [1, 2, 3, 4]  # type: ignore[union-attr]
    assert {each.steps for each in news} == {4}
    assert [each.preview is not None for each in news[:-1]] == [False, True, False, False]  # type: ignore[union-attr]
    assert isinstance(news[-1], Picture)


def test_at_once_in_turn_and_alone_are_the_same(pictures: PictureHost) -> None:
    wishes = [{"size": size, "seed": seed} for seed, size in enumerate(SIZES)]
    alone = [make(pictures, **wish) for wish in wishes]

    together = [finished(job) for job in [pictures.start(order(**wish)) for wish in wishes]]

    assert [each.pixels.tobytes() for each in together] == alone
    assert len({*alone}) == 4


def test_beside_a_game_both_are_what_they_are_alone(tmp_path: Path, one_thread: None) -> None:
    folder = tiny_world(tmp_path / "tiny")
    path = tiny_picture(folder)
    start = np.full((48, 64, 3), 90, np.uint8)

    def play(world: WorldHost, meanwhile: Callable[[], None]) -> list[bytes]:
        game = world.start(world.encode(start), options=GameOptions(), seed=1)
        frames = []
        for _ in range(4):
            asked = game.submit(Controls(pressed=frozenset("w"), fps=12.0))
            meanwhile()
            frames.append(asked.result(60).frames.tobytes())
        game.close()
        return frames

    with closing(WorldHost.open(str(folder), threads=1, warmup=False)) as world:
        host = PictureHost.load(world.engine, path, device=torch.device("cpu"))
        alone, game = make(host), play(world, lambda: None)
        made: list[PictureJob] = []
        beside = play(world, lambda: made.append(host.start(order())))

        assert beside == game
        assert [finished(job).pixels.tobytes() for job in made] == [alone] * 4


def test_closing_ends_it(pictures: PictureHost) -> None:
    job = pictures.start(order(steps=100))
    job.take().result(60)

    job.close()
    job.close()

    with pytest.raises(SessionEndedError, match="cancelled"):
        finished(job)
    assert pictures.engine.sessions == 0


def test_time_left_is_known_once_one_was_made(model: CausalPictures) -> None:
    with closing(Engine()) as engine:
        fresh = PictureHost(engine, model, model_id="tiny")
        before = fresh.seconds_left(order())
        make(fresh)
        whole, end = fresh.seconds_left(order(steps=30)), fresh.seconds_left(order(steps=30), done=27)

    assert before is None
    assert whole is not None and end is not None
    assert whole > 3 * end > 0


# -- who is let in ------------------------------------------------------------------------------------------------
def limited(model: CausalPictures, mib: int, **choices: Any) -> PictureHost:
    """A host of made-up bytes whose pictures get `mib` of memory; the caller closes its engine."""
    engine = Engine(classify=classify)
    return PictureHost(
        engine, Faulty(model, needs=made_up, **choices), model_id="tiny", memory_bytes=mib * MIB
    )


@pytest.mark.parametrize(
    ("mib", "fits", "turns"),
    [(100, (64, 96), False), (58, (64, 96), True), (58, (48, 64), False), (29, (64, 96), True)],
)
def test_phases_take_turns_only_when_all_weights_do_not_fit(
    model: CausalPictures, mib: int, fits: Size, turns: bool
) -> None:
    host = limited(model, mib)
    with closing(host.engine):
        assert finished(host.start(order(size=fits))).pixels.shape == (*fits, 3)

        assert (frozenset(PHASES) in host.model.placed) is not turns  # type: ignore[attr-defined]
        if turns:
            assert len({*host.model.placed}) == 3  # type: ignore[attr-defined]


def test_turns_change_no_bytes(model: CausalPictures) -> None:
    made = []
    for mib in (100, 29):
        host = limited(model, mib)
        with closing(host.engine):
            made.append(make(host, size=(64, 96)))

    assert made[0] == made[1]


@pytest.mark.parametrize(("mib", "largest"), [(28, (48, 64)), (22, (32, 32)), (20, None)])
def test_what_does_not_fit_is_refused_with_the_largest_that_does(
    model: CausalPictures, mib: int, largest: Size | None
) -> None:
    host = limited(model, mib)
    with closing(host.engine):
        for ask in (lambda: host.admit((64, 96)), lambda: host.start(order(size=(64, 96)))):
            with pytest.raises(PictureTooLargeError, match=r"96x64 needs 29\.0 MiB") as caught:
                ask()
            assert caught.value.largest == largest
            assert caught.value.http_status == 413
        if largest is not None:
            assert f"the largest that fits is {largest[1]}x{largest[0]}" in str(caught.value)
            host.admit(largest)


def test_of_free_sizes_the_largest_of_the_same_shape_is_named(model: CausalPictures) -> None:
    host = limited(model, 26, sizes=None)
    with closing(host.engine):
        for size, largest in (((128, 64), (96, 48)), ((256, 256), (64, 64)), ((64, 128), (48, 96))):
            with pytest.raises(PictureTooLargeError) as caught:
                host.admit(size)
            assert caught.value.largest == largest
            host.admit(largest)
            one_more = largest[0] + 16, largest[1] + round(16 * size[1] / size[0])
            with pytest.raises((PictureTooLargeError, InvalidInputError)):
                host.admit(one_more)


def test_the_largest_of_many_sizes_is_found_by_few_looks(model: CausalPictures) -> None:
    looks = 0

    def counted(pixels: int) -> dict[Phase, PhaseBytes]:
        nonlocal looks
        looks += 1
        return made_up(pixels // 10_000)

    engine = Engine()
    faulty = Faulty(model, needs=counted, sizes=None)
    faulty.max_pixels = 16_000 * 16_000
    host = PictureHost(engine, faulty, model_id="tiny", memory_bytes=30 * MIB)
    with closing(engine):
        looks = 0
        largest = host.largest((1600, 1600))

        assert largest is not None
        assert host._needs(largest)[1] <= 30 * MIB < host._needs((largest[0] + 16, largest[1] + 16))[1]
        assert looks < 15


def test_a_refusal_is_quick_touches_nothing_and_changes_no_bytes(model: CausalPictures) -> None:
    host = limited(model, 28)
    with closing(host.engine):
        before = make(host)
        plans, held, placed = host.engine.plans, host.engine.admission.base_bytes, len(host.model.placed)  # type: ignore[attr-defined]
        times = []
        for _ in range(20):
            began = time.perf_counter()
            with pytest.raises(PictureTooLargeError):
                host.admit((64, 96))
            times.append(time.perf_counter() - began)

        assert min(times) < 0.02
        assert (host.engine.plans, host.engine.admission.base_bytes) == (plans, held)
        assert len(host.model.placed) == placed  # type: ignore[attr-defined]
        assert make(host) == before


def test_a_refusal_does_not_wait_for_the_device(model: CausalPictures) -> None:
    host = limited(model, 28)
    with closing(host.engine):
        gate, waited = threading.Event(), []
        host.engine.command(lambda: waited.append(gate.wait(60)))
        with pytest.raises(PictureTooLargeError):
            host.start(order(size=(64, 96)))

        assert waited == []
        gate.set()


def test_what_games_hold_is_not_there(model: CausalPictures) -> None:
    engine = Engine(admission=Admission(memory_bytes=100 * MIB))
    with closing(engine):
        engine.admission.hold("world", 30 * MIB)
        host = PictureHost(engine, Faulty(model, needs=made_up, sizes=None), model_id="tiny")
        assert engine.admission.base_bytes == 65 * MIB
        host.admit((96, 96))
        engine.admission.admit("game", Share(resident_bytes=33 * MIB, peak_bytes=MIB))
        with pytest.raises(PictureTooLargeError, match=r"36\.0 MiB are there for it now"):
            host.admit((96, 96))
        assert make(host)
        with pytest.raises(CapacityError):
            engine.admission.check(Share(resident_bytes=100 * MIB))
        engine.admission.release("game")
        host.admit((96, 96))


def test_the_device_is_a_limit_of_its_own(model: CausalPictures) -> None:
    with closing(Engine()) as engine:
        host = PictureHost(
            engine,
            Faulty(model, needs=made_up),
            model_id="tiny",
            memory_bytes=100 * MIB,
            device_bytes=28 * MIB,
        )
        with pytest.raises(PictureTooLargeError):
            host.admit((64, 96))


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"size": (48, 48)}, "this model makes 64x48, 48x64, 32x32, 96x64"),
        ({"steps": 0}, r"steps 0 must be in 1\.\.100"),
        ({"steps": 101}, r"steps 101 must be in 1\.\.100"),
        ({"prompt": "x" * 4001}, "prompt has 4001 characters; at most 4000"),
        ({"negative": "lake " * 7}, "7 words that this model knows"),
        ({"seed": -1}, "seed=-1"),
        ({"guidance": float("inf")}, "guidance=inf"),
        ({"shift": -1.0}, "shift"),
    ],
)
def test_what_cannot_be_is_told(pictures: PictureHost, wishes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        pictures.start(order(**wishes))
    assert pictures.engine.sessions == 0


@pytest.mark.parametrize(
    ("size", "says"), [((40, 64), "multiples of 16"), ((0, 64), "multiples"), ((512, 512), "at most 65536")]
)
def test_free_sizes_have_rules_too(model: CausalPictures, size: Size, says: str) -> None:
    host = limited(model, 1000, sizes=None)
    with closing(host.engine), pytest.raises(InvalidInputError, match=says):
        host.admit(size)


# -- the probe ----------------------------------------------------------------------------------------------------
def test_a_probe_that_fails_lowers_what_is_offered(model: CausalPictures, caplog: Any) -> None:
    host = limited(model, 1000)
    faulty: Any = host.model
    faulty.faults = {1: torch.OutOfMemoryError("planted")}
    with closing(host.engine):
        assert host.largest() == (64, 96)
        host.probe()

        assert host.largest() == (32, 32), f"what fits into {PROBE_SHRINK} of the 29 MiB"
        assert make(host, size=(32, 32))
        with pytest.raises(PictureTooLargeError):
            host.admit((64, 96))
    assert "picture.probe" in caplog.text


def test_a_probe_that_goes_well_changes_nothing(model: CausalPictures) -> None:
    host = limited(model, 1000)
    with closing(host.engine):
        host.probe()
        assert host.largest() == (64, 96)
        assert host.model.passes == 2, "one step of both branches"  # type: ignore[attr-defined]


# -- failures -----------------------------------------------------------------------------------------------------
def broken(model: CausalPictures, at: int, fault: BaseException) -> PictureHost:
    engine = Engine(classify=classify, admission=Admission(memory_bytes=2**40))
    host = PictureHost(engine, Faulty(model), model_id="tiny")
    host.model.faults = {at: fault}  # type: ignore[attr-defined]
    return host


@pytest.mark.parametrize("at", [7, 9, 12])
@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("planted"), MemoryError("planted")])
def test_too_little_memory_costs_one_picture(
    model: CausalPictures, at: int, fault: BaseException, caplog: Any
) -> None:
    host = broken(model, at, fault)
    with closing(host.engine):
        before, free = make(host), host.engine.admission.free_bytes()

        with pytest.raises(DeviceMemoryError, match="ran out of memory: planted"):
            make(host)

        assert host.engine.sessions == 0
        assert host.engine.admission.free_bytes() == free
        assert host.lost is None
        assert make(host) == before
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_too_little_memory_costs_nobody_else_anything(model: CausalPictures, caplog: Any) -> None:
    host = broken(model, 8, torch.OutOfMemoryError("planted"))
    with closing(host.engine):
        alone = make(host)
        jobs = [host.start(order()) for _ in range(3)]
        results: list[bytes | str] = []
        for job in jobs:
            try:
                results.append(finished(job).pixels.tobytes())
            except DeviceMemoryError as error:
                results.append(str(error))

    assert results.count(alone) == 2
    assert [each for each in results if isinstance(each, str)] == ["the device ran out of memory: planted"]


def test_a_dead_device_is_told_once(model: CausalPictures, caplog: Any) -> None:
    host = broken(model, 2, torch.AcceleratorError("CUDA error: planted"))
    with closing(host.engine):
        job = host.start(order())
        with pytest.raises(DeviceLostError, match="planted"):
            finished(job)

        assert host.lost is not None and "planted" in host.lost
        with pytest.raises(DeviceLostError, match="planted"):
            host.start(order())
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["ERROR"]
