"""One hostile case: what is done, and the answer that is right."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from ..client import Live

SECRET, SERVER = "a secret of the tests", "arena-7"


@dataclass(frozen=True, kw_only=True)
class Case:
    """`run` says what came back: a status or a code, then its text.

    Attributes:
        expected: the right answer's first word, and after it words that its text must hold, parted by `...`. `|`
            separates right answers where several are.
    """

    name: str
    expected: str
    run: Callable[[Scene], str]

    def wrong(self, scene: Scene) -> str | None:
        """None, or what was answered in place of the right thing."""
        try:
            got = self.run(scene)
        except Exception as error:  # noqa: BLE001 (a case that fails must not hide the others)
            got = f"{type(error).__name__}: {error}"
        right = any(fits(choice.strip(), got) for choice in self.expected.split("|"))
        return None if right else f"{self.name}: {got[:300]!r} is not {self.expected!r}"


def fits(expected: str, got: str) -> bool:
    first, _, word = expected.partition(" ")
    got_first, _, text = got.partition(" ")
    return got_first == first and all(part.strip() in text for part in word.split("..."))


@dataclass
class Scene:
    """A running server, and names for players that nobody else uses."""

    live: Live
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def url(self) -> str:
        return self.live.url

    def fresh(self) -> str:
        return f"rogue-{next(self._numbers)}"


def ticket(
    user: str,
    *,
    server: str = SERVER,
    expires_in_s: int = 600,
    secret: str = SECRET,
    expiry: str | None = None,
) -> str:
    """A ticket as the queue would sign it."""
    claim = f"{user}.{server}.{expiry or int(time.time()) + expires_in_s}"
    return f"{claim}.{hmac.new(secret.encode(), claim.encode(), hashlib.sha256).hexdigest()}"


def said(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text}"
