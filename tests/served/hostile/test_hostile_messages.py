"""Messages and frames from a rogue who plays beside a bystander."""

from __future__ import annotations

from .bystander import Alone
from .case import Scene
from .messages import frame_cases, message_cases
from .siege import besiege


def test_a_bad_message_is_answered_with_its_code_and_the_game_goes_on(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, message_cases())


def test_a_bad_frame_ends_its_own_connection_only(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, frame_cases())
