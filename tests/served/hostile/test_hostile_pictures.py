"""Files from strangers, while somebody plays."""

from __future__ import annotations

import pytest

from worldloop.codec import sandbox

from .bystander import Alone
from .case import Scene
from .pictures import Eyes, bad_cases, bomb_cases, odd_cases
from .siege import besiege


def test_odd_pictures_are_shown_upright_in_the_right_colours(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, odd_cases(Eyes(scene.live.host)))


def test_bad_files_are_refused_with_the_reason(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, bad_cases())


def test_bombs_cost_little(scene: Scene, alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CPU_S", 0)
    besiege(scene, alone, bomb_cases(), memory_mb=200)
