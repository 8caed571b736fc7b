"""What a rogue says on an open game: texts that are refused with a code, frames that end the connection."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from ..client import Stream
from .case import Case, Scene
from .raw import BINARY, CLOSE, CONTINUE, PING, PONG, TEXT, RawSocket, frame, raw_socket

BARRIER = '{"pressed": {"shift": null}}'
"""Refused in words that no other case gets: its answer says that all before it has been read."""

BARRIER_ANSWER = "pressed.shift must be true or false, not null"

FIELDS = ("stream_fps", "fps_embedding")

BAD_TEXTS: dict[str, tuple[str, str]] = {
    "empty": ("", "not_json"),
    "blank": (" \n\t ", "not_json"),
    "brace": ("{", "not_json"),
    "two objects": ("{}{}", "not_json"),
    "single quotes": ("{'type': 'keys'}", "not_json"),
    "trailing comma": ('{"type": "keys",}', "not_json"),
    "comment": ('{"type": "keys"} // hi', "not_json"),
    "byte order mark": ("\ufeff{}", "not_json"),
    "nul": ("\x00", "not_json"),
    "nul in a string": ('{"type": "\x00"}', "not_json"),
    "half an escape": ('{"type": "\\u12"}', "not_json"),
    "unquoted": ("{type: keys}", "not_json"),
    "html": ("<script>alert(1)</script>", "not_json"),
    "http": ("GET / HTTP/1.1\r\n\r\n", "not_json"),
    "python": ("__import__('os')", "not_json"),
    "undefined": ("undefined", "not_json"),
    "hex number": ('{"stream_fps": 0x20}', "not_json"),
    "leading zero": ('{"stream_fps": 020}', "not_json"),
    "plus": ('{"stream_fps": +20}', "not_json"),
    "deep lists": ("[" * 4000, "not_json"),
    "deep closed lists": ("[" * 2000 + "]" * 2000, "not_json|not_an_object"),
    "deep objects": ('{"a":' * 800, "not_json"),
    "deep closed objects": ('{"a":' * 600 + "1" + "}" * 600, "nothing"),
    "null": ("null", "not_an_object"),
    "true": ("true", "not_an_object"),
    "number": ("12", "not_an_object"),
    "nan": ("NaN", "not_an_object"),
    "infinity": ("-Infinity", "not_an_object"),
    "string": ('"keys"', "not_an_object"),
    "list": ("[]", "not_an_object"),
    "list of keys": ('[{"type": "keys"}]', "not_an_object"),
    "huge number": ("9" * 4000, "not_an_object|not_json"),
    "over the limit": ('{"a": "' + "x" * 4096 + '"}', "too_large"),
    "over the limit in bytes": ('{"a": "' + "é" * 2100 + '"}', "too_large"),
    "much over the limit": ("x" * 60_000, "too_large"),
    "blank over the limit": (" " * 5000, "too_large"),
    "emoji over the limit": ("🦊" * 1025, "too_large"),
}

IGNORED_TEXTS: dict[str, str] = {
    "unknown type": '{"type": "chat", "text": "hi"}',
    "type of another kind": '{"type": 7}',
    "type null": '{"type": null}',
    "type list": '{"type": ["keys"]}',
    "type object": '{"type": {"keys": 1}}',
    "empty type": '{"type": ""}',
    "type in capitals": '{"type": "KEYS", "pressed": 3}',
    "session over": '{"type": "session_over", "message": "bye", "limit_s": 0}',
    "hello": '{"type": "hello", "session_limit_s": 0}',
    "error": '{"type": "error", "code": "x", "message": "y"}',
    "lone surrogate": '{"type": "\\ud800"}',
    "prototype": '{"type": "chat", "__proto__": {"pressed": {"w": true}}}',
    "deep in an unknown field": '{"more": ' + "[" * 400 + "]" * 400 + "}",
    "unknown keys": '{"pressed": {"q": {"a": [1]}, "W": true, "": null, "w ": 1}}',
    "many unknown keys": json.dumps({"pressed": {f"k{n}": True for n in range(200)}}),
    "type twice": '{"type": "chat", "type": "keys"}',
    "key twice": '{"pressed": {"w": "bad", "w": false}}',
    "pressed twice": '{"pressed": 3, "pressed": {}}',
    "schema": '{"type": "keys", "schemaVersion": {"major": -1}}',
    "float of 0": '{"pressed": {"w": 0.0}}',
    "negative zero": '{"pressed": {"w": -0}}',
    "seq at the limit": '{"seq": 9007199254740991}',
    "seq null": '{"seq": null}',
    "big ignored number": '{"type": "chat", "n": ' + "9" * 3000 + "}",
    "big ignored exponent": '{"type": "chat", "n": 1e99999}',
    "ignored nan": '{"type": "chat", "n": NaN}',
    "exactly at the limit": '{"type": "' + "x" * 4084 + '"}',
}

BAD_NUMBERS: dict[str, tuple[str, str]] = {
    "zero": ("0", "out_of_range"),
    "negative": ("-35", "out_of_range"),
    "a little under": ("0.999", "out_of_range"),
    "a little over": ("120.001", "out_of_range"),
    "denormal": ("5e-324", "out_of_range"),
    "huge": ("1e308", "out_of_range"),
    "overflow": ("1e999", "out_of_range"),
    "negative overflow": ("-1e999", "out_of_range"),
    "nan": ("NaN", "out_of_range"),
    "infinity": ("Infinity", "out_of_range"),
    "negative infinity": ("-Infinity", "out_of_range"),
    "many digits": ("9" * 4000, "out_of_range"),
    "many negative digits": ("-" + "9" * 4000, "out_of_range"),
    "more digits than an integer may have": ("1" + "0" * 4050, "out_of_range"),
    "true": ("true", "wrong_type"),
    "false": ("false", "wrong_type"),
    "list": ("[35]", "wrong_type"),
    "object": ('{"fps": 35}', "wrong_type"),
    "word": ('"fast"', "wrong_type"),
    "nan in a string": ('"nan"', "wrong_type"),
    "infinity in a string": ('"Infinity"', "wrong_type"),
    "overflow in a string": ('"1e999"', "wrong_type"),
    "hex in a string": ('"0x20"', "wrong_type"),
    "underscore in a string": ('"3_5"', "nothing"),
    "other digits in a string": ('"٣٥"', "nothing"),
    "zero in a string": ('"0"', "out_of_range"),
    "nul in a string": ('"\\u000035"', "wrong_type"),
}

BAD_PRESSED: dict[str, str] = {
    "null": "null",
    "list": '["w"]',
    "string": '"w"',
    "number": "1",
    "true": "true",
    "w null": '{"w": null}',
    "w string": '{"w": "true"}',
    "w two": '{"w": 2}',
    "w half": '{"w": 0.5}',
    "w negative": '{"w": -1}',
    "w nan": '{"w": NaN}',
    "w infinity": '{"w": Infinity}',
    "w list": '{"w": [true]}',
    "w object": '{"w": {}}',
    "w huge": '{"w": ' + "9" * 3000 + "}",
    "space string": '{"w": true, "space": "x"}',
    "last of two": '{"w": false, "w": "bad"}',
}

BAD_SEQ: dict[str, tuple[str, str]] = {
    "float": ("1.5", "wrong_type"),
    "whole float": ("1.0", "wrong_type"),
    "exponent": ("1e3", "wrong_type"),
    "string": ('"1"', "wrong_type"),
    "true": ("true", "wrong_type"),
    "list": ("[1]", "wrong_type"),
    "object": ("{}", "wrong_type"),
    "nan": ("NaN", "wrong_type"),
    "negative": ("-1", "out_of_range"),
    "too large": ("9007199254740992", "out_of_range"),
    "huge": ("9" * 4000, "out_of_range"),
}


def texts() -> dict[str, tuple[str, str]]:
    """Every text by name, with the code of the refusal, or `nothing`."""
    found = dict(BAD_TEXTS)
    found |= {f"ignored {name}": (text, "nothing") for name, text in IGNORED_TEXTS.items()}
    for name_of in FIELDS:
        for name, (number, code) in BAD_NUMBERS.items():
            found[f"{name_of} {name}"] = (f'{{"{name_of}": {number}}}', code)
    found["stream_fps null"] = ('{"stream_fps": null}', "wrong_type")
    found["stream_fps off"] = ('{"stream_fps": "off"}', "wrong_type")
    found |= {
        f"pressed {name}": (f'{{"pressed": {value}}}', "wrong_type") for name, value in BAD_PRESSED.items()
    }
    found |= {f"seq {name}": (f'{{"seq": {value}}}', code) for name, (value, code) in BAD_SEQ.items()}
    return found


def binaries() -> dict[str, bytes]:
    """Binary messages, all refused as `not_json`."""
    return {
        "empty": b"",
        "json": b'{"type": "keys"}',
        "one byte": b"\x01",
        "random": bytes(range(256)),
        "at the limit": bytes(4096),
        "over the limit": bytes(60_000),
        "utf-16": '{"type": "keys"}'.encode("utf-16"),
        "not utf-8": b"\xff\xfe\xfd",
        "nul": b"\x00" * 9,
    }


class Chat:
    """One game of a rogue's on which every text is tried, each followed by a barrier."""

    stream: Stream

    def open(self, scene: Scene) -> str:
        self._context = scene.live.playing(scene.fresh())
        self.stream = self._context.__enter__()
        return str(self.stream.text("hello")["type"])

    def tell(self, message: str | bytes) -> str:
        """Codes of what was refused, or `nothing`."""
        self.stream.say(message)
        self.stream.say(BARRIER)
        codes: list[str] = []
        while True:
            told = self.stream.text("error")
            if told["message"] == BARRIER_ANSWER:
                return " ".join(codes) or "nothing"
            codes.append(told["code"])

    def leave(self) -> str:
        """Leave; before, the next keys are acknowledged and a picture follows."""
        self.stream.hold("w", seq=77)
        while self.stream.text("ack")["seq"] != 77:
            pass
        self.stream.unit()
        self._context.__exit__(None, None, None)
        return "played"


