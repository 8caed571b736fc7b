"""Compiling: what it needs, and which modes can work on the served device.

Owns the probe and its wording; `models.compiled` says what is refused. Nothing is compiled here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import get_args

from worldloop.core.settings import Settings
from worldloop.doctor.machine import served_device
from worldloop.doctor.report import Finding, refusal, setting
from worldloop.models.compiled import Compile, DecoderMode, NetworkMode


def compiling(settings: Settings) -> Iterator[Finding]:
    """A C++ compiler, triton, and the modes that can work here."""
    place = served_device(settings)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    yield Finding(area="compile", name="C++ compiler", text=compiler or "none", value=compiler)
    triton = importlib.util.find_spec("triton") is not None
    lack = "none, and compiling for CUDA needs it" if place.type == "cuda" else "none"
    yield Finding(area="compile", name="triton", text="there" if triton else lack, value=triton)
    network = {mode: Compile(network=mode) for mode in get_args(NetworkMode)}
    decoder = {mode: Compile(decoder=mode) for mode in get_args(DecoderMode)}
    for name, modes in (("compile", network), ("compile_decoder", decoder)):
        can = [mode for mode, way in modes.items() if refusal(way.check, place) is None]
        yield Finding(area="compile", name=name, text=", ".join(can), value=can)
        instead = "default" if "default" in can else "off"
        yield from setting(name, f"{name}={instead}", modes[getattr(settings, name)].check, place)
