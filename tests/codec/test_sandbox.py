"""Strangers' files: what they may cost, and that a helper which they end is replaced."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from worldloop.codec import sandbox
from worldloop.codec.sandbox import Helper, read_stranger
from worldloop.codec.still import cover_crop, read_picture
from worldloop.core.errors import EngineError, PictureError


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def many_scans(scans: int, side: int) -> bytes:
    """A progressive JPEG that refines the same coefficients again and again."""
    data = saved(Image.new("L", (side, side), 100), "JPEG", progressive=True, quality=50)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * scans + data[-2:]


NOISE = Image.fromarray(np.random.default_rng(2).integers(0, 256, (50, 90, 3)).astype(np.uint8))
PNG = saved(NOISE, "PNG")


@pytest.fixture(autouse=True)
def own_helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    """A helper of the test's own."""
    helper = Helper()
    monkeypatch.setattr(sandbox, "_helper", helper)
    yield helper
    helper.close()


def read(data: bytes, *, max_bytes: int = 2**24, max_pixels: int = 4_000_000):
    return read_stranger(
        data, filename="a.png", height=48, width=64, max_bytes=max_bytes, max_pixels=max_pixels
    )


def pid_of(helper: Helper) -> int:
    assert helper._process is not None
    return helper._process.pid


def test_a_picture_is_what_it_would_be_if_read_here() -> None:
    assert np.array_equal(read(PNG), cover_crop(read_picture(PNG), height=48, width=64))


def test_a_refusal_says_what_it_would_say_here_and_the_helper_stays(own_helper: Helper) -> None:
    read(PNG)
    first = pid_of(own_helper)
    with pytest.raises(PictureError, match=r"^picture 'a\.png' is of no known kind; send a PNG"):
        read(b"hello")
    with pytest.raises(PictureError, match="90x50, 4500 pixels; at most 100 are allowed"):
        read(PNG, max_pixels=100)
    assert pid_of(own_helper) == first


def test_a_file_over_the_limit_is_not_sent(own_helper: Helper) -> None:
    with pytest.raises(PictureError, match="at most 10 are allowed"):
        read(PNG, max_bytes=10)
    assert own_helper._process is None


def test_a_file_that_takes_too_long_ends_the_helper_and_the_next_one_is_read(
    own_helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "CPU_S", 0)
    assert read(many_scans(3, 1500)).shape == (48, 64, 3)
    first = pid_of(own_helper)
    with pytest.raises(PictureError, match="takes too long to read"):
        read(many_scans(4000, 1500), max_pixels=1500 * 1500)
    assert read(PNG).shape == (48, 64, 3)
    assert pid_of(own_helper) != first


def test_a_file_that_takes_too_much_memory_is_refused_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = saved(Image.new("RGB", (2000, 2000)), "PNG")
    assert read(large).shape == (48, 64, 3)
    monkeypatch.setattr(sandbox, "MEMORY_PER_PIXEL", 0)
    monkeypatch.setattr(sandbox, "MEMORY_BYTES", 2**20)
    with pytest.raises(PictureError, match="takes too much memory"):
        read(large)
    assert read(PNG).shape == (48, 64, 3)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_is_an_answer(own_helper: Helper, number: signal.Signals) -> None:
    read(PNG)
    process = own_helper._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    # While a file waits for it, the helper dies.
    killer = threading.Timer(0.05, lambda: os.kill(process.pid, number))
    resume = threading.Timer(0.1, lambda: process.poll() is None and os.kill(process.pid, signal.SIGCONT))
    killer.start()
    resume.start()
    with pytest.raises(PictureError, match="can't be read"):
        read(PNG)
    killer.join()
    resume.join()
    assert read(PNG).shape == (48, 64, 3)


def test_a_helper_that_died_at_rest_is_replaced_unnoticed(own_helper: Helper) -> None:
    read(PNG)
    os.kill(pid_of(own_helper), signal.SIGKILL)
    assert own_helper._process is not None
    own_helper._process.wait()
    assert read(PNG).shape == (48, 64, 3)


def test_a_helper_that_does_not_start_is_not_the_files_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="can't be started"):
        read(PNG)


def test_files_of_several_threads_are_not_mixed_up() -> None:
    pictures = [Image.new("RGB", (64, 48), (number * 20, 0, 0)) for number in range(8)]
    got: dict[int, int] = {}

    def work(number: int) -> None:
        got[number] = int(read(saved(pictures[number], "PNG"))[0, 0, 0])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {number: number * 20 for number in range(8)}


def test_closing_leaves_no_process(own_helper: Helper) -> None:
    read(PNG)
    pid = pid_of(own_helper)
    own_helper.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