def message_cases() -> list[Case]:
    """Texts and binaries on one game, and at the end that it goes on."""

    chat = Chat()

    def telling(message: str | bytes) -> Callable[[Scene], str]:
        return lambda _: chat.tell(message)

    cases = [Case(name="a game", expected="hello", run=chat.open)]
    cases += [
        Case(name=f"text {name}", expected=code, run=telling(text)) for name, (text, code) in texts().items()
    ]
    cases += [
        Case(name=f"binary {name}", expected="not_json", run=telling(data))
        for name, data in binaries().items()
    ]
    cases.append(Case(name="the game goes on", expected="played", run=lambda _: chat.leave()))
    return cases


def in_game(scene: Scene, act: list[bytes]) -> str:
    """Open a game, send these frames after its hello, read to the close."""
    user = "rogue-frames"
    if scene.live.get(f"/create-game/{user}").status_code == 412:
        assert scene.live.upload(user).status_code == 200
    with opened(scene, user) as rogue:
        rogue.send(*act)
        return rogue.closing()


class opened:  # noqa: N801 (a context manager)
    """A raw game of `user`'s, as soon as the place of their last one is free."""

    def __init__(self, scene: Scene, user: str) -> None:
        self._scene, self._user = scene, user

    def __enter__(self) -> RawSocket:
        until = time.monotonic() + 60
        while True:
            self._context = raw_socket(self._scene.url, f"/ws/{self._user}")
            rogue = self._context.__enter__()
            opcode, payload = rogue.next()
            if opcode == TEXT and b'"hello"' in payload:
                rogue.token = json.loads(payload).get("resume", {}).get("token", "")
                return rogue
            self._context.__exit__(None, None, None)
            assert time.monotonic() < until, f"no game: {opcode} {payload!r}"
            threading.Event().wait(0.01)

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)


