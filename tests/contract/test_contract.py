"""Every entry at every gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .conftest import last_line
from .controls import CONTROLS
from .entries import ENTRIES
from .gates import GATES

Record = Callable[[str, object], None]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", ENTRIES)
def test_entry_is_green_at(name: str, gate: str, device: torch.device, record_property: Record) -> None:
    record_property("entry", name)

    verdict = GATES[gate](ENTRIES[name], device)

    assert verdict.green, f"{name} is red at {gate}: {verdict.why}"


@pytest.mark.parametrize("name", CONTROLS)
def test_control_is_red_at(name: str, device: torch.device, record_property: Record) -> None:
    record_property("control", name)
    control = CONTROLS[name]

    verdict = GATES[control.gate](control.entry, device)

    assert not verdict.green, f"{name} was missed: {verdict.why}"


def test_every_entry_has_a_control_and_every_gate_several() -> None:
    accuracy = {control.entry.name for control in CONTROLS.values() if control.gate == "accuracy"}
    by_gate = Counter(control.gate for control in CONTROLS.values())

    assert accuracy == set(ENTRIES)
    assert set(by_gate) == set(GATES)
    assert min(by_gate.values()) > 9
    assert all(control.entry.cases() for control in CONTROLS.values())


def test_the_documented_line_is_this_suites() -> None:
    all_green = Counter(
        {("entry", "passed"): len(ENTRIES) * len(GATES), ("control", "passed"): len(CONTROLS)}
    )
    page = Path(__file__).parents[2] / "docs" / "concepts" / "numerics.md"

    assert f"\n{last_line(all_green, len(ENTRIES))}\n" in page.read_text()


def test_the_last_line_tells_what_failed() -> None:
    counts = Counter({("entry", "passed"): 3, ("entry", "failed"): 1, ("control", "failed"): 2})

    assert last_line(counts, 1) == (
        "contract: 1 entries, 3 gates passed, 1 failed; 0 controls red as planted, 2 missed"
    )
