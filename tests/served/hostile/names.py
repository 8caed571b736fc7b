"""User ids and tickets, in every place that takes one."""

from __future__ import annotations

import time
from urllib.parse import quote

from .acts import GOOD, USER, playing, sending
from .case import SECRET, Case, ticket
from .raw import form_type, multipart, request

BAD_IDS = {
    "backslash at its end": "a%5C",
    "space": "%20",
    "space within": "a%20b",
    "65 letters": "a" * 65,
    "5000 letters": "a" * 5000,
    "nul": "a%00b",
    "new line": "a%0Ab",
    "return": "a%0D%0AX-Evil:%201",
    "percent": "a%25b",
    "half a percent": "a%2",
    "percent of no number": "%zz",
    "umlaut": "%C3%A4",
    "umlaut in latin-1": "%E4",
    "other digits": "%D9%A3",
    "full width": "%EF%BD%81",
    "emoji": "%F0%9F%A6%8A",
    "surrogate": "%ED%A0%80",
    "turned around": "a%E2%80%AEb",
    "zero width": "a%E2%80%8Bb",
    "backslash": "..%5C..%5Cx",
    "colon": "C:x",
    "tilde": "~",
    "star": "*",
    "semicolon": "a;b",
    "quote": "a'b",
    "double quote": "a%22b",
    "tag": "%3Cscript%3E",
    "braces": "%7B%7Buser%7D%7D",
    "dollar": "$HOME",
    "at": "a@b",
    "plus": "a+b",
    "comma": "a,b",
    "equals": "a=b",
    "ampersand": "a&b",
    "pipe": "a%7Cb",
}

NO_ROUTE = {
    "nothing": "",
    "parent": "../x",
    "encoded slash": "..%2F..%2Fetc%2Fpasswd",
    "slash within": "a/b",
}

ODD_IDS = {
    "a dot": ".",
    "two dots": "..",
    "dots": "...",
    "dashes": "--",
    "64 letters": "z" * 64,
    "a file": ".bashrc",
}


def id_cases() -> list[Case]:
    """User ids in the three places that take one."""
    cases: list[Case] = []
    body = multipart([("z0_image", "a.png", GOOD)])
    refused = [
        ("400 user id must be", "close 1008 ... user id must be", BAD_IDS),
        ("404", "refused 403", NO_ROUTE),
    ]
    for answer, end, users in refused:
        for name, user in users.items():
            reserve = sending(request("GET", f"/create-game/{user}"))
            upload = sending(request("POST", f"/z0/{user}", [form_type()], body))
            cases += [
                Case(name=f"id {name}: reserve", expected=answer, run=reserve),
                Case(name=f"id {name}: upload", expected=answer, run=upload),
                Case(name=f"id {name}: play", expected=end, run=playing(f"/ws/{user}")),
            ]
    return cases


