"""The lines of a diagnosis, and how a probe that fails becomes one.

Owns shapes and the rule of what stops a server. Does not own probes (`machine`, `stream`, `serving`) or printing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from worldloop.core.errors import WorldloopError


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line.

    Attributes:
        area, name: where it stands.
        text: for people.
        value: for programs: a number, a boolean, text, None, or lists and dictionaries of them.
        stops: whether `worldloop play` can't work because of it.
    """

    area: str
    name: str
    text: str
    value: Any = None
    stops: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Everything that was found, in the order of the report."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> list[str]:
        """Why `worldloop play` would not work; empty when it would."""
        return [f"{finding.name}: {finding.text}" for finding in self.findings if finding.stops]

    @property
    def works(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON: `{"works", "problems", "findings"}`."""
        return {
            "works": self.works,
            "problems": self.problems,
            "findings": [asdict(finding) for finding in self.findings],
        }


def guarded(area: str, probe: Iterable[Finding], *, needed: bool = False) -> Iterator[Finding]:
    """What a probe finds up to where it fails, and how it failed.

    An error of our own is what a server would stop with. Any other is too when the server does what the probe does
    (`needed`); else it says nothing about the server.
    """
    try:
        yield from probe
    except WorldloopError as error:
        yield Finding(area=area, name=area, text=one_line(error), stops=True)
    except Exception as error:  # noqa: BLE001 -- a probe that fails is a line of the report
        how = "fails" if needed else "could not be told"
        text = f"{how} ({type(error).__name__}: {one_line(error)})"
        yield Finding(area=area, name=area, text=text, stops=needed)


def refusal(check: Callable[..., object], /, *values: Any, **named: Any) -> str | None:
    """Why our own code refuses this call; None when it does not."""
    try:
        check(*values, **named)
    except WorldloopError as error:
        return one_line(error)
    return None


def setting(
    name: str, instead: str, check: Callable[..., object], /, *values: Any, **named: Any
) -> Iterator[Finding]:
    """A line when our own code refuses this call, which a setting's value leads to: why, and what to set instead."""
    if (why := refusal(check, *values, **named)) is not None:
        yield Finding(area="settings", name=name, text=f"{why}; set {instead}", stops=True)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
