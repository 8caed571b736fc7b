"""The exception tree. One root, and one place each where HTTP status, close code and exit code come from it.

    WorldloopError
    ├── InvalidInputError           what the caller sent is wrong            400, close 1008, exit 2
    │   ├── PictureError            a picture cannot be read or is too large 400
    │   ├── TooLargeError           a body or file is over its limit         413
    │   ├── SnapshotError           a snapshot or tape does not fit          400
    │   └── SettingsError           a setting is unknown or out of range     exit 2
    ├── CheckpointError             a weights file is refused, by name       exit 2
    ├── BusyError                   no slot is free                          423, close 1013
    │   └── CapacityError           the device has no bytes or time left     423, close 1013
    ├── NotReadyError               a step that must come first is missing   412, close 1008
    │   └── NoGameError             this player has no game on a socket      404
    ├── TicketError                 no valid ticket                          401, close 1008
    ├── SessionEndedError           the session is over, with its reason     410
    └── EngineError                 a plan failed; its own session only      500, close 1011
        ├── DeviceMemoryError       the device had too little memory for it  503, close 1011
        └── DeviceLostError         the device is out of service             503, close 1011

A message says what was wrong, where, and what would be right. Messages never hold secrets or paths of the
host; `CheckpointError` holds a file's base name.
"""

from __future__ import annotations


class WorldloopError(Exception):
    """Root of every error that this package raises on purpose."""

    http_status = 500
    close_code = 1011
    exit_code = 1


class InvalidInputError(WorldloopError, ValueError):
    """The caller's value is wrong; the message names it and what is allowed."""

    http_status = 400
    close_code = 1008
    exit_code = 2


class PictureError(InvalidInputError):
    """A start picture cannot be read, or is larger than the limits."""


class TooLargeError(InvalidInputError):
    """A request body or file is over its limit; the message says the limit."""

    http_status = 413


class SnapshotError(InvalidInputError):
    """A snapshot or tape is damaged, or of another world than the one that is served."""


class SettingsError(InvalidInputError):
    """A setting is unknown, of the wrong type, or out of range."""


class CheckpointError(WorldloopError):
    """A weights file is refused: `file`, the fact that is wrong, what was found and what is allowed.

    `key`, `found` and `allowed` are None when the file as a whole is the problem.
    """

    exit_code = 2

    def __init__(
        self,
        file: str,
        problem: str,
        *,
        key: str | None = None,
        found: object = None,
        allowed: str | None = None,
    ) -> None:
        super().__init__(f"{file}: {problem}")
        self.file, self.problem = file, problem
        self.key, self.found, self.allowed = key, found, allowed


class BusyError(WorldloopError):
    """Every slot is taken."""

    http_status = 423
    close_code = 1013


class CapacityError(BusyError):
    """The device has too few bytes or too little time left; the message says what is needed and what would fit."""


class NotReadyError(WorldloopError):
    """A step that must come first has not been done."""

    http_status = 412
    close_code = 1008


class NoGameError(NotReadyError):
    """This player has no game that is being played."""

    http_status = 404


class TicketError(WorldloopError):
    """Tickets are required and this one does not admit the user."""

    http_status = 401
    close_code = 1008


class SessionEndedError(WorldloopError):
    """The session is over; the message is its reason."""

    http_status = 410
    close_code = 1000


class EngineError(WorldloopError):
    """A plan failed. Only its own session ends."""


class DeviceMemoryError(EngineError):
    """The device ran out of memory in a plan. Its session ends; the others go on."""

    http_status = 503


class DeviceLostError(EngineError):
    """The device does not work any more. Every session ends, and none begins until the process is started anew."""

    http_status = 503
