"""Ids, methods, ranges, queries and keys on `/v1`, that lead nowhere or to what is not theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .acts import GOOD, sending
from .case import Case, Scene, said
from .footprint import pass_an_hour
from .raw import dial, form_type, multipart, request, speak
from .studio import (
    IMAGES,
    KEY,
    LONG,
    MODELS,
    PICTURE,
    VIDEO,
    VIDEOS,
    bearer,
    drawn,
    filmed,
    finished,
    http,
    post,
)

IDS = {
    "unknown": "image_00000000000000000000000000000000",
    "unknown video": "video_00000000000000000000000000000000",
    "dots": "..",
    "encoded dots": "%2e%2e",
    "a path": "..%2f..%2f..%2fetc%2fpasswd",
    "an absolute path": "%2fetc%2fpasswd",
    "a path twice encoded": "%252e%252e%252fetc%252fpasswd",
    "a windows path": "..%5c..%5cwindows",
    "a file's name": "video_00000000000000000000000000000000.mp4",
    "nul": "a%00b",
    "a new line": "a%0d%0aX-Evil:%20y",
    "not utf-8": "%ff%fe",
    "half a character": "%ed%a0%80",
    "emoji": "%F0%9F%A6%8A",
    "a tag": "%3Cscript%3E",
    "a star": "*",
    "5000 letters": "a" * 5000,
    "a space": "%20",
    "a number": "0",
    "None": "None",
}

PLACES: dict[str, tuple[str, str, Any]] = {
    "picture": ("GET", "/v1/images/{}", None),
    "picture's head": ("HEAD", "/v1/images/{}", None),
    "receipt": ("GET", "/v1/images/{}/receipt", None),
    "video": ("GET", "/v1/videos/{}", None),
    "content": ("GET", "/v1/videos/{}/content", None),
    "content's head": ("HEAD", "/v1/videos/{}/content", None),
    "delete": ("DELETE", "/v1/videos/{}", None),
    "remix": ("POST", "/v1/videos/{}/remix", {"prompt": "a lake"}),
    "model": ("GET", "/v1/models/{}", None),
}

METHODS = {
    "/v1/images/generations": "POST GET HEAD",  # GET asks for a picture called so
    "/v1/images/none": "GET HEAD",
    "/v1/images/none/receipt": "GET",
    "/v1/videos": "GET POST",
    "/v1/videos/none": "GET DELETE",
    "/v1/videos/none/content": "GET HEAD",
    "/v1/videos/none/remix": "POST",
    "/v1/models": "GET",
    "/v1/models/none": "GET",
}


def asking(method: str, path: str, *headers: tuple[str, str]) -> Callable[[Scene], str]:
    return sending(request(method, path, [bearer(), *headers]))


def address_cases() -> list[Case]:
    """Ids that name nothing, methods that a route hasn't, and addresses beside the routes."""
    cases = []
    for place, (method, path, body) in PLACES.items():
        for name, word in IDS.items():
            target = path.format(word)
            data = request(method, target, [bearer()]) if body is None else post(target, body)
            # A slash in an id makes it another address.
            right = "404 | 405" if method != "HEAD" else "404 | 405 "
            cases.append(Case(name=f"{place} of {name}", expected=right, run=sending(data)))
    cases += [
        Case(name=f"{method} {path}", expected="405", run=asking(method, path))
        for path, right in METHODS.items()
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")
        if method not in right.split()
    ]
    table = {
        "nowhere": ("GET", "/v1", "404"),
        "a slash too many": ("GET", "/v1/videos/", "307 | 404"),
        "two slashes": ("GET", "/v1//videos", "404"),
        "capitals": ("GET", "/V1/VIDEOS", "404"),
        "edits": ("POST", "/v1/images/edits", "405 | 404"),
        "variations": ("POST", "/v1/images/variations", "405 | 404"),
        "chat": ("POST", "/v1/chat/completions", "404"),
        "dots into a folder": ("GET", "/v1/videos/../../etc/passwd", "404"),
        "generations by get": ("GET", IMAGES, "404"),
    }
    cases += [
        Case(name=f"address: {name}", expected=expected, run=asking(method, path))
        for name, (method, path, expected) in table.items()
    ]
    preflight = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")]
    cases.append(
        Case(name="a foreign preflight", expected="400 origin", run=asking("OPTIONS", IMAGES, *preflight))
    )
    for name, data in {
        "picture": post(IMAGES, PICTURE, ("Origin", "https://evil.example")),
        "video": post(VIDEOS, VIDEO, ("Origin", "null")),
        "deletion": request("DELETE", "/v1/videos/none", [bearer(), ("Origin", "https://evil.example")]),
    }.items():
        cases.append(Case(name=f"a foreign {name}", expected="403 origin not allowed", run=sending(data)))
    queries = {
        "limit=0": "limit", "limit=101": "limit", "limit=-1": "limit", "limit=x": "limit", "limit=": "limit",
        "limit=1.5": "limit", "limit=" + "9" * 5000: "limit", "limit=%D9%A1": "limit", "limit=1&limit=x": "limit",
        "order=": "order", "order=up": "order", "order=ASC": "order", "order=%00": "order",
        "page=2": "page", "%ff=1": "unknown_parameter", "=1": "unknown_parameter", "a" * 9000 + "=1": "unknown",
        "before=x": "before",
    }  # fmt: skip
    cases += [
        Case(name=f"list by {query[:20]}", expected=f"400 {word}", run=asking("GET", f"{VIDEOS}?{query}"))
        for query, word in queries.items()
    ]
    cases += [
        Case(name=f"list after {word[:20]}", expected="404", run=asking("GET", f"{VIDEOS}?after={word}"))
        for word in ("", "x", "..%2fx", "%00", "a" * 5000, "video_" + "0" * 32)
    ]
    cases += [
        Case(name=f"Accept: {accept[:30]}", expected=expected, run=asking("GET", VIDEOS, ("Accept", accept)))
        for accept, expected in {
            "text/html": "200 list",
            "video/mp4": "200 list",
            "nothing/at-all;q=0": "200 list",
            "": "200 list",
            "x" * 9000: "200 list",
            "é": "200 list",
            ";;;,,,": "200 list",
        }.items()
    ]
    return cases


