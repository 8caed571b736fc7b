"""Keys of `/v1`: which pass, and that a server need not hold them."""

from __future__ import annotations

from typing import Any

import pytest

from worldloop.core.errors import TicketError
from worldloop.core.settings import Settings
from worldloop.session.keys import Keys, hash_key, new_key

KEY = "a-key-of-16-chars"


def keys(**settings: Any) -> Keys:
    return Keys(Settings(**settings))


def test_without_keys_everyone_passes() -> None:
    assert not keys().needed
    keys().check("")


def test_with_tickets_and_no_key_nobody_passes() -> None:
    closed = keys(ticket_secret="s" * 16, server_id="one")

    assert closed.needed
    with pytest.raises(TicketError, match="not open"):
        closed.check(f"Bearer {KEY}")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_of_several_keys_passes(place: int) -> None:
    made = [new_key() for _ in range(3)]
    several = keys(api_key=KEY, api_key_hashes=tuple(hash_key(key) for key in made))

    several.check(f"Bearer {made[place]}")
    several.check(f"bearer {KEY} ")


@pytest.mark.parametrize(
    "header",
    [
        "",
        KEY,
        "Bearer",
        "Bearer ",
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {hash_key(KEY)}",
    ],
)
def test_what_is_no_key_does_not_pass(header: str) -> None:
    with pytest.raises(TicketError, match="valid API key"):
        keys(api_key_hashes=(hash_key(KEY),)).check(header)


def test_new_keys_differ_and_are_long() -> None:
    made = {new_key() for _ in range(100)}

    assert len(made) == 100
    assert min(map(len, made)) >= 43


def test_a_hash_is_sha256() -> None:
    assert hash_key("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
