"""Form fields and bodies of an upload, bad, odd and broken off."""

from __future__ import annotations

from collections.abc import Callable

from .acts import GOOD, USER, sending
from .case import Case, Scene, said
from .pictures import MAX_UPLOAD
from .raw import BOUNDARY, Part, form_type, multipart, request


def with_fields(**fields: str) -> Callable[[Scene], str]:
    return lambda scene: said(scene.live.upload(USER, GOOD, **fields))


def form_cases() -> list[Case]:
    """Every bad spelling of every field, and odd ones that are right."""
    table: dict[str, dict[str, list[str]]] = {
        "nfe": {
            "200": ["", "0", " 4 ", "32", "007", "00"],
            "400 must be at least": ["1", "2"],
            "400 nfe must be an integer": [
                "33", "-1", "1.5", "1e1", "0x4", "x", "²", "٣", "1" * 5000, "true", "null", "NaN", "inf", "4 4", "4,5",
                "+4", "--4", "\x00", "4\x00", "🦊", "[4]", "{}", "1_0", "<b>",
            ],
        },
        "nfe_mode": {
            "200": ["", "repeat", " GRID ", "Repeat"],
            "400 nfe_mode must be one of": [
                "grids", "0", "repeat grid", "repeat,grid", "../repeat", "\x00", "ｒepeat", "x" * 9000, "null", "[]",
            ],
        },
        "sphere": {
            "200": ["", "0", "1", "true", "False", "ON", "none", "off", "decode", "ALL"],
            "400 sphere must be one of": ["2", "-1", "yes", "all,decode", "o ff", "\x00", "x" * 9000, "truе", "{}"],
        },
        "reprefill_every": {
            "200": ["", "0", "off", "none", "False"],
            "400 reprefill needs": ["4096", " 12 "],
            "400 reprefill_every must be": [
                "4097", "-1", "on", "1.0", "1e2", "9" * 5000, "x", "\x00", "NaN", "١", "1,2", "true", "0x10",
            ],
        },
        "focus_mask": {
            "200": ["", "none", "off", "0", "false"],
            "400 focus_mask": [
                "1", "true", "2x3", "2x3:", "2y3:010110", "-2x3:010110", "2x3:01011", "2x3:0101101", "2x3:01011x",
                "0x3:", "3x0:", "0x0:", "257x1:" + "1" * 257, "999x999:1", "2x2:0000", "2x2:1111:1", ":", "x:",
                "2x2:１111", "99999999999x1:1",
                "2.0x2:1111", "1e1x1:1", "2x2:1 11", "3x4:" + "1" * 12 + "\x00", "256x256:" + "2" * 65536,
                "2x3:010110\n", "diamonds",
            ],
        },
        "picture_id": {
            "200": ["", "  ", "\n"],
            "400 either the file z0_image or picture_id": ["image_1", "\x00", "x" * 9000, "../a.png", "🦊", "null"],
        },
        "model_id": {
            "200": ["", " tiny-3nr ", "TINY-3NR"],
            "400 unknown model_id": [
                "nope", "../tiny-3nr", "tiny-3nr.safetensors", "/etc/passwd", "autoencoder", "\x00", "x" * 9000, "tiny",
                "*",
                "tiny-3nr\x00", "%74iny-3nr", "null", "none", "latest", "0", "🦊", "tiny-3nr/../tiny-3nr",
            ],
        },
    }  # fmt: skip
    cases = [
        Case(
            name=f"field {field} {number} {value[:20]!r}",
            expected=expected,
            run=with_fields(**{field: value}),
        )
        for field, choices in table.items()
        for expected, values in choices.items()
        for number, value in enumerate(values)
    ]
    parts: dict[str, tuple[list[Part], str]] = {
        "no file": ([("nfe", None, b"4")], "422 z0_image"),
        "nothing at all": ([], "422 z0_image"),
        "a picture id that is none": ([("picture_id", None, b"image_1")], "404 no picture"),
        "a picture id as a path": ([("picture_id", None, b"../../etc/passwd")], "404 no picture"),
        "a picture id that is not utf-8": (
            [("picture_id", None, b"\xff\xfe")],
            "404 no picture | 400 | 422 picture_id",
        ),
        "a picture id as a file": ([("picture_id", "a.png", GOOD)], "422 picture_id"),
        "a blank picture id": ([("picture_id", None, b" ")], "422 z0_image"),
        "the file as a text": ([("z0_image", None, b"hello")], "422 z0_image"),
        "the file under another name": ([("image", "a.png", GOOD)], "422 z0_image"),
        "an empty file": ([("z0_image", "a.png", b"")], "400 is empty"),
        "an empty file name": ([("z0_image", "", GOOD)], "422 z0_image | 200"),
        "two files": ([("z0_image", "a.png", GOOD), ("z0_image", "b.png", GOOD)], "200"),
        "a good file, then a bad one": (
            [("z0_image", "a.png", GOOD), ("z0_image", "b.png", b"x")],
            "400 b.png",
        ),
        "a field as a file": ([("z0_image", "a.png", GOOD), ("nfe", "n.txt", b"4")], "422 nfe"),
        "a field twice": (
            [("z0_image", "a.png", GOOD), ("nfe", None, b"4"), ("nfe", None, b"x")],
            "400 nfe must be",
        ),
        "unknown fields": (
            [("z0_image", "a.png", GOOD)] + [(f"more{n}", None, b"x") for n in range(50)],
            "200",
        ),
        "too many fields": ([("z0_image", "a.png", GOOD)] + [("more", None, b"x")] * 1500, "400 "),
        "too many files": ([("z0_image", "a.png", GOOD)] * 1500, "400 | 413 "),
        "a huge field": ([("z0_image", "a.png", GOOD), ("nfe", None, b"9" * 1_200_000)], "400 "),
        "a huge unknown field": ([("more", None, b"9" * 1_200_000), ("z0_image", "a.png", GOOD)], "400 "),
        "a file at the limit": ([("z0_image", "a.png", bytes(MAX_UPLOAD))], "400 no known kind"),
        "a file over the limit": ([("z0_image", "a.png", bytes(MAX_UPLOAD + 1))], "413 the limit"),
        "a field that is not utf-8": (
            [("z0_image", "a.png", GOOD), ("nfe", None, b"\xff\xfe")],
            "400 nfe must be",
        ),
        "a file name that is not utf-8": ([("z0_image", "\udcff\udcfe.png", b"x")], "400 no known kind"),
        "a file name with a new line": ([("z0_image", "a\r\nX-Evil: 1\r\n\r\n.png", b"x")], "400 "),
        "a file name with quotes": ([("z0_image", 'a";x="b.png', b"x")], "400 "),
        "a file name with a tag": ([("z0_image", "<img src=x>.png", b"x")], "400 no known kind"),
        "a field name of 9000 letters": (
            [("z0_image", "a.png", GOOD), ("n" * 9000, None, b"x")],
            "200 | 400 ",
        ),
    }
    cases += [
        Case(name=f"form: {name}", expected=expected, run=sending(posted(multipart(given))))
        for name, (given, expected) in parts.items()
    ]
    cases += [
        Case(name=f"switch {value[:20]!r}", expected=expected, run=switching(value))
        for value, expected in {
            "nope": "423 | 400 unknown model_id",
            "../x": "423 | 400 unknown model_id",
            "x" * 9000: "423 | 400 unknown model_id",
            "\x00": "423 | 400 unknown model_id",
            # Nobody takes the model away while somebody plays.
            "tiny-3r": "423 taken",
        }.items()
    ]
    cases += [
        Case(name="switch of nothing", expected="422 model_id", run=sending(request("POST", "/switch"))),
        Case(
            name="switch by a bad user",
            expected="400 user id",
            run=switching("tiny-3r", user_id="a/b"),
        ),
    ]
    return cases


