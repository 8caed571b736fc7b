"""The fields of a request for pictures: every wrong one is named, with what is allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worldloop.codec.still import FILES
from worldloop.wire.images import FIELDS, FORMATS, MAX_COUNT, MAX_PREVIEWS, MAX_USER, SETTLED, parse_image
from worldloop.wire.openai import MAX_SEED, WrongFieldError

ODD: list[Any] = [
    True,
    False,
    1.5,
    -1,
    "x",
    "",
    "1",
    [],
    [1],
    {},
    {"a": 1},
    float("nan"),
    float("inf"),
    10**400,
]
"""Values of every kind that JSON has, and some more."""

INTEGERS = {
    "n": (1, MAX_COUNT),
    "partial_images": (0, MAX_PREVIEWS),
    "seed": (0, MAX_SEED),
    "num_inference_steps": (1, 50),
}
NUMBERS = {"guidance_scale": (0, 100), "flow_shift": (0.01, 100)}
TEXTS = {"prompt": 100, "negative_prompt": 100, "user": MAX_USER, "safety_identifier": MAX_USER}
CHOICES = {"response_format": ("b64_json", "url"), "output_format": FORMATS, **SETTLED}
FLAGS = {"stream": (True, False)}

RIGHT: dict[str, list[Any]] = {
    **{name: list(bounds) for name, bounds in (INTEGERS | NUMBERS).items()},
    **{name: ["a", "x" * longest] for name, longest in TEXTS.items()},
    **{name: list(words) for name, words in CHOICES.items()},
    **FLAGS,
    "size": ["auto", "16x16", "64x32", "256x256"],
    "model": ["scripted-picture"],
}

WRONG: dict[str, list[Any]] = {
    **{
        name: [least - 1, most + 1, float(least), str(least), *(v for v in ODD if v != -1)]
        for name, (least, most) in INTEGERS.items()
    },
    **{
        name: [least - 1, most + 0.1, str(most), *(v for v in ODD if v not in (1.5, -1) or isinstance(v, bool))]
        for name, (least, most) in NUMBERS.items()
    },
    **{
        name: ["x" * (longest + 1), "a\ud800", *(v for v in ODD if not isinstance(v, str))]
        for name, longest in TEXTS.items()
    },
    **{name: [words[0].upper(), *ODD] for name, words in CHOICES.items()},
    **{name: [0, 1, *(v for v in ODD if not isinstance(v, bool))] for name in FLAGS},
    "size": ["64", "64x", "x64", "0x16", "16x0", "-16x16", "17x16", "16x24", "016x16", "16x16x16", "16 x 16", "16X16",
             "１６x16", "272x256", "99999x99999", "100000x16", *ODD],
    "model": ["dall-e-3", "Scripted-picture", *ODD],
}  # fmt: skip


@pytest.fixture
def facts(scripted_pictures: Any) -> Any:
    return scripted_pictures().facts


def test_every_field_has_its_values() -> None:
    assert set(RIGHT) == set(WRONG) == set(FIELDS)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in RIGHT for value in RIGHT[name]], ids=repr
)
def test_a_right_value_is_taken(facts: Any, name: str, value: Any) -> None:
    streams = {"stream": True} if name == "partial_images" else {}

    parse_image({"prompt": "a lake", **streams, name: value}, facts)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in WRONG for value in WRONG[name]],
    ids=lambda value: ascii(value)[:24],
)
def test_a_wrong_value_is_refused_by_name(facts: Any, name: str, value: Any) -> None:
    with pytest.raises(WrongFieldError) as refused:
        parse_image({"prompt": "a lake", "stream": name != "stream", name: value}, facts)

    error = refused.value
    assert (error.param, error.http_status) == (name, 400)
    assert name in str(error)
    assert len(str(error)) < 400
    json.dumps(str(error), ensure_ascii=False).encode()


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"prompt"}))
def test_null_is_as_good_as_absent(facts: Any, name: str) -> None:
    assert parse_image({"prompt": "a lake", name: None}, facts) == parse_image({"prompt": "a lake"}, facts)


@pytest.mark.parametrize("prompt", [{}, {"prompt": None}, {"prompt": " \n"}])
def test_a_prompt_is_needed(facts: Any, prompt: dict[str, Any]) -> None:
    with pytest.raises(WrongFieldError, match="says something"):
        parse_image(prompt, facts)


@pytest.mark.parametrize("name", ["steps", "Prompt", "output_compression", "svg", "x" * 5000, "\ud800"])
def test_an_unknown_field_is_named(facts: Any, name: str) -> None:
    with pytest.raises(WrongFieldError) as refused:
        parse_image({"prompt": "a lake", name: 1}, facts)

    assert refused.value.code == "unknown_parameter"
    assert refused.value.param == name[:64].encode(errors="replace").decode()
    assert "negative_prompt" in str(refused.value), "and says what there is"


def test_what_is_left_out_is_the_models_own(facts: Any) -> None:
    form = parse_image({"prompt": "a lake"}, facts)

    assert (form.size, form.steps, form.guidance, form.shift) == ((32, 48), 4, 3.0, 5.0)
    assert (form.count, form.seed, form.negative, form.file_format) == (1, None, "", "png")
    assert (form.stream, form.previews, form.as_url) == (False, 0, False)


def test_a_size_is_width_before_height(facts: Any) -> None:
    assert parse_image({"prompt": "a lake", "size": "64x32"}, facts).size == (32, 64)


def test_a_model_of_few_sizes_lists_them(scripted_pictures: Any) -> None:
    facts = scripted_pictures(sizes=((32, 48), (48, 32))).facts

    assert parse_image({"prompt": "a lake", "size": "32x48"}, facts).size == (48, 32)
    with pytest.raises(WrongFieldError, match="'48x32' or '32x48'"):
        parse_image({"prompt": "a lake", "size": "64x64"}, facts)


def test_every_picture_of_a_request_needs_a_seed(facts: Any) -> None:
    last = {"prompt": "a lake", "n": 3, "seed": 2**32 - 3}

    assert parse_image(last, facts).seed == 2**32 - 3
    with pytest.raises(WrongFieldError, match=r"0\.\.4294967293"):
        parse_image({**last, "seed": 2**32 - 2}, facts)


def test_previews_need_a_stream(facts: Any) -> None:
    with pytest.raises(WrongFieldError, match="stream") as refused:
        parse_image({"prompt": "a lake", "partial_images": 1}, facts)

    assert refused.value.param == "partial_images"


def test_the_formats_are_those_that_can_be_written() -> None:
    assert set(FORMATS) == set(FILES)