def frame_cases() -> list[Case]:
    """Frames that break RFC 6455, each on a game of its own, and odd ones that don't."""
    good = frame(TEXT, b"{}")
    bye = frame(CLOSE, b"\x03\xe8")
    table: dict[str, tuple[list[bytes], str]] = {
        "not utf-8": ([frame(TEXT, b"\xff\xfe")], "close 1007"),
        "half a character": ([frame(TEXT, b'{"a": "\xc3"}')], "close 1007"),
        "surrogate in utf-8": ([frame(TEXT, b'"\xed\xa0\x80"')], "close 1007"),
        "not utf-8 in fragments": (
            [frame(TEXT, b'"\xc3', fin=False), frame(CONTINUE, b'"')],
            "close 1007",
        ),
        "over the transport's limit": ([frame(TEXT, b"x" * 70_000)], "close 1009"),
        "binary over the transport's limit": ([frame(BINARY, b"x" * 70_000)], "close 1009"),
        "a length of many gigabytes": ([frame(TEXT, b"x", length=2**40)], "close 1009"),
        "a length over 63 bits": ([frame(TEXT, b"x", length=2**63 + 5)], "close 1002|close 1009"),
        "fragments over the limit": (
            [frame(TEXT, b"x" * 40_000, fin=False), frame(CONTINUE, b"x" * 40_000)],
            "close 1009",
        ),
        "not masked": ([frame(TEXT, b"{}", masked=False)], "close 1002"),
        "a reserved bit": ([frame(TEXT, b"{}", reserved=4)], "close 1002"),
        "all reserved bits": ([frame(TEXT, b"{}", reserved=7)], "close 1002"),
        "a reserved data opcode": ([frame(3, b"{}")], "close 1002"),
        "a reserved control opcode": ([frame(11, b"{}")], "close 1002"),
        "a continuation of nothing": ([frame(CONTINUE, b"{}")], "close 1002"),
        "a text within fragments": ([frame(TEXT, b"{", fin=False), frame(TEXT, b"}")], "close 1002"),
        "a ping in fragments": ([frame(PING, b"x", fin=False)], "close 1002"),
        "a long ping": ([frame(PING, b"x" * 126)], "close 1002"),
        "a long close": ([frame(CLOSE, b"\x03\xe8" + b"x" * 200)], "close 1002"),
        "a close of one byte": ([frame(CLOSE, b"\x03")], "close 1002"),
        "a close that is not utf-8": ([frame(CLOSE, b"\x03\xe8\xff")], "close 1007|close 1002"),
        "http in the middle": ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], "close 1002"),
        "zeroes": ([bytes(64)], "close 1002"),
        "ones": ([b"\xff" * 64], "close 1002"),
        "pings, then a close": ([frame(PING, b"p") * 200, bye], "close 1000"),
        "pongs that nobody asked for": ([frame(PONG, b"p") * 200, bye], "close 1000"),
        "a message in one-byte fragments": (
            [
                frame(TEXT, b"{", fin=False),
                frame(CONTINUE, b" ", fin=False) * 300,
                frame(CONTINUE, b"}"),
                bye,
            ],
            "close 1000",
        ),
        "empty fragments": (
            [frame(TEXT, b"", fin=False), frame(CONTINUE, b"", fin=False) * 300, frame(CONTINUE, b"{}"), bye],
            "close 1000",
        ),
        "a ping within fragments": (
            [frame(TEXT, b"{", fin=False), frame(PING, b"p"), frame(CONTINUE, b"}"), bye],
            "close 1000",
        ),
        "a thousand messages at once": ([good * 1000, bye], "close 1000"),
        "messages after the close": ([bye, good * 100], "close 1000"),
        "two closes": ([bye, bye], "close 1000"),
        "an empty close": ([frame(CLOSE)], "close 1005|close 1000"),
    }
    for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535):
        table[f"close {code}"] = ([frame(CLOSE, code.to_bytes(2, "big"))], "close 1002")
    for code in (1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 3000, 4999):
        table[f"close {code}"] = ([frame(CLOSE, code.to_bytes(2, "big"))], f"close {code}")

    def sending(frames: list[bytes]) -> Callable[[Scene], str]:
        return lambda scene: in_game(scene, frames)

    return [
        Case(name=f"frame {name}", expected=expected, run=sending(frames))
        for name, (frames, expected) in table.items()
    ]
