"""The reference pages are what the code says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def maker(load_script: Callable[[Path], ModuleType]) -> ModuleType:
    return load_script(ROOT / "docs" / "make_reference.py")


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "errors.md"])
def test_page_is_what_the_code_makes(maker: ModuleType, name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text()
    assert written == maker.pages()[name], "run `python docs/make_reference.py`"


def test_every_setting_is_described(maker: ModuleType) -> None:
    rows = maker.settings_page().splitlines()[8:]
    assert len(rows) > 30
    assert all(row.split("|")[3].strip() not in ("", "None") for row in rows)
