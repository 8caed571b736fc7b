"""The form fields of a start picture."""

from __future__ import annotations

import pytest

from worldloop.core.errors import InvalidInputError
from worldloop.wire.forms import (
    StartForm,
    parse_focus_mask,
    parse_nfe,
    parse_nfe_mode,
    parse_picture_id,
    parse_reprefill,
    parse_sphere,
    parse_start_form,
)


def test_empty_fields_are_the_defaults() -> None:
    assert parse_start_form() == StartForm()


@pytest.mark.parametrize(
    ("raw", "file", "value"), [("", True, None), (" ", True, None), (" img_1 ", False, "img_1")]
)
def test_picture_id(raw: str, file: bool, value: str | None) -> None:
    assert parse_picture_id(raw, file=file) == value


def test_a_picture_is_named_or_sent_not_both() -> None:
    with pytest.raises(InvalidInputError, match="either the file z0_image or picture_id"):
        parse_start_form(picture_id="img_1", file=True)


@pytest.mark.parametrize(("raw", "value"), [("", None), ("0", None), (" 4 ", 4), ("32", 32)])
def test_nfe(raw: str, value: int | None) -> None:
    assert parse_nfe(raw, maximum=32) == value


@pytest.mark.parametrize("raw", ["33", "-1", "1.5", "x", "²", "1" * 5000, "true"])
def test_nfe_refused(raw: str) -> None:
    with pytest.raises(InvalidInputError, match=r"nfe must be an integer in 1\.\.32") as refusal:
        parse_nfe(raw, maximum=32)
    assert len(str(refusal.value)) < 140


def test_nfe_mode() -> None:
    assert [parse_nfe_mode(raw) for raw in ("", "repeat", " GRID ")] == ["repeat", "repeat", "grid"]
    with pytest.raises(InvalidInputError, match="repeat, grid"):
        parse_nfe_mode("other")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["", "0", "false", "None", "off"], "off"),
        (["1", "true", "ON", "all"], "all"),
        (["decode"], "decode"),
    ],
)
def test_sphere_synonyms(words: list[str], value: str) -> None:
    assert {parse_sphere(word) for word in words} == {value}


def test_sphere_refused() -> None:
    with pytest.raises(InvalidInputError, match="off, decode, all"):
        parse_sphere("2")


@pytest.mark.parametrize(
    ("raw", "value"), [("", None), ("0", 0), ("off", 0), ("none", 0), ("false", 0), ("4096", 4096)]
)
def test_reprefill(raw: str, value: int | None) -> None:
    assert parse_reprefill(raw) == value


@pytest.mark.parametrize("raw", ["4097", "-1", "on", "1.0"])
def test_reprefill_refused(raw: str) -> None:
    with pytest.raises(InvalidInputError, match=r"0\.\.4096"):
        parse_reprefill(raw)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("", None),
        ("diamond", None),
        ("none", "none"),
        ("off", "none"),
        ("2x3:010110", ((False, True, False), (True, True, False))),
    ],
)
def test_focus_mask(raw: str, value: object) -> None:
    assert parse_focus_mask(raw) == value


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("2x3", "HxW"),
        ("2y3:010110", "HxW"),
        ("-2x3:010110", "HxW"),
        ("2x3:01011", "6 characters"),
        ("2x3:01011x", "6 characters"),
        ("0x3:", "1..256"),
        ("300x1:" + "1" * 300, "1..256"),
        ("2x2:0000", "marks nothing"),
    ],
)
def test_focus_mask_refused(raw: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        parse_focus_mask(raw)
