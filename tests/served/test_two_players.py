"""Two players at once get the bytes that each would get alone, on the shipped world."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .client import Live
from .conftest import Serve

PICTURES = Path(__file__).parents[2] / "src" / "worldloop" / "assets" / "pictures" / "meadow"
PLAYERS = {"ann": ("lakeside.png", "w"), "bob": ("pine-road.png", "d")}
UNITS = 61
ATTEMPTS = 20


def play(live: Live, user: str, other_key: str | None = None) -> list[bytes]:
    """Hold one key from the first dreamed frame on; the first `UNITS` pictures."""
    picture, own_key = PLAYERS[user]
    key = other_key or own_key
    for _ in range(ATTEMPTS):
        with live.playing(user, (PICTURES / picture).read_bytes()) as stream:
            stream.text("hello")
            stream.hold(key, seq=1)
            # A key that came after the first dreamed frame had begun shapes the next one: then once more.
            if stream.text("ack")["frame"] == 1:
                while len(stream.units) < UNITS:
                    stream.unit()
                return stream.units
    raise AssertionError("this machine is too busy to press a key in time")


def test_two_players_get_the_bytes_that_each_would_get_alone(serve: Serve) -> None:
    live = serve("meadow", slots=2)
    alone = {user: play(live, user) for user in PLAYERS}
    with ThreadPoolExecutor(2) as pool:
        together = dict(zip(PLAYERS, pool.map(lambda user: play(live, user), PLAYERS), strict=True))
    assert together == alone
    assert alone["ann"][1:] != alone["bob"][1:]
    # The control: a player who holds another key gets other bytes.
    assert play(live, "bob", "a") != alone["bob"]