def ticket_cases() -> list[Case]:
    """Tickets that don't admit, in the three places that take one. For a server that asks for tickets."""
    mine = ticket(USER)
    user, server, expiry, signature = mine.rsplit(".", 3)
    past = str(int(time.time()) - 10)
    table: dict[str, tuple[str, str]] = {
        "none": ("", "malformed"),
        "blank": ("   ", "malformed"),
        "a word": ("letmein", "malformed"),
        "dots": ("...", "another user"),
        "many dots": ("." * 3000, "another user"),
        "three fields": (f"{user}.{server}.{expiry}", "malformed"),
        "of another user": (ticket("somebody"), "another user"),
        "of another user, renamed": (
            f"{USER}.{server}.{expiry}.{ticket('somebody').rsplit('.', 1)[1]}",
            "signature",
        ),
        "of another server": (ticket(USER, server="arena-8"), "another server"),
        "of another server, renamed": (
            f"{USER}.{server}.{expiry}.{ticket(USER, server='arena-8').rsplit('.', 1)[1]}",
            "signature",
        ),
        "of another secret": (ticket(USER, secret="guess"), "signature"),
        "of no secret": (ticket(USER, secret=""), "signature"),
        "expired": (ticket(USER, expires_in_s=-5), "expired"),
        "expired, prolonged": (
            f"{USER}.{server}.{expiry}.{ticket(USER, expiry=past).rsplit('.', 1)[1]}",
            "signature",
        ),
        "of the year 0": (ticket(USER, expiry="0"), "expired"),
        "negative": (ticket(USER, expiry="-1"), "expiry"),
        "with a float": (ticket(USER, expiry="9999999999.5"), "another user"),
        "with an exponent": (ticket(USER, expiry="1e12"), "expiry"),
        "with a huge expiry": (ticket(USER, expiry="9" * 400), "expiry"),
        "with infinity": (ticket(USER, expiry="inf"), "expiry"),
        "with other digits": (ticket(USER, expiry="٩٩٩٩٩٩٩٩٩٩"), "expiry"),
        "with a sign": (ticket(USER, expiry="+9999999999"), "expiry"),
        "without a signature": (f"{USER}.{server}.{expiry}.", "signature"),
        "with half a signature": (mine[:-32], "signature"),
        "with a longer signature": (mine + "0", "signature"),
        "with a turned bit": (mine[:-1] + ("0" if mine[-1] != "0" else "1"), "signature"),
        "with a signature of zeroes": (f"{USER}.{server}.{expiry}." + "0" * 64, "signature"),
        "with a signature of emoji": (f"{USER}.{server}.{expiry}." + "🦊" * 16, "signature"),
        "with a signature in full width": (f"{USER}.{server}.{expiry}." + "ａ" * 64, "signature"),
        "with nul": (f"{mine}\x00", "signature"),
        "of another case": (mine.replace(USER, USER.upper()), "another user"),
        "of one more field": (f"x.{mine}", "another user"),
        "of 30000 letters": ("a" * 30_000, "malformed"),
        "as json": ('{"user": "' + USER + '"}', "malformed"),
        "with the secret": (SECRET, "malformed"),
        "in base64": ("cm9ndWUtY2xlcms=", "malformed"),
    }
    cases: list[Case] = []
    for name, (bad, why) in table.items():
        query = f"?ticket={quote(bad)}"
        body = multipart([("z0_image", "a.png", GOOD), ("ticket", None, bad.encode())])
        cases += [
            Case(
                name=f"ticket {name}: upload",
                expected=f"401 {why}",
                run=sending(request("POST", f"/z0/{USER}", [form_type()], body)),
            ),
            Case(
                name=f"ticket {name}: reserve",
                expected=f"401 {why}",
                run=sending(request("GET", f"/create-game/{USER}{query}")),
            ),
        ]
        # The WebSocket handshake takes a line of 8 KB.
        if len(query) < 6000:
            cases.append(
                Case(
                    name=f"ticket {name}: play",
                    expected=f"close 1008 ... {why}",
                    run=playing(f"/ws/{USER}{query}"),
                )
            )
    twice = f"?ticket={quote(mine)}&ticket=x"
    cases += [
        Case(
            name="ticket twice, the last one bad",
            expected="401",
            run=sending(request("GET", f"/create-game/{USER}{twice}")),
        ),
        Case(
            name="ticket in a header",
            expected="401",
            run=sending(request("GET", f"/create-game/{USER}", [("Authorization", f"Bearer {mine}")])),
        ),
        Case(
            name="ticket in a cookie",
            expected="401",
            run=sending(request("GET", f"/create-game/{USER}", [("Cookie", f"ticket={mine}")])),
        ),
        Case(
            name="switch without a ticket",
            expected="401",
            run=sending(
                request(
                    "POST",
                    "/switch",
                    [("Content-Type", "application/x-www-form-urlencoded")],
                    b"model_id=tiny-3r",
                )
            ),
        ),
        Case(
            name="ticket in capitals",
            expected="412 no start picture",
            run=sending(
                request("GET", f"/create-game/{USER}?ticket={user}.{server}.{expiry}.{signature.upper()}")
            ),
        ),
        Case(
            name="a right ticket",
            expected="412 no start picture",
            run=sending(request("GET", f"/create-game/{USER}?ticket={quote(mine)}")),
        ),
    ]
    return cases
