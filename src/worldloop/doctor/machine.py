"""The machine: versions, processor, memory, cards, number formats, compiling.

Owns the probes and their wording. Whether a setting can work is asked of the part that would refuse it at start.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch

from worldloop.core.settings import Settings
from worldloop.doctor.report import Finding, refusal, setting
from worldloop.models import device as devices
from worldloop.models.precision import Mode, Precision

FILES_A_PLAYER, FILES_SPARE = 4, 64
"""Open files that a server may need: of every slot, and besides."""


def machine(settings: Settings) -> Iterator[Finding]:
    """Versions, processor, memory, limits."""
    yield _line("worldloop", importlib.metadata.version("worldloop"))
    yield _line("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield _line("torch", torch.__version__)
    yield _line("processor", _cpu_name())
    cores, load = devices.usable_cores(), os.getloadavg()[0]
    threads = settings.threads or cores
    more = "; more threads than cores wait for each other: set threads=0" if threads > cores else ""
    yield _line("cores", f"{cores} usable, model's threads: {threads}{more}", cores)
    more = "; others compute here: speeds below are too low" if load > cores / 2 else ""
    yield _line("load", f"{load:.1f}{more}", load)
    wide, bf16 = bool(torch.cpu.get_capabilities().get("avx512_f")), devices.cpu_has_bf16()
    yield _line(
        "instructions", f"AVX-512 {_yes(wide)}, bfloat16 {_yes(bf16)}", {"avx512": wide, "bf16": bf16}
    )
    free, total = _memory()
    yield _line("memory", f"{_gib(free)} free of {_gib(total)}", {"free": free, "total": total})
    limit = _open_files()
    needed = FILES_SPARE + FILES_A_PLAYER * settings.slots
    few = (
        f"; {settings.slots} slots may need {needed}: run `ulimit -n {needed}` first"
        if limit < needed
        else ""
    )
    yield _line("open files", f"{limit} allowed{few}", limit)


def cards(settings: Settings) -> Iterator[Finding]:
    """CUDA devices, and the one that is chosen."""
    for index in range(torch.cuda.device_count()):
        place = torch.device("cuda", index)
        total = torch.cuda.get_device_properties(index).total_memory
        name, bf16, fp8 = (
            devices.device_label(place),
            devices.multiplies_bf16(place),
            _fp8_refusal(place) is None,
        )
        text = f"{name}, {_gib(total)}, bfloat16 {_yes(bf16)}, fp8 {_yes(fp8)}"
        value = {"name": name, "bytes": total, "bf16": bf16, "fp8": fp8}
        yield Finding(area="devices", name=str(place), text=text, value=value)
    if not torch.cuda.device_count():
        built = torch.backends.cuda.is_built()
        why = "torch finds no card" if built else f"torch {torch.__version__} is built without it"
        yield Finding(area="devices", name="cuda", text=f"none: {why}", value=[])
    auto = devices.pick_device("auto")
    yield Finding(area="devices", name="auto", text=devices.device_label(auto), value=str(auto))
    yield from setting("device", "device=auto", devices.pick_device, settings.device)


def formats(settings: Settings) -> Iterator[Finding]:
    """Number formats of the served device, and what `auto` is."""
    place = served_device(settings)
    auto = Precision.choose(device=place).mode
    can = [mode for mode in get_args(Mode) if refusal(Precision.choose, dtype=mode, device=place) is None]
    text = f"{', '.join(can)}; auto is {auto}"
    yield Finding(area="number formats", name="dtype", text=text, value={"can": can, "auto": auto})
    why = _fp8_refusal(place)
    modes = ["row", "tensor"] if why is None else []
    yield Finding(area="number formats", name="fp8_linears", text=why or ", ".join(modes), value=modes)
    asked = {"dtype": settings.dtype, "decoder_dtype": settings.decoder_dtype}
    yield from setting("dtype", "dtype=auto", Precision.choose, **asked, device=place)
    if (fp8 := settings.fp8_linears) != "off":
        instead = "fp8_linears=off"
        yield from setting("fp8_linears", instead, Precision.choose, **asked, fp8=fp8, device=place)


def served_device(settings: Settings) -> torch.device:
    """The device of the settings, or the automatic one where there is no such device."""
    wrong = refusal(devices.pick_device, settings.device) is not None
    return devices.pick_device("auto" if wrong else settings.device)


def _fp8_refusal(place: torch.device) -> str | None:
    return refusal(Precision.choose, dtype="bf16", fp8="row", device=place)


def _line(name: str, text: str, value: Any = None) -> Finding:
    return Finding(area="machine", name=name, text=text, value=text if value is None else value)


def _yes(so: bool) -> str:
    return "yes" if so else "no"


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> tuple[int | None, int | None]:
    """(free, total) bytes; the kernel's estimate of what a new process may take. None where it is not told."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return None, None
    sizes = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    free, total = (int(sizes[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    return free, total


def _open_files() -> float:
    """Files that this process may hold open, infinity where there is no limit."""
    import resource  # not on every system: its absence is this line's failure, not the report's

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit
