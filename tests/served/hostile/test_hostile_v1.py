"""The routes of OpenAI's clients under attack, while somebody plays and the device makes pictures and videos."""

from __future__ import annotations

import pytest

from worldloop.codec import sandbox

from .addresses import address_cases, key_cases, range_cases, start_cases
from .bystander import Alone
from .case import Scene
from .crowds import crowd_cases, unread_cases
from .orders import image_field_cases, order_body_cases, video_field_cases
from .references import reference_cases
from .siege import besiege


@pytest.fixture(scope="module")
def alone(studio: Scene) -> Alone:
    return Alone(studio.live)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture):
    """Nothing that a stranger sends is an error of the server."""
    yield
    errors = {record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"}
    # What breaks off because a video was deleted, to its reader.
    assert errors <= {"ASGI callable returned without completing response."}


def test_every_bad_field_of_a_picture_is_refused_by_name(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, image_field_cases())


def test_every_bad_field_of_a_video_is_refused_by_name(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, video_field_cases())


# Starlette leaves the file of a part that never ends to the garbage collector.
@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning")
def test_a_body_that_is_no_order_is_refused(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, order_body_cases())


def test_what_is_not_there_is_not_found(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, address_cases())


def test_nobody_passes_without_the_key(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, key_cases())


def test_a_range_is_a_part_of_a_finished_video(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, range_cases())


def test_a_game_begins_from_a_picture_that_is_there(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, start_cases())


def test_an_order_costs_nothing_once_its_client_is_gone(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, crowd_cases())


def test_nobody_keeps_an_answer_by_not_reading_it(studio: Scene, alone: Alone) -> None:
    besiege(studio, alone, unread_cases())


def test_first_pictures_of_videos_cost_little(
    studio: Scene, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "CPU_S", 0)
    besiege(studio, alone, reference_cases(), memory_mb=200)
