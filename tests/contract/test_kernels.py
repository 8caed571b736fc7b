"""The record of compiled kernels: how it is read, and on a card what is compiled and recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worldloop.loops.world import WorldLoop, WorldRequest
from worldloop.models.compiled import Compile
from worldloop.models.precision import Precision
from worldloop.testing import ScriptedPlayer, play, random_model

from .kernels import Kernel, compiled_kernels, kernels_in, write

Ask = Callable[..., WorldRequest]


def launcher(config: str, registers: int | None, spills: int | None, shared: int) -> SimpleNamespace:
    return SimpleNamespace(config=config, n_regs=registers, n_spills=spills, shared=shared)


def tuned(name: str | None, *launchers: SimpleNamespace) -> SimpleNamespace:
    meta = {} if name is None else {"kernel_name": name}
    return SimpleNamespace(
        inductor_meta=meta, fn=SimpleNamespace(__name__="triton_"), launchers=list(launchers)
    )


def modules() -> list[SimpleNamespace]:
    """As Inductor keeps them: the same kernel in two modules, one without a name, and things that are no kernels."""
    norm = tuned("triton_red_fused_norm", launcher("XBLOCK: 1", 40, 0, 512))
    return [
        SimpleNamespace(first=norm, call=lambda: None, text="launchers"),
        SimpleNamespace(again=norm, other=tuned(None, launcher("BLOCK_M: 64", 255, 16, 98_304))),
        SimpleNamespace(waiting=tuned("never run")),
    ]


def test_every_kernel_is_recorded_once() -> None:
    assert kernels_in(modules()) == [
        Kernel("triton_", "BLOCK_M: 64", 255, 16, 98_304),
        Kernel("triton_red_fused_norm", "XBLOCK: 1", 40, 0, 512),
    ]


def test_what_the_compiler_does_not_tell_is_none() -> None:
    found = kernels_in([SimpleNamespace(k=tuned("k", launcher("", None, None, 0)))])

    assert found == [Kernel("k", "", None, None, 0)]


def test_the_record_is_written(tmp_path: Path) -> None:
    write(tmp_path / "kernels.json", kernels_in(modules()), "a card")

    record = json.loads((tmp_path / "kernels.json").read_text())
    assert (record["device"], record["torch"]) == ("a card", torch.__version__)
    assert record["kernels"][0] == {
        "name": "triton_", "tiles": "BLOCK_M: 64", "registers": 255, "spills": 16, "shared": 98_304,
    }  # fmt: skip


def test_an_empty_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to record"):
        write(tmp_path / "kernels.json", kernels_in([]), "a card")
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_the_compiled_kernels_of_a_card_are_recorded(device: torch.device, ask: Ask, tmp_path: Path) -> None:
    if device.type != "cuda":
        pytest.skip("CONTRACT_DEVICE names no card")
    ways = Compile(network="default", decoder="default")
    model = random_model(
        "tiny", precision=Precision.choose(dtype="bf16", device=device), compile=ways, device=device
    )
    request = ask(seed=1)
    play(WorldLoop(model), replace(request, latent=request.latent.to(device)), ScriptedPlayer.of("w", "a"), 3)

    kernels = compiled_kernels()

    name = torch.cuda.get_device_name(device)
    write(Path(os.environ.get("CONTRACT_KERNELS", tmp_path / "kernels.json")), kernels, name)
    assert all(each.registers and each.spills is not None for each in kernels)
