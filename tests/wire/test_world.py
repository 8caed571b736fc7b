"""Messages, units and names on the wire."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from worldloop.core.errors import InvalidInputError
from worldloop.wire.world import (
    ReserveAnswer,
    ack_message,
    check_user_id,
    close_reason,
    codec_string,
    error_message,
    log_message,
    pack_access_unit,
    session_over_message,
)


def test_a_unit_has_one_byte_in_front() -> None:
    assert pack_access_unit(key=True, data=b"\0\0\0\1x") == b"\x01\0\0\0\1x"
    assert pack_access_unit(key=False, data=b"y") == b"\x00y"


def test_texts_have_the_published_fields() -> None:
    assert json.loads(log_message(tag="game", msg="é", ts=1.5)) == {
        "type": "log",
        "tag": "game",
        "msg": "é",
        "ts": 1.5,
    }
    assert json.loads(session_over_message(message="bye", limit_s=180.0)) == {
        "type": "session_over",
        "message": "bye",
        "limit_s": 180.0,
    }
    assert json.loads(error_message(code="not_json", message="no")) == {
        "type": "error",
        "code": "not_json",
        "message": "no",
    }
    assert json.loads(ack_message(seq=4, frame=9)) == {"type": "ack", "seq": 4, "frame": 9}


@pytest.mark.parametrize("user", ["a", "A_b.c-9", "x" * 64])
def test_user_ids(user: str) -> None:
    assert check_user_id(user) == user


@pytest.mark.parametrize("user", ["", "x" * 65, "a b", "a/b", "é", "a\n", "٣"])
def test_user_ids_refused(user: str) -> None:
    with pytest.raises(InvalidInputError, match="1 to 64"):
        check_user_id(user)


@pytest.mark.parametrize(
    ("height", "width", "fps", "name"),
    [(96, 160, 35, "avc1.42E00B"), (384, 672, 35, "avc1.42E01E"), (1080, 1920, 30, "avc1.42E028")],
)
def test_codec_string(height: int, width: int, fps: float, name: str) -> None:
    assert codec_string(height=height, width=width, fps=fps) == name


def test_a_close_reason_is_cut_on_a_characters_edge() -> None:
    assert close_reason("ok") == "ok"
    assert close_reason("é" * 100) == "é" * 61


def test_answers_are_frozen() -> None:
    with pytest.raises(ValidationError):
        ReserveAnswer().success = False
