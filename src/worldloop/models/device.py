"""The one file that says "cuda": picks a device and a number of threads, and tells what they can.

Called by whoever assembles a model (`api`, `cli`, `trainer`).
"""

from __future__ import annotations

import os
import re

import torch

from worldloop.core.errors import InvalidInputError
from worldloop.core.memory import give_memory_back

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is the first CUDA device when there is one, else the CPU.

    From then on float32 is float32 on CUDA, in convolutions too, which TF32 rounds to 11 bits by default.

    Raises:
        InvalidInputError: an unknown name, a CUDA device that does not exist, or a torch without CUDA.
    """
    torch.backends.cudnn.allow_tf32 = False
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    if not (match := re.fullmatch(r"cuda(?::(\d{1,3}))?", name)):
        raise InvalidInputError(f"device={name!r} must be auto, cpu, cuda or cuda:N")
    if not torch.backends.cuda.is_built():
        raise InvalidInputError(
            f"device={name!r} needs a torch with CUDA; torch {torch.__version__} has none"
        )
    index, count = int(match[1] or 0), torch.cuda.device_count()
    if index >= count:
        there = f"it sees {count}, numbered from 0" if count else "it sees none (is the driver installed?)"
        raise InvalidInputError(f"device={name!r} must be a CUDA device that torch sees; {there}")
    return torch.device("cuda", index) if match[1] else torch.device("cuda")


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 natively: CUDA from capability 8.0 (Ampere) on, or see `cpu_has_bf16`."""
    known = capability(device)
    return cpu_has_bf16() if known is None else known >= (8, 0)


def cpu_has_bf16() -> bool:
    """Whether this processor has bfloat16 dot products (AVX-512 BF16 or AMX)."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def capability(device: torch.device) -> tuple[int, int] | None:
    """CUDA capability (major, minor); None for a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def device_label(device: torch.device) -> str:
    """For people: `a CPU`, or a CUDA device's name and capability."""
    known = capability(device)
    if known is None:
        return "a CPU"
    return f"{torch.cuda.get_device_name(device)}, capability {known[0]}.{known[1]}"


def byte_label(device: torch.device) -> str:
    """What the last bits of a result depend on: a CUDA device's name, or a CPU's widest instructions."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU with {torch.backends.cpu.get_cpu_capability()}"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int) -> int:
    """Set torch's intra-op threads (0 = every core this process may use) and return their number.

    Raises:
        InvalidInputError: below 0.
    """
    if count < 0:
        raise InvalidInputError(f"threads={count} must be 0 (every core) or above")
    count = count or usable_cores()
    torch.set_num_threads(count)
    return count


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was launched; nothing to do on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def total_memory(device: torch.device) -> int | None:
    """Bytes of a CUDA device; None for a CPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a CUDA device now; all of main memory for a CPU, whose use says little."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_cache(device: torch.device) -> None:
    """Give back what the allocator keeps for later."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    give_memory_back()


def out_of_memory(error: BaseException) -> bool:
    """Whether the device or the machine had too little memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in str(error)


def is_lost(error: BaseException) -> bool:
    """Whether nothing will run on the device any more: an error that CUDA reports at every later call."""
    sticky = getattr(torch, "AcceleratorError", ())
    return not out_of_memory(error) and (isinstance(error, sticky) or "CUDA error" in str(error))