def key_cases() -> list[Case]:
    """Nobody without the key, on any route."""
    wrong: dict[str, list[tuple[str, str]]] = {
        "no key": [],
        "an empty key": [("Authorization", "")],
        "no key after its scheme": [("Authorization", "Bearer")],
        "the key alone": [("Authorization", KEY)],
        "another scheme": [("Authorization", f"Basic {KEY}")],
        "another key": [bearer("b" + KEY[1:])],
        "half the key": [bearer(KEY[:-1])],
        "more than the key": [bearer(KEY + "x")],
        "the key in capitals": [bearer(KEY.upper())],
        "the key twice": [bearer(f"{KEY} {KEY}")],
        "a key that is not ascii": [bearer("é" * 16)],
        "a long key": [bearer("a" * 20_000)],
        "a wrong key, then the right one": [bearer("x" * 16), bearer()],
        "the key in a cookie": [("Cookie", f"Authorization=Bearer {KEY}")],
        "the key in another head": [("X-Api-Key", KEY), ("Proxy-Authorization", f"Bearer {KEY}")],
        "a hash of nothing": [bearer("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")],
    }
    routes = {**PLACES, "picture order": ("POST", IMAGES, PICTURE), "video order": ("POST", VIDEOS, VIDEO)}
    routes |= {"videos": ("GET", VIDEOS, None), "models": ("GET", MODELS, None)}
    cases = []
    for name, (method, path, body) in routes.items():
        for what, headers in wrong.items():
            # `post` would bring the right key along.
            data = b"" if body is None else b'{"prompt":"a lake"}'
            sent = request(
                method, path.format("none"), [("Content-Type", "application/json"), *headers], data
            )
            text = "" if method == "HEAD" else " invalid_api_key"
            cases.append(Case(name=f"{name} with {what}", expected=f"401{text or ' '}", run=sending(sent)))
    query = request("GET", f"{VIDEOS}?api_key={KEY}&authorization=Bearer+{KEY}")
    huge = request("POST", IMAGES, [("Content-Type", "application/json")], b"[" * 1_000_000)
    return [
        *cases,
        Case(name="videos with the key in the query", expected="401 invalid_api_key", run=sending(query)),
        Case(name="a huge body without a key", expected="401 invalid_api_key", run=sending(huge)),
        Case(name="videos with the right key", expected="200 list", run=asking("GET", VIDEOS)),
    ]


RANGES = {
    "a part": ("bytes=10-19", "206 "),
    "the end": ("bytes=-5", "206 "),
    "one byte": ("bytes=0-0", "206 "),
    "more than there is": ("bytes=0-99999999999999", "206 "),
    "behind the end": ("bytes=99999999999999-", "416 "),
    "backwards": ("bytes=20-10", "400 | 416 "),
    "of minus zero": ("bytes=-0", "416 | 400 "),
    "the last of too many": ("bytes=-99999999999999999999", "206 "),
    "of no number": ("bytes=a-b", "400 | 200 | 416 "),
    "of nothing": ("bytes=", "400 | 416 "),
    "of a dash": ("bytes=-", "400 | 416 "),
    "of other units": ("lines=0-5", "400 | 200"),
    "without units": ("0-5", "400 | 200"),
    "of 5000 digits": ("bytes=" + "9" * 4000 + "-", "416 | 400 "),
    "of other digits": ("bytes=١-٢".encode().decode("latin-1"), "400 | 416 | 206 "),
    "of thousands": ("bytes=" + ",".join(f"{n}-{n}" for n in range(0, 6000, 2)), "200 | 206 | 400 | 416 "),
    "of the same, often": ("bytes=" + "0-," * 3000 + "0-", "200 | 206 | 400 "),
    "of overlaps": ("bytes=0-50,40-90,0-", "206 "),
    "with a nul": ("bytes=0-5\x01", "400 | 416 | 206 | 200"),
}


