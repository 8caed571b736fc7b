"""HTTP from rogues, while somebody plays."""

from __future__ import annotations

import pytest

from .bystander import Alone
from .case import Scene
from .forms import body_cases, form_cases
from .http import http_cases
from .names import id_cases, ticket_cases
from .siege import besiege


def test_every_bad_field_is_refused_by_name(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, form_cases())


# Starlette leaves the file of a part that never ends to the garbage collector.
@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning")
def test_a_body_is_never_more_than_it_may_be(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, body_cases())


def test_a_user_id_is_a_name_and_nothing_else(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, id_cases())


def test_wrong_http_is_answered_or_closed(scene: Scene, alone: Alone) -> None:
    besiege(scene, alone, http_cases())


def test_no_ticket_but_the_right_one_admits(guarded: Scene, alone: Alone) -> None:
    besiege(guarded, alone, ticket_cases())
