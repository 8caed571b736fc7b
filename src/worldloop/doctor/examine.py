"""The examination: every probe in order, each guarded, and the world opened in between.

Called by the command line, which prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worldloop.core.errors import SettingsError
from worldloop.core.settings import Settings
from worldloop.doctor import compiling, machine, serving, stream
from worldloop.doctor.report import Diagnosis, Finding, guarded

USUAL_SIZE = (96, 160)
"""(height, width) of the pictures to code where no world could be opened."""


def examine(config: Path | None = None, /, **flags: Any) -> Diagnosis:
    """Look at this machine with the settings of `Settings.load(config, **flags)`; opens the world and runs it."""
    return Diagnosis(findings=tuple(_findings(config, flags)))


def _findings(config: Path | None, flags: dict[str, Any]) -> Iterator[Finding]:
    device: list[Finding] = []
    try:
        settings = Settings.load(config, **flags)
    except SettingsError as error:
        settings = Settings.model_construct()
        text = f"{error}; everything else is told for the defaults"
        device.append(Finding(area="settings", name="settings", text=text, stops=True))
    device += guarded("machine", machine.machine(settings))
    device += guarded("devices", machine.cards(settings))
    device += guarded("number formats", machine.formats(settings))
    device += guarded("compile", compiling.compiling(settings))
    yield from device
    if wrong := [finding.name for finding in device if finding.stops]:
        text = f"not opened: first see to {', '.join(wrong)}"
        world = [Finding(area="world", name=settings.world, text=text)]
    else:
        world = list(guarded("world", serving.world(settings), needed=True))
    yield from world
    sizes = (tuple(finding.value) for finding in world if finding.name == serving.SIZE)
    height, width = next(sizes, USUAL_SIZE)
    yield from guarded("video encoders", stream.encoders(settings, (height, width)), needed=True)
    yield from guarded("browser", stream.browser(settings, (height, width)))
    yield from guarded("server", serving.server(settings), needed=True)
    yield from guarded("settings", serving.changed(settings))
