"""HTTP itself: methods, heads, paths, origins and handshakes that are wrong, odd, or aimed at something else."""

from __future__ import annotations

from .acts import GOOD, USER, playing, sending, shaking
from .case import Case
from .raw import form_type, multipart, request, upgrade

FOREIGN = [
    "https://evil.example",
    "null",
    "http://test.evil.example",
    "http://test:81",
    "http://eviltest",
    "http://user@evil.example",
    "http://[::1",
    "file://",
    "test",
    "http://",
    "javascript:alert(1)",
    "http://test, http://evil.example",
]

ROUTES = {
    "/": "GET",
    "/status": "GET",
    "/models": "GET",
    "/pictures": "GET",
    "/healthz": "GET",
    "/readyz": "GET",
    "/metrics": "GET",
    "/create-game/rogue": "GET",
    "/z0/rogue": "POST",
    "/switch": "POST",
}


def http_cases() -> list[Case]:
    """HTTP that is wrong, odd, or aimed at something else."""
    cases = [
        Case(name=f"{method} {path}", expected="405", run=sending(request(method, path)))
        for path, right in ROUTES.items()
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW")
        if method != right
    ]
    status = request("GET", "/status")
    long_head = [("X-A", "b" * 200_000)]
    wild_range = [("Range", "bytes=" + "0-1," * 3000 + "0-1")]
    no_range = [("Range", "bytes=-99999999999999999999")]
    kept = status.replace(b"Connection: close\r\n", b"")
    h2c = request("GET", "/status", [("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")])
    h2c = h2c.replace(b"Connection: close", b"Connection: Upgrade, HTTP2-Settings, close")
    table: dict[str, tuple[list[bytes], str]] = {
        "zeroes": ([bytes(500)], "400 "),
        "noise": ([bytes(range(128, 256)) * 9 + b"\r\n\r\n"], "400 "),
        "tls": ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300)], "400 "),
        "http/0.9": ([b"GET /status\r\n\r\n"], "400 "),
        "http/2": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], "400 "),
        "http/3.7": ([b"GET /status HTTP/3.7\r\nHost: x\r\nConnection: close\r\n\r\n"], "200 | 400 "),
        "http/1.0": ([b"GET /status HTTP/1.0\r\n\r\n"], "200"),
        "ssh": ([b"SSH-2.0-OpenSSH_9.0\r\n\r\n"], "400 "),
        "smtp": ([b"EHLO x\r\n\r\n"], "400 "),
        "redis": ([b"*1\r\n$4\r\nPING\r\n\r\n"], "400 "),
        "new lines first": ([b"\r\n\r\n" + status], "200 | 400 "),
        "no carriage returns": ([status.replace(b"\r\n", b"\n")], "200 | 400 "),
        "no host": ([request("GET", "/status", host=None)], "400 "),
        "two hosts": ([request("GET", "/status", [("Host", "other")])], "400 "),
        "another host": ([request("GET", "/status", host="evil.example")], "403"),
        "an odd host": ([request("GET", "/status", host="a b/../<>")], "200 | 400 "),
        "an empty host": ([request("GET", "/status", host="")], "200 | 400 "),
        "a folded head": ([request("GET", "/status", [("X-A", "b\r\n c")])], "200 | 400 "),
        "a head without a name": ([request("GET", "/status", [("", "b")])], "400 "),
        "a head with a space": ([request("GET", "/status", [("X A", "b")])], "400 "),
        "a head with nul": ([request("GET", "/status", [("X-A", "b\x00c")])], "400 "),
        "a head that is not ascii": ([request("GET", "/status", [("X-A", "é")])], "200 | 400 "),
        "many heads": ([request("GET", "/status", [(f"X-{n}", "b") for n in range(2000)])], "200 | 400 | 431 "),
        "far too many heads": ([request("GET", "/status", [(f"X-{n}", "b" * 90) for n in range(9000)])], "400 | 431 "),
        "a long head": ([request("GET", "/status", long_head)], "400 | 431 "),
        "a long url": ([request("GET", "/" + "a" * 200_000)], "400 | 414 "),
        "a url of 60000 letters": ([request("GET", "/" + "a" * 60_000)], "404"),
        "a long query": ([request("GET", "/status?" + "a=b&" * 12_000)], "200"),
        "a url with a space": ([request("GET", "/sta tus")], "400 "),
        "a url that is not ascii": ([request("GET", "/é")], "400 | 404"),
        "a url elsewhere": ([request("GET", "http://evil.example/status")], "404 | 400 | 200"),
        "a url of a host": ([request("CONNECT", "evil.example:443")], "404 | 400 | 405"),
        "a star": ([request("OPTIONS", "*")], "404 | 400 | 405 | 200"),
        "no slash": ([request("GET", "status")], "404 | 400 "),
        "two slashes": ([request("GET", "//status")], "404"),
        "a slash at the end": ([request("GET", "/status/")], "307 | 404"),
        "capitals": ([request("GET", "/STATUS")], "404"),
        "a nul": ([request("GET", "/status%00")], "404"),
        "a new line": ([request("GET", "/status%0d%0aX:%20y")], "404"),
        "dots": ([request("GET", "/../../etc/passwd")], "404"),
        "encoded dots": ([request("GET", "/%2e%2e/%2e%2e/etc/passwd")], "404"),
        "dots in the page": ([request("GET", "/web/../../app.py")], "404"),
        "encoded dots in the page": ([request("GET", "/web/%2e%2e/app.py")], "404"),
        "encoded slashes in the page": ([request("GET", "/web/..%2fapp.py")], "404"),
        "twice encoded": ([request("GET", "/web/%252e%252e/app.py")], "404"),
        "backslashes in the page": ([request("GET", "/web/..%5capp.py")], "404"),
        "a folder of the page": ([request("GET", "/web/")], "404"),
        "a nul in the page": ([request("GET", "/web/app.js%00.css")], "404"),
        "a long name in the page": ([request("GET", "/web/" + "a" * 3000)], "404"),
        "an absolute path in the page": ([request("GET", "/web//etc/passwd")], "404"),
        "a start picture outside": ([request("GET", "/pictures/..%2f..%2fapp.png")], "404"),
        "a start picture with nul": ([request("GET", "/pictures/a%00.png")], "404"),
        "a wild range": ([request("GET", "/web/app.js", wild_range)], "206 | 200 | 416 | 400 "),
        "a range that is no range": ([request("GET", "/web/app.js", no_range)], "206 | 200 | 416 | 400 "),
        "a body on a get": ([request("GET", "/status", [], b"x" * 1000)], "200"),
        "a huge body on a get": ([request("GET", "/status", [], bytes(3_000_000))], "200 | 413 "),
        "requests in a row": ([kept * 50, status], "200"),
        "an upgrade to h2c": ([h2c], "200"),
        "a method of 9000 letters": ([request("A" * 9000, "/status")], "405 | 400 "),
        "a method in small letters": ([request("get", "/status")], "405 | 400 "),
        "a method with odd letters": ([request("G<>T", "/status")], "400 "),
        "docs": ([request("GET", "/docs")], "404"),
    }  # fmt: skip
    cases += [
        Case(name=f"http: {name}", expected=expected, run=sending(*pieces))
        for name, (pieces, expected) in table.items()
    ]
    body = multipart([("z0_image", "a.png", GOOD)])
    for origin in FOREIGN:
        cases += [
            Case(
                name=f"origin {origin}: upload",
                expected="403 origin not allowed",
                run=sending(request("POST", f"/z0/{USER}", [form_type(), ("Origin", origin)], body)),
            ),
            Case(
                name=f"origin {origin}: switch",
                expected="403 origin not allowed",
                run=sending(request("POST", "/switch", [form_type(), ("Origin", origin)], body)),
            ),
            Case(
                name=f"origin {origin}: play",
                expected="refused 403",
                run=playing(f"/ws/{USER}", ("Origin", origin)),
            ),
        ]

    def extended(value: str) -> bytes:
        return upgrade("/ws/nobody", [("Sec-WebSocket-Extensions", value)])

    odd_protocols = [("Sec-WebSocket-Protocol", "a b,,\x7f")]
    handshakes: dict[str, tuple[bytes, str]] = {
        "by post": (upgrade("/ws/nobody", method="POST"), "400 | 405 | 426 "),
        "without a key": (upgrade("/ws/nobody", key=None), "400 "),
        "with a short key": (upgrade("/ws/nobody", key="abc="), "400 "),
        "with a key that is no base64": (upgrade("/ws/nobody", key="!" * 24), "400 "),
        "without a version": (upgrade("/ws/nobody", version=None), "400 | 426 "),
        "of version 8": (upgrade("/ws/nobody", version="8"), "400 | 426 "),
        "without a connection head": (upgrade("/ws/nobody", connection=None), "404 | 400 | 426 "),
        "to something else": (upgrade("/ws/nobody", upgrade="tetris"), "404 | 400 | 426 "),
        "without a host": (upgrade("/ws/nobody", host=None), "400 "),
        "on another route": (upgrade("/status"), "403 "),
        "on the upload": (upgrade(f"/z0/{USER}"), "403 "),
        "nowhere": (upgrade("/nowhere"), "403 "),
        "with many heads": (upgrade("/ws/nobody", [(f"X-{n}", "b") for n in range(200)]), "400 | 431 | 403 "),
        "with a long head": (upgrade("/ws/nobody", [("X-A", "b" * 20_000)]), "400 | 431 | 403 "),
        "with a long query": (upgrade("/ws/nobody?ticket=" + "a" * 20_000), "400 | 414 | 403 "),
        "with a length": (upgrade("/ws/nobody", [("Content-Length", "5")]) + b"hello", "400 | 101 close 1008"),
        "with unknown extensions": (extended("permessage-deflate; x=y, z"), "101 close 1008"),
        "with broken extensions": (extended(";;;=,"), "400 | 101 close 1008"),
        "with broken protocols": (upgrade("/ws/nobody", odd_protocols), "400 | 101 close 1008"),
    }  # fmt: skip
    cases += [
        Case(name=f"handshake {name}", expected=expected, run=shaking(data))
        for name, (data, expected) in handshakes.items()
    ]
    return cases