def switching(model_id: str, **fields: str) -> Callable[[Scene], str]:
    def run(scene: Scene) -> str:
        with scene.live.http() as http:
            return said(http.post("/switch", data={"model_id": model_id, **fields}))

    return run


def posted(body: bytes, content_type: tuple[str, str] | None = None, **changes: str) -> bytes:
    return request("POST", f"/z0/{USER}", [content_type or form_type()], body, **changes)


def body_cases() -> list[Case]:
    """Bodies that aren't what they say."""
    good = multipart([("z0_image", "a.png", GOOD)])
    many = bytes(MAX_UPLOAD + 300_000)
    chunked = [("Transfer-Encoding", "chunked"), form_type()]

    def chunks(*sizes_and_data: bytes) -> bytes:
        return request("POST", f"/z0/{USER}", chunked) + b"".join(sizes_and_data)

    def chunk(data: bytes) -> bytes:
        return f"{len(data):x}\r\n".encode() + data + b"\r\n"

    def upload(head: tuple[str, str]) -> bytes:
        return request("POST", f"/z0/{USER}", [head, form_type()], good)

    end = b"0\r\n\r\n"
    table: dict[str, tuple[list[bytes], str]] = {
        "good": ([posted(good)], "200"),
        "good, in chunks": ([chunks(chunk(good), end)], "200"),
        "good, in tiny chunks": ([chunks(*[chunk(good[n : n + 7]) for n in range(0, len(good), 7)], end)], "200"),
        "no content type": ([request("POST", f"/z0/{USER}", [], good)], "422 z0_image"),
        "json": ([posted(b"{}", ("Content-Type", "application/json"))], "422 z0_image"),
        "url-encoded": ([posted(b"z0_image=a", ("Content-Type", "application/x-www-form-urlencoded"))], "422 z0_image"),
        "text": ([posted(good, ("Content-Type", "text/plain"))], "422 z0_image"),
        "no boundary": ([posted(good, ("Content-Type", "multipart/form-data"))], "400 "),
        "an empty boundary": ([posted(good, ("Content-Type", "multipart/form-data; boundary="))], "400 "),
        "another boundary": ([posted(good, form_type("other"))], "400 | 422 z0_image"),
        "a boundary of 5000 letters": ([posted(good, form_type("b" * 5000))], "400 | 422 "),
        "a boundary with odd letters": ([posted(good, form_type('"\\";x=y'))], "400 | 422 "),
        "multipart/mixed": ([posted(good, ("Content-Type", f"multipart/mixed; boundary={BOUNDARY}"))], "422 | 400 "),
        "no last boundary": ([posted(multipart([("z0_image", "a.png", GOOD)], end=False))], "400 | 422 | 200"),
        "cut in the file": ([posted(good[:150])], "400 | 422 "),
        "cut in a head": ([posted(good[:60])], "400 | 422 "),
        "nothing": ([posted(b"")], "422 | 400 "),
        "only boundaries": ([posted(f"--{BOUNDARY}\r\n".encode() * 500)], "400 | 422 "),
        "a part without a name": (
            [posted(f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\nx\r\n--{BOUNDARY}--".encode())],
            "400 | 422 ",
        ),
        "a part without heads": ([posted(f"--{BOUNDARY}\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode())], "400 | 422 "),
        "a part with a thousand heads": (
            [posted(f"--{BOUNDARY}\r\n".encode() + b"X-A: b\r\n" * 1000 + b"\r\nx\r\n--x9f2-boundary--\r\n")],
            "400 | 422 ",
        ),
        "a part with a long head": (
            [posted(f"--{BOUNDARY}\r\nX-A: ".encode() + b"b" * 200_000 + b"\r\n\r\nx\r\n")],
            "400 | 422 ",
        ),
        "noise": ([posted(bytes(range(256)) * 40)], "400 | 422 "),
        "a length over the limit": ([posted(b"x", length=str(10**9)), many * 8], "413 the limit"),
        "a length over all bounds": ([posted(b"x", length="9" * 19), many * 8], "413 | 400 "),
        "a length of 40 digits": ([posted(b"x", length="9" * 40)], "400 "),
        "a negative length": ([posted(b"x", length="-1")], "400 "),
        "a length in hex": ([posted(b"x", length="0x1")], "400 "),
        "a length in words": ([posted(b"x", length="many")], "400 "),
        "a length and a sign": ([posted(b"x", length="+1")], "400 "),
        "two lengths": (
            [posted(good).replace(b"Connection", b"Content-Length: 3\r\nConnection", 1)],
            "400 ",
        ),
        "a length and chunks": (
            [request("POST", f"/z0/{USER}", chunked, length="5") + chunk(good) + end],
            "400 | 200",
        ),
        "chunks over the limit": ([chunks(*[chunk(bytes(65536))] * 40, end)], "413 the limit | 400 "),
        "endless chunks": (
            [chunks(chunk(multipart([("z0_image", "a.png", b"")], end=False)[:-2])), chunk(bytes(65536)) * 60],
            "413 the limit",
        ),
        "a chunk of no number": ([chunks(b"zz\r\nxx\r\n", end)], "400 "),
        "a chunk of a negative number": ([chunks(b"-5\r\nxx\r\n", end)], "400 "),
        "a chunk of 40 digits": ([chunks(b"f" * 40 + b"\r\nxx\r\n")], "400 "),
        "a chunk with a long extension": ([chunks(b"5;" + b"x" * 200_000 + b"\r\nhello\r\n", end)], "400 "),
        "a chunk that is too long": ([chunks(b"2\r\nhello\r\n", end)], "400 "),
        "trailers": ([chunks(chunk(good), b"0\r\nX-A: b\r\n\r\n")], "200"),
        "gzip": ([upload(("Content-Encoding", "gzip"))], "200"),
        "an unknown transfer": ([upload(("Transfer-Encoding", "gzip, chunked"))], "501 | 400 "),
        "an expectation": ([upload(("Expect", "100-continue"))], "200"),
        "an unknown expectation": ([upload(("Expect", "the-spanish-inquisition"))], "200"),
        "an expectation over the limit": (
            [request("POST", f"/z0/{USER}", [("Expect", "100-continue")], b"", length=str(10**9)), many * 8],
            "413 the limit",
        ),
    }  # fmt: skip
    cases = [
        Case(name=f"body: {name}", expected=expected, run=sending(*pieces))
        for name, (pieces, expected) in table.items()
    ]
    halves = {
        "half a body": (posted(good)[:-200], "nothing"),
        "half a chunk": (chunks(b"500\r\nhello"), "nothing | 400 "),
        "half a head": (request("GET", "/status")[:-4], "nothing | 400 "),
        "half a first line": (b"GET /sta", "nothing | 400 "),
    }
    cases += [
        Case(name=f"given up: {name}", expected=expected, run=sending(data, finish=True))
        for name, (data, expected) in halves.items()
    ]
    return cases