def range_cases() -> list[Case]:
    """Ranges of a finished video, and of one in the making."""

    def asked(value: str, method: str = "GET", *more: tuple[str, str]) -> Callable[[Scene], str]:
        def run(scene: Scene) -> str:
            path = f"{VIDEOS}/{finished(scene.live)}/content"
            return speak(scene.url, request(method, path, [bearer(), ("Range", value), *more]))

        return run

    cases = [
        Case(name=f"range {name}", expected=expected, run=asked(value))
        for name, (value, expected) in RANGES.items()
    ]
    cases += [
        Case(
            name="range of another file",
            expected="200",
            run=asked("bytes=0-5", "GET", ("If-Range", '"not this one"')),
        ),
        Case(name="range of a head", expected="206 ", run=asked("bytes=0-5", "HEAD")),
        Case(name="a variant that is not made", expected="400 variant", run=variant("variant=thumbnail")),
        Case(name="an unknown query", expected="400 unknown_parameter", run=variant("quality=high")),
        Case(name="a range while it is made", expected="200", run=early),
    ]
    return cases


def variant(query: str) -> Callable[[Scene], str]:
    def run(scene: Scene) -> str:
        return asking("GET", f"{VIDEOS}/{finished(scene.live)}/content?{query}")(scene)

    return run


def early(scene: Scene) -> str:
    """Nobody knows yet how long it will be: it comes from its beginning."""
    with filmed(scene.live, **LONG) as name, dial(scene.url) as connection:
        headers = [bearer(), ("Range", "bytes=5-9")]
        connection.sendall(request("GET", f"{VIDEOS}/{name}/content", headers))
        head = connection.makefile("rb").readline()
    return head.split()[1].decode()


def start_cases() -> list[Case]:
    """Games that begin from a picture that was made here, or wasn't."""

    def begin(picture: Callable[[Scene], str], file: bytes | None = None) -> Callable[[Scene], str]:
        def run(scene: Scene) -> str:
            fields = {"picture_id": picture(scene)}
            files = {} if file is None else {"z0_image": ("a.png", file)}
            with scene.live.http() as client:
                return said(client.post("/z0/rogue-painter", data=fields, files=files))

        return run

    def made(scene: Scene) -> str:
        return str(drawn(scene.live)["id"])

    def outdated(scene: Scene) -> str:
        name = made(scene)
        pass_an_hour(scene.live)
        return name

    def address(scene: Scene) -> str:
        return str(drawn(scene.live, response_format="url")["url"])

    words = [
        "image_" + "0" * 32, "../image_1", "/etc/passwd", "image_%", "a" * 9000, "\x00", "🦊", "none", "{}", "*",
    ]  # fmt: skip
    cases = [
        Case(
            name=f"start from {word[:20]!r}", expected="404 no picture", run=begin(lambda _, word=word: word)
        )  # type: ignore[misc]
        for word in words
    ]
    doubled = multipart([("picture_id", None, b"image_1"), ("picture_id", None, b"image_2")])
    cases += [
        Case(name="start from a picture that was made", expected="200 z0_shape", run=begin(made)),
        Case(name="start from an outdated picture", expected="404 no picture", run=begin(outdated)),
        Case(name="start from a picture and a file", expected="400 not both", run=begin(made, GOOD)),
        Case(name="start from a picture and a broken file", expected="400 not both", run=begin(made, b"x")),
        Case(
            name="start from a video",
            expected="404 no picture",
            run=begin(lambda scene: finished(scene.live)),
        ),
        Case(name="start from an address", expected="404 no picture", run=begin(address)),
        Case(
            name="start from two pictures",
            expected="404 no picture",
            run=sending(request("POST", "/z0/rogue-painter", [form_type()], doubled)),
        ),
        Case(name="a picture is forgotten with its address", expected="404 no picture", run=forgotten),
    ]
    return cases


def forgotten(scene: Scene) -> str:
    url = str(drawn(scene.live, response_format="url")["url"])
    with http(scene.live) as client:
        if client.get(url).status_code != 200:
            return "never there"
        pass_an_hour(scene.live)
        return said(client.get(url))
