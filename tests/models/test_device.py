"""Picking a device, a dtype and threads."""

from __future__ import annotations

import os

import pytest
import torch

from worldloop.models import device


def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert device.pick_device().type == kind
        assert device.pick_device("cpu").type == "cpu"
    assert device.pick_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bfloat16_where_it_is_native(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: native)

    assert device.pick_dtype("auto", torch.device("cpu")) == (torch.bfloat16 if native else torch.float32)
    assert device.pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert device.pick_dtype("fp32", torch.device("cuda")) == torch.float32
    assert device.pick_dtype("bf16", torch.device("cpu")) == torch.bfloat16


@pytest.mark.parametrize(("flag", "has"), [("avx512_bf16", True), ("amx_bf16", True), ("avx2", False)])
def test_native_means_dot_products(monkeypatch: pytest.MonkeyPatch, flag: str, has: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {flag: True})

    assert device.cpu_has_bf16() is has


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype='fp8' must be auto, bf16 or fp32"):
        device.pick_dtype("fp8", torch.device("cpu"))


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
