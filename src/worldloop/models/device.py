"""The one file that says "cuda": picks a device, a dtype and a number of threads, and says why.

Called by whoever assembles a model (`api`, `cli`, `trainer`).
"""

from __future__ import annotations

import os

import torch

from worldloop.core.errors import InvalidInputError

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is the first CUDA device when there is one, else the CPU; any torch device name is taken as it is."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device multiplies it natively, else float32.

    Raises:
        InvalidInputError: an unknown name.
    """
    if name == "auto":
        return torch.bfloat16 if device.type != "cpu" or cpu_has_bf16() else torch.float32
    if name not in DTYPES:
        raise InvalidInputError(f"dtype={name!r} must be auto, {' or '.join(DTYPES)}")
    return DTYPES[name]


def cpu_has_bf16() -> bool:
    """Whether this processor has bfloat16 dot products (AVX-512 BF16 or AMX)."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def set_threads(count: int) -> int:
    """Set torch's intra-op threads (0 = every core this process may use) and return their number."""
    count = count or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    return count


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was launched; nothing to do on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
