"""Receipts: there and back, refusals by name, and what differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worldloop.codec.still import FILES
from worldloop.core import receipt as receipt_module
from worldloop.core.errors import InvalidInputError
from worldloop.core.receipt import Receipt

ORDER = {
    "prompt": "a lake", "negative": "", "size": (48, 64), "seed": 3, "steps": 4, "guidance": 2.0, "shift": 5.0,
}  # fmt: skip


def receipt(**changes: Any) -> Receipt:
    own = {
        "order": ORDER, "steps": 3, "format": "png", "model": "tiny", "model_hash": "a" * 64, "noise_hash": "b" * 64,
        "pixel_hash": "c" * 64, "file_hash": "d" * 64, "machine": {"device": "CPU", "threads": 1},
    }  # fmt: skip
    return Receipt(**{**own, **changes})


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    receipt().save(path)

    assert Receipt.load(path) == receipt()
    assert json.loads(path.read_text())["schema"] == 1
    assert json.loads(path.read_text())["order"]["size"] == [48, 64]


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("schema", 2, "schema=2; 1 is read"),
        ("model_hash", None, "model_hash=None must be text"),
        ("steps", True, "steps=True must be a whole number"),
        ("machine", [], r"machine=\[\] must be an object"),
        ("order", "x", "order='x' must be an object"),
        ("order.seed", 1.5, "order: seed=1.5 must be a whole number"),
        ("order.guidance", "2", "order: guidance='2' must be a number"),
        ("order.size", [48], r"size=\[48\] must be \[height, width\]"),
        ("order.size", [48, "64"], "must be"),
        ("more", 1, "receipt: unknown 'more'; have order, steps"),
        ("order.more", 1, "receipt: order: unknown 'more'; have prompt"),
        ("format", "gif", "format='gif' must be one of png, jpeg, webp"),
    ],
)
def test_what_is_no_receipt_is_refused_by_name(where: str, value: Any, says: str) -> None:
    found = json.loads(json.dumps(receipt().to_dict()))
    *outer, name = where.split(".")
    (found[outer[0]] if outer else found)[name] = value

    with pytest.raises(InvalidInputError, match=says):
        Receipt.parse(found)


@pytest.mark.parametrize("text", ["[]", "{", "7"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"receipt"):
        Receipt.load(path)
    with pytest.raises(InvalidInputError, match=r"nowhere\.json: No such file"):
        Receipt.load(tmp_path / "nowhere.json")


def test_checkpoint_and_machine_are_named_before_what_came_out() -> None:
    now = receipt(
        model_hash="e" * 64, machine={"device": "GPU", "torch": "3"}, pixel_hash="f" * 64, file_hash="0" * 64
    )
    lines = receipt().differences(now)

    assert [line.split(":")[0] for line in lines] == [
        "checkpoint", "device", "threads", "torch", "pixel_hash", "file_hash",
    ]  # fmt: skip
    assert lines[1] == "device: CPU then, GPU now"


def test_other_steps_are_told_too() -> None:
    assert receipt(steps=4).differences(receipt(steps=3)) == ["steps: 4 then, 3 now"]


def test_a_receipt_is_of_a_format_that_is_written() -> None:
    assert tuple(FILES) == receipt_module._FORMATS


@pytest.mark.parametrize("name", ["noise_hash", "pixel_hash", "file_hash"])
def test_one_other_hash_is_another_picture(name: str) -> None:
    assert receipt().same_bytes(replace(receipt(), machine={}))
    assert not receipt().same_bytes(replace(receipt(), **{name: "9" * 64}))
    assert receipt().differences(receipt()) == []
