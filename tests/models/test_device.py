"""Picking a device and threads, and what a device can."""

from __future__ import annotations

import os
import re

import pytest
import torch

from worldloop.core.errors import InvalidInputError
from worldloop.models import device


def cuda(
    monkeypatch: pytest.MonkeyPatch,
    *,
    count: int = 1,
    built: bool = True,
    capability: tuple[int, int] = (9, 0),
) -> None:
    """Make torch see so many cards."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: built and count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Card")


@pytest.mark.parametrize(("count", "kind"), [(1, "cuda"), (0, "cpu")])
def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch, count: int, kind: str) -> None:
    cuda(monkeypatch, count=count)

    assert device.pick_device() == torch.device(kind)
    assert device.pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_a_card_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cuda(monkeypatch, count=2)

    assert device.pick_device(name) == torch.device(name)


@pytest.mark.parametrize(
    ("name", "count", "built", "message"),
    [
        (
            "cuda:2",
            2,
            True,
            "device='cuda:2' must be a CUDA device that torch sees; it sees 2, numbered from 0",
        ),
        ("cuda", 0, True, "that torch sees; it sees none (is the driver installed?)"),
        ("cuda:0", 0, False, f"device='cuda:0' needs a torch with CUDA; torch {torch.__version__} has none"),
        ("gpu", 1, True, "device='gpu' must be auto, cpu, cuda or cuda:N"),
        ("cuda:-1", 1, True, "device='cuda:-1' must be"),
        ("cuda:", 1, True, "device='cuda:' must be"),
        ("mps", 1, True, "device='mps' must be"),
        ("", 1, True, "device='' must be"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int, built: bool, message: str
) -> None:
    cuda(monkeypatch, count=count, built=built)

    with pytest.raises(InvalidInputError, match=re.escape(message)):
        device.pick_device(name)


@pytest.mark.parametrize("native", [True, False])
def test_bfloat16_is_native_from_ampere_on(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    cuda(monkeypatch, capability=(8, 0) if native else (7, 5))
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: native)

    for place in (torch.device("cpu"), torch.device("cuda")):
        assert device.multiplies_bf16(place) is native


def test_a_device_has_a_name_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, capability=(8, 6))

    assert device.device_label(torch.device("cpu")) == "a CPU"
    assert device.device_label(torch.device("cuda", 0)) == "NVIDIA Card, capability 8.6"


@pytest.mark.parametrize(("flag", "has"), [("avx512_bf16", True), ("amx_bf16", True), ("avx2", False)])
def test_native_means_dot_products(monkeypatch: pytest.MonkeyPatch, flag: str, has: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {flag: True})

    assert device.cpu_has_bf16() is has


def test_threads_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)

    assert device.set_threads(3) == 3
    assert device.set_threads(0) == len(os.sched_getaffinity(0))
    assert asked == [3, len(os.sched_getaffinity(0))]


def test_only_cuda_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)

    device.synchronize(torch.device("cpu"))
    device.synchronize(torch.device("cuda"))

    assert waited == [torch.device("cuda")]


def test_convolutions_in_float32_keep_all_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)

    device.pick_device("cpu")

    assert not torch.backends.cudnn.allow_tf32
