"""What a server counts and times. The session layer reports here and knows nothing of how it is shown.

Implemented by `server.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from worldloop.session.host import HostReport
from worldloop.session.socket import EndingKind

Stage = Literal["generate", "denoise", "decode", "memory", "encode", "send"]
ImageEvent = Literal["queued", "made", "failed", "cancelled"]

REASONS = (
    "busy",
    "capacity",
    "checkpoint",
    "devicelost",
    "devicememory",
    "engine",
    "error",
    "form",
    "host",
    "invalidinput",
    "nogame",
    "not_an_object",
    "not_json",
    "nosuchmodel",
    "nosuchpicture",
    "nosuchvideo",
    "notready",
    "origin",
    "out_of_range",
    "picture",
    "picturequeuefull",
    "picturetoolarge",
    "queuefull",
    "resume",
    "sessionended",
    "settings",
    "snapshot",
    "stopping",
    "ticket",
    "too_large",
    "toolarge",
    "worldloop",
    "wrong_type",
    "wrongfield",
)
"""Every reason of a refusal: an error's class (see `arena.reason_of`), a code of `wire.controls`, or a guard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """What there is at this moment.

    Attributes:
        ready: whether a model is in service and games may begin.
        live, held: games whose socket is open, and games that wait after a break.
        pictures: made and not sent yet, of all games.
        requests: uploads and switches under way.
        stash, stash_bytes: start pictures that wait, and their bytes.
        host: the device side's.
    """

    ready: bool
    live: int
    held: int
    pictures: int
    requests: int
    stash: int
    stash_bytes: int
    host: HostReport


class Observer(Protocol):
    """Receives events. Every call returns at once."""

    def refused(self, reason: str) -> None:
        """A request, socket or message was refused; `reason` is one of `REASONS`."""
        ...

    def game_resumed(self) -> None:
        """A held game was taken up again, or moved to another socket."""
        ...

    def game_ended(self, kind: EndingKind) -> None: ...

    def picture_sent(self) -> None: ...

    def stage(self, name: Stage, seconds: float) -> None:
        """One latent frame (`generate`; of it on the device `denoise`, `decode`, `memory`) or one picture (`encode`,
        `send`) took this long."""
        ...

    def key_to_picture(self, seconds: float) -> None:
        """From the arrival of changed keys to the sending of the first picture made with them."""
        ...

    def images(self, event: ImageEvent, count: int) -> None:
        """So many pictures on order were queued, made, failed or were given up."""
        ...

    def image_phase(self, phase: str, seconds: float) -> None:
        """A picture on order took this long for a phase: `queue`, one of the device's, or `file`."""
        ...
