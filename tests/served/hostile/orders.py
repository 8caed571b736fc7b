"""Orders of pictures and videos whose fields or bodies are wrong, odd, or not what they say."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from .acts import GOOD, sending
from .case import Case, Scene
from .pictures import MAX_UPLOAD
from .raw import BOUNDARY, Part, form_type, multipart, request
from .studio import IMAGES, JSON, PICTURE, STEPS_MAX, VIDEO, VIDEOS, bearer, cleared, form, idle, post

HALF = "\ud800"
"""A lone surrogate: no character, though JSON can spell it."""

NO_TEXT: list[Any] = [1, 0, True, False, 1.5, [], ["a lake"], {}, {"text": "a lake"}]
NO_WHOLE: list[Any] = [
    True, False, 1.5, 2.0, 1e300, float("nan"), float("inf"), -1, -(10**30), 10**30, 10**400, [], [1], {}, "x", "",
    "-1", "1.5", "1e1", "0x1", "١", "1 ", "9" * 4000,
]  # fmt: skip
NO_NUMBER: list[Any] = [
    True, "3", "", [], [3], {}, float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 10**400, -0.1, 100.5, HALF,
]  # fmt: skip
NO_BOOL: list[Any] = ["true", "false", "", 1, 0, 1.0, [], {}, "null"]

IMAGE_FIELDS: dict[str, list[Any]] = {
    "prompt": [*NO_TEXT, None, "", "  \n\t", "x" * 4001, "x" * 1_000_000, HALF, f"a{HALF}b"],
    "negative_prompt": [*NO_TEXT, "x" * 4001, HALF],
    "n": [*NO_WHOLE, 0, 11, "1"],
    "seed": [*NO_WHOLE, 2**32, "1"],
    "num_inference_steps": [*NO_WHOLE, 0, STEPS_MAX + 1, "1"],
    "partial_images": [*NO_WHOLE, 9, 1],
    "guidance_scale": NO_NUMBER,
    "flow_shift": [*NO_NUMBER, 0, 0.009],
    "stream": NO_BOOL,
    "size": [
        *NO_TEXT, "", "x", "0x0", "64X48", "64x48x1", "064x048", " 64x48", "64x48\n", "-64x48", "64x-48", "99999x99999",
        "1024x1024", "65x48", "6٤x48", "AUTO", "auto ", "64×48", "../64x48", "64x48\x00", "9" * 5000 + "x1", HALF,
        "48x16",
    ],
    "model": [
        *NO_TEXT, "", "gpt-image-2", "../tiny-picture", "tiny-picture ", "TINY-PICTURE", "tiny-picture\x00", "x" * 9000,
        "tiny-3r", "tiny-video", "/etc/passwd", HALF,
    ],
    "output_format": [*NO_TEXT, "", "PNG", "gif", "png ", "../png", "exe", HALF],
    "response_format": [*NO_TEXT, "", "b64", "file", "URL", HALF],
    "background": [*NO_TEXT, "transparent", ""],
    "quality": ["high", "hd", 1],
    "moderation": ["off", 0],
    "style": ["vivid", []],
    "user": [1, [], "x" * 513, HALF],
    "safety_identifier": [1, {}, "x" * 513, HALF],
}  # fmt: skip

UNKNOWN = ["mask", "image", "__proto__", "Prompt", "prompt ", "prompt\x00", "", "x" * 9000, HALF, "n[]"]

ODD_IMAGES: dict[str, dict[str, Any]] = {
    "emoji": {"prompt": "🦊" * 2000},
    "right to left": {"prompt": "بحيرة \u202eekal"},
    "a nul": {"prompt": "a\x00b"},
    "4000 letters": {"prompt": "x" * 4000, "negative_prompt": "," * 4000},
    "the last seed": {"seed": 2**32 - 1},
    "nulls": dict.fromkeys(("n", "size", "seed", "stream", "user", "model", "quality", "guidance_scale")),
    "no guidance": {"guidance_scale": 0},
    "a minus zero": {"guidance_scale": -0.0},
    "a tag": {"prompt": "<script>alert(1)</script>"},
}  # fmt: skip


def field_cases(what: str, address: str, order: dict[str, Any], wrong: dict[str, list[Any]]) -> list[Case]:
    """An order with each field as it can't be, and with fields that there aren't."""
    cases = [
        Case(
            name=f"{what}: {name} {number}",
            expected=f'400 "param":"{name}"',
            run=sending(post(address, {**order, name: value})),
        )
        for name, values in wrong.items()
        for number, value in enumerate(values)
    ]
    return cases + [
        Case(
            name=f"{what}: unknown field {number}",
            expected="400 unknown_parameter",
            run=sending(post(address, {**order, name: 1})),
        )
        for number, name in enumerate(UNKNOWN)
    ]


def image_field_cases() -> list[Case]:
    """Every field of a picture's order, with what it can't be."""
    cases = field_cases("picture", IMAGES, PICTURE, IMAGE_FIELDS)
    last = {"seed": 2**32 - 1, "n": 2}
    cases.append(
        Case(
            name="picture: the second has no seed",
            expected='400 "param":"seed"',
            run=sending(post(IMAGES, {**PICTURE, **last})),
        )
    )
    return cases + [
        Case(
            name=f"picture: {name}", expected="200 b64_json", run=sending(post(IMAGES, {**PICTURE, **fields}))
        )
        for name, fields in ODD_IMAGES.items()
    ]


def data_url(data: bytes, kind: str = "image/png") -> dict[str, str]:
    return {"image_url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


VIDEO_FIELDS: dict[str, list[Any]] = {
    "prompt": [*NO_TEXT, None, "", "  \n\t", "x" * 4001, HALF],
    "seconds": [*NO_WHOLE, 0, 3601, "0", "3601"],
    "seed": [*NO_WHOLE, 2**32, str(2**32)],
    "size": [*NO_TEXT, "", "720x1280", "64X48", "48x64", "64x48 ", "64x48\x00", "x" * 9000, HALF],
    "model": [*NO_TEXT, "", "sora-2", "../tiny-video", "TINY-VIDEO", "tiny-picture", HALF],
    "input_reference": [
        1, True, [], {}, "x", "a.png", {"image_url": 1}, {"image_url": None}, {"file_id": "file-1"},
        {"image_url": "http://127.0.0.1:1/a.png"}, {"image_url": "file:///etc/passwd"}, {"image_url": "data:,x"},
        {"image_url": "data:text/html;base64,AAAA"}, {"image_url": "data:image/png;base64,A"},
        {"image_url": "data:image/png;base64,é"}, {"image_url": "data:image/png;base64,AA AA"},
        {"image_url": f"data:image/png;base64,{HALF}"}, {"image_url": "data:image/png;base64,AA=="},
        {"image_url": "data:image/png;base64,"}, {"image_url": "DATA:image/png;base64,AAAA"},
        {"image_url": f"data:image/{'x' * 9000};base64,AAAA"}, {**data_url(GOOD), "detail": "high"},
        [data_url(GOOD)], data_url(GOOD)["image_url"],
    ],
}  # fmt: skip


def video_field_cases() -> list[Case]:
    """Every field of a video's order, as JSON and in forms."""
    cases = field_cases("video", VIDEOS, VIDEO, VIDEO_FIELDS)
    prompt: Part = ("prompt", None, b"a lake")
    forms: dict[str, tuple[list[Part], str]] = {
        "no parts": ([], '400 "param":"prompt" | 400 invalid_form'),
        "a prompt twice": ([prompt, prompt], '400 "param":"prompt" ... twice'),
        "a prompt as a file": ([("prompt", "a.txt", b"a lake")], '400 "param":"prompt"'),
        "a huge prompt as a file": ([("prompt", "a.txt", b"x" * 1_900_000)], '400 "param":"prompt"'),
        "a prompt that is not utf-8": ([("prompt", None, b"\xff\xfe")], '400 "param":"prompt" | 200'),
        "seconds as a file": ([prompt, ("seconds", "a", b"1")], '400 "param":"seconds"'),
        "seconds in words": ([prompt, ("seconds", None, b"one")], '400 "param":"seconds"'),
        "seconds of 5000 digits": ([prompt, ("seconds", None, b"9" * 5000)], '400 "param":"seconds"'),
        "a reference as text": ([prompt, ("input_reference", None, GOOD)], '400 "param":"input_reference"'),
        "an empty reference": ([prompt, ("input_reference", "a.png", b"")], '400 "param":"input_reference"'),
        "two references": ([prompt, *[("input_reference", "a.png", GOOD)] * 2], "400 invalid_form"),
        "an address in a form": (
            [prompt, ("input_reference[image_url]", None, b"http://127.0.0.1:1/")],
            '400 "param":"input_reference"',
        ),
        "thirty-three fields": ([prompt, *[(f"x{n}", None, b"") for n in range(33)]], "400 "),
        "a huge field": ([prompt, ("seed", None, b"9" * 1_100_000)], "400 "),
        "a field name of 9000 letters": ([prompt, ("x" * 9000, None, b"1")], "400 "),
        "a field without a name": ([prompt, ("", None, b"1")], "400 unknown_parameter"),
        "a reference over the limit": (
            [prompt, ("input_reference", "a.png", bytes(MAX_UPLOAD + 1))],
            "413 the limit",
        ),
    }  # fmt: skip
    return cases + [
        Case(name=f"video form: {name}", expected=expected, run=ordering(form(VIDEOS, parts)))
        for name, (parts, expected) in forms.items()
    ]


