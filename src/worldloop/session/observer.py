"""What a server counts and times. The session layer reports here and knows nothing of how it is shown.

Implemented by `server.metrics`.
"""

from __future__ import annotations

from typing import Literal, Protocol

Stage = Literal["generate", "denoise", "decode", "memory", "encode", "send"]


class Observer(Protocol):
    """Receives events. Every call returns at once."""

    def refused(self, reason: str) -> None:
        """A request, socket or message was refused; `reason` is one word of a small fixed set."""
        ...

    def game_opened(self) -> None: ...

    def game_ended(self, kind: str) -> None: ...

    def picture_sent(self) -> None: ...

    def stage(self, name: Stage, seconds: float) -> None:
        """One latent frame (`generate`; of it on the device `denoise`, `decode`, `memory`) or one picture (`encode`,
        `send`) took this long."""
        ...

    def key_to_picture(self, seconds: float) -> None:
        """From the arrival of changed keys to the sending of the first picture made with them."""
        ...
