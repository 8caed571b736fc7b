"""Reading what a player sends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldloop.wire.controls import BadControlsError, ControlState, parse_controls

START = ControlState.start(stream_fps=35, fps_embedding=12)


def read(message: object, current: ControlState = START) -> ControlState | None:
    return parse_controls(message if isinstance(message, str | bytes) else json.dumps(message), current)


def test_start_is_nothing_held_at_the_configured_rates() -> None:
    assert (START.controls.pressed, START.controls.fps, START.stream_fps, START.seq) == (
        frozenset(),
        12,
        35,
        None,
    )


@pytest.mark.parametrize("kind", [{}, {"type": "keys"}])
def test_keys_with_and_without_a_type(kind: dict[str, str]) -> None:
    state = read({**kind, "pressed": {"w": True, "a": False, "space": 1, "shift": 0}, "schemaVersion": "2"})
    assert state is not None
    assert state.controls.pressed == {"w", "space"}


@pytest.mark.parametrize("kind", ["chat", None, 3, ["keys"]])
def test_other_types_say_nothing(kind: object) -> None:
    assert read({"type": kind, "pressed": 3}) is None


def test_unknown_keys_and_fields_are_ignored() -> None:
    state = read({"pressed": {"q": "what", "d": True}, "more": {}})
    assert state is not None
    assert state.controls.pressed == {"d"}


@pytest.mark.parametrize("word", [None, "none", "off", "", " Null "])
def test_no_frame_rate_for_the_model(word: str | None) -> None:
    state = read({"fps_embedding": word})
    assert state is not None
    assert state.controls.fps is None


def test_an_absent_model_rate_is_the_start_value_and_an_absent_stream_rate_is_unchanged() -> None:
    first = read({"fps_embedding": 24, "stream_fps": 60})
    assert first is not None
    second = read({}, first)
    assert second is not None
    assert (first.controls.fps, first.stream_fps) == (24, 60)
    assert (second.controls.fps, second.stream_fps) == (12, 60)


@pytest.mark.parametrize("field", ["fps_embedding", "stream_fps"])
@pytest.mark.parametrize("value", [1, 120, 59.94, "30"])
def test_rates_in_range(field: str, value: object) -> None:
    assert read({field: value}) is not None


@pytest.mark.parametrize("field", ["fps_embedding", "stream_fps"])
@pytest.mark.parametrize("value", ["0", "0.99", "120.01", "-1", "1e999", "-Infinity", "NaN", "1" + "0" * 400])
def test_rates_out_of_range(field: str, value: str) -> None:
    with pytest.raises(BadControlsError, match=field) as refusal:
        read(f'{{"{field}": {value}}}')
    assert refusal.value.code == "out_of_range"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ("[" * 4000, "not_json"),
        ('{"seq": ' + "9" * 4080 + "}", "out_of_range"),
        (b"{}", "not_json"),
        ("3", "not_an_object"),
        ("null", "not_an_object"),
        ('{"pressed": null}', "wrong_type"),
        ('{"pressed": {"w": "yes"}}', "wrong_type"),
        ('{"pressed": {"w": [1]}}', "wrong_type"),
        ('{"pressed": {"w": 2}}', "wrong_type"),
        ('{"fps_embedding": true}', "wrong_type"),
        ('{"fps_embedding": "fast"}', "wrong_type"),
        ('{"fps_embedding": "nan"}', "wrong_type"),
        ('{"stream_fps": null}', "wrong_type"),
        ('{"stream_fps": false}', "wrong_type"),
        ('{"stream_fps": {}}', "wrong_type"),
        ('{"seq": 1.5}', "wrong_type"),
        ('{"seq": true}', "wrong_type"),
        ('{"seq": -1}', "out_of_range"),
        ('{"a": "' + "é" * 2100 + '"}', "too_large"),
    ],
)
def test_refusals_have_a_code(message: str | bytes, code: str) -> None:
    with pytest.raises(BadControlsError) as refusal:
        read(message)
    assert refusal.value.code == code
    assert len(str(refusal.value)) < 120


@given(
    st.text()
    | st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["type", "pressed", "w", "stream_fps", "seq"]), inner)
        ),
    ).map(json.dumps)
)
def test_anything_is_read_or_refused(message: str | bytes) -> None:
    try:
        state = parse_controls(message, START)
    except BadControlsError:
        return
    assert state is None or 1 <= state.stream_fps <= 120