def ordering(*pieces: bytes, finish: bool = False) -> Callable[[Scene], str]:
    """Send an order; a video that is made of it is deleted again."""

    def run(scene: Scene) -> str:
        got = sending(*pieces, finish=finish)(scene)
        if got.startswith("200"):
            cleared(scene.live)
        return got

    return run


NESTED = {
    "arrays in arrays": (b"[" * 4000 + b"]" * 4000, "400 invalid_json"),
    "objects in objects": (b'{"a":' * 4000 + b"1" + b"}" * 4000, "400 invalid_json"),
    "arrays in a prompt": (b'{"prompt":' + b"[" * 4000 + b"]" * 4000 + b"}", '400 invalid_json | 400 "prompt"'),
    "hundred thousand arrays": (b"[" * 100_000, "400 too many values"),
    "a million values": (b'{"prompt":[' + b"0," * 1_000_000 + b"0]}", "400 too many values"),
    "a million empty arrays": (b'{"prompt":[' + b"[]," * 700_000 + b"[]]}", "400 too many values"),
    "a hundred thousand fields": (
        b"{" + b",".join(b'"%d":1' % number for number in range(100_000)) + b"}",
        "400 too many values",
    ),
}  # fmt: skip

GOOD_JSON = b'{"prompt":"a lake","seed":1}'

BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "400 invalid_json"),
    "a space": (b" ", "400 invalid_json"),
    "null": (b"null", "400 invalid_json"),
    "a list": (b"[]", "400 invalid_json"),
    "a number": (b"1", "400 invalid_json"),
    "a text": (b'"prompt"', "400 invalid_json"),
    "NaN": (b"NaN", "400 invalid_json"),
    "an opening bracket": (b"{", "400 invalid_json"),
    "a closing bracket": (b"}", "400 invalid_json"),
    "no fields": (b"{}", '400 "param":"prompt"'),
    "cut short": (GOOD_JSON[:-3], "400 invalid_json"),
    "a comma too many": (b'{"prompt":"a lake",}', "400 invalid_json"),
    "a comma too few": (b'{"prompt":"a lake" "seed":1}', "400 invalid_json"),
    "a comment": (b'{"prompt":"a lake"/**/}', "400 invalid_json"),
    "single quotes": (b"{'prompt':'a lake'}", "400 invalid_json"),
    "two objects": (GOOD_JSON * 2, "400 invalid_json"),
    "a nul at the end": (GOOD_JSON + b"\x00", "400 invalid_json"),
    "a new line in a text": (b'{"prompt":"a\nlake"}', "400 invalid_json"),
    "not utf-8": (b'{"prompt":"\xff\xfe"}', "400 invalid_json"),
    "overlong utf-8": (b'{"prompt":"\xc0\xaf"}', "400 invalid_json"),
    "a surrogate in utf-8": (b'{"prompt":"\xed\xa0\x80"}', '400 invalid_json | 400 "param":"prompt"'),
    "half a character": (b'{"prompt":"\\ud800"}', '400 "param":"prompt"'),
    "a bad escape": (b'{"prompt":"\\x41"}', "400 invalid_json"),
    "a field twice": (b'{"prompt":"a","prompt":"b"}', '400 "param":"prompt" ... twice'),
    "an inner field twice": (b'{"prompt":{"a":1,"a":2}}', "400 twice"),
    "half a character twice": (b'{"\\ud800":1,"\\ud800":2}', "400 twice"),
    "a number of 5000 digits": (b'{"prompt":' + b"9" * 5000 + b"}", "400 invalid_json"),
    "a number beyond all": (b'{"prompt":1e99999}', '400 "param":"prompt"'),
    "noise": (bytes(range(256)) * 20, "400 invalid_json"),
    "pickle": (b"\x80\x04cos\nsystem\n(S'id'\ntR.", "400 invalid_json"),
    **NESTED,
}

KINDS: dict[str, str] = {
    "": "400 invalid_type",
    "text/plain": "400 invalid_type",
    "text/json": "400 invalid_type",
    "application/jsonx": "400 invalid_type",
    "application/json-patch+json": "400 invalid_type",
    "application/x-ndjson": "400 invalid_type",
    "application/octet-stream": "400 invalid_type",
    "*/*": "400 invalid_type",
    ";": "400 invalid_type",
    "json": "400 invalid_type",
    "x" * 9000: "400 invalid_type",
    "é": "400 invalid_type",
}


