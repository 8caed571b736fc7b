"""Connections that are abused, while somebody plays."""

from __future__ import annotations

from .bystander import Alone
from .case import Scene
from .siege import besiege
from .sockets import connection_cases, patience_cases, resume_cases


def test_a_connection_costs_nothing_once_it_is_gone(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, connection_cases())


def test_nobody_waits_for_ever(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, patience_cases())


def test_a_token_takes_up_its_own_game_once(forgiving: Scene, alone: Alone) -> None:
    besiege(forgiving, alone, resume_cases())
