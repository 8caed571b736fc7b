"""Keys of `/v1`: who may use these routes.

Owns the check and how a key is kept: as its SHA-256. Called by `server.openai`; the command line makes keys.
"""

from __future__ import annotations

import hashlib
import secrets

from worldloop.core.errors import TicketError
from worldloop.core.settings import Settings

KEY_BYTES = 32


class Keys:
    """Whoever sends one of the settings' keys may pass; everyone, when there is none and players need no tickets."""

    def __init__(self, settings: Settings) -> None:
        self._hashes = list(settings.api_key_hashes)
        if settings.api_key is not None:
            self._hashes.append(hash_key(settings.api_key.get_secret_value()))
        self._tickets_required = settings.tickets_required

    @property
    def needed(self) -> bool:
        """Whether a request without a key is refused."""
        return bool(self._hashes) or self._tickets_required

    def check(self, authorization: str) -> None:
        """Raise `TicketError` unless this header lets a request pass; takes as long whichever key is right."""
        if not self.needed:
            return
        if not self._hashes:
            raise TicketError(
                "this server is not open: its operator has to set a key (`api_key`) for these routes"
            )
        scheme, _, given = authorization.partition(" ")
        found = hash_key(given.strip())
        same = [secrets.compare_digest(found, each) for each in self._hashes]
        if scheme.lower() != "bearer" or not any(same):
            raise TicketError("a valid API key is required, as `Authorization: Bearer KEY`")


def new_key() -> str:
    """A key that nobody can guess."""
    return secrets.token_urlsafe(KEY_BYTES)


def hash_key(key: str) -> str:
    """What the setting `api_key_hashes` holds of a key: its SHA-256, hexadecimal."""
    return hashlib.sha256(key.encode()).hexdigest()