def order_body_cases() -> list[Case]:
    """Bodies that are no order, on every route that takes one."""
    routes = {"picture": IMAGES, "video": VIDEOS, "remix": f"{VIDEOS}/video_none/remix"}
    cases = [
        Case(name=f"{what} body: {name}", expected=expected, run=ordering(post(path, body)))
        for what, path in routes.items()
        for name, (body, expected) in BODIES.items()
    ]
    cases += [
        Case(
            name=f"{what} body of type {kind[:30]!r}",
            expected=expected,
            run=ordering(post(path, GOOD_JSON, kind=("Content-Type", kind))),
        )
        for what, path in routes.items()
        for kind, expected in KINDS.items()
    ]
    far = bytes(MAX_UPLOAD + 300_000)
    chunked = [("Transfer-Encoding", "chunked"), JSON, bearer()]
    over = "413 the limit ... invalid_request_error"
    piece = f"{65536:x}\r\n".encode() + b" " * 65536 + b"\r\n"
    for what, path in (("picture", IMAGES), ("video", VIDEOS)):
        table: dict[str, tuple[list[bytes], str]] = {
            "a length over the limit": ([post(path, b"x", length=str(10**9)), far * 8], over),
            "chunks over the limit": ([request("POST", path, chunked), piece * 40], f"{over} | 400 "),
            "gzip": ([post(path, b"\x1f\x8b\x08" + bytes(90), ("Content-Encoding", "gzip"))], "400 invalid_json"),
            "json in utf-16": ([post(path, json.dumps({"prompt": "a lake"}).encode("utf-16"))], "200 | 400 "),
            "json with a mark": ([post(path, b"\xef\xbb\xbf" + GOOD_JSON)], "200 | 400 "),
            "json by another case": ([post(path, GOOD_JSON, kind=("Content-Type", "Application/JSON; x=y"))], "200"),
            "an expectation": ([post(path, b"{}", ("Expect", "100-continue"))], '400 "param":"prompt"'),
            "a wrong length": ([post(path, GOOD_JSON, length="5")], "400 "),
            "a type twice": ([post(path, GOOD_JSON, ("Content-Type", "text/plain"))], "200 | 400 invalid_type"),
        }  # fmt: skip
        cases += [
            Case(name=f"{what} body: {name}", expected=expected, run=ordering(*pieces))
            for name, (pieces, expected) in table.items()
        ]
        cases.append(
            Case(
                name=f"{what} body: half, and no more",
                expected="nothing | 400 ",
                run=ordering(post(path, GOOD_JSON)[:-9], finish=True),
            )
        )
    good = multipart([("prompt", None, b"a lake"), ("input_reference", "a.png", GOOD)])
    forms: dict[str, tuple[bytes, tuple[str, str], str]] = {
        "no boundary": (good, ("Content-Type", "multipart/form-data"), "400 invalid_form"),
        "an empty boundary": (good, ("Content-Type", "multipart/form-data; boundary="), "400 "),
        "another boundary": (good, form_type("other"), "400 "),
        "a boundary of 5000 letters": (good, form_type("b" * 5000), "400 "),
        "an unknown charset": (
            good,
            ("Content-Type", f"multipart/form-data; charset=x; boundary={BOUNDARY}"),
            "400 | 200",
        ),
        "cut in the file": (good[:300], form_type(), "400 invalid_form"),
        "cut in a head": (good[:60], form_type(), "400 "),
        "no last boundary": (good[: good.rindex(b"--" + BOUNDARY.encode())], form_type(), "400 invalid_form"),
        "nothing": (b"", form_type(), "400 "),
        "only boundaries": (f"--{BOUNDARY}\r\n".encode() * 500, form_type(), "400 "),
        "noise": (bytes(range(256)) * 40, form_type(), "400 "),
        "a long head": (f"--{BOUNDARY}\r\nX-A: ".encode() + b"b" * 200_000 + b"\r\n\r\nx", form_type(), "400 "),
        "url-encoded": (b"prompt=a+lake&prompt=b", ("Content-Type", "application/x-www-form-urlencoded"), "400 twice"),
        "a million url-encoded fields": (
            b"a=1&" * 500_000,
            ("Content-Type", "application/x-www-form-urlencoded"),
            "400 ",
        ),
        "bad percents": (b"prompt=%zz%00%ff", ("Content-Type", "application/x-www-form-urlencoded"), "400 | 200"),
    }  # fmt: skip
    cases += [
        Case(
            name=f"video form: {name}", expected=expected, run=ordering(post(VIDEOS, body, kind=kind))
        )
        for name, (body, kind, expected) in forms.items()
    ]  # fmt: skip
    return [*cases, Case(name="nothing is made of wrong bodies", expected="idle", run=idle)]
