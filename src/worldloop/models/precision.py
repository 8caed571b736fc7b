"""Number formats of a served world: which one each part is held and multiplied in, and whether this device can.

    mode       bulk weights   trunk multiplies in   K/V memory   conditioning, latents, sampling
    bf16       bfloat16       bfloat16 (or fp8)     bfloat16     float32
    autocast   float32        bfloat16              bfloat16     float32
    fp32       float32        float32               float32      float32

Owns the choice, the cast of the weights and what a pass runs under. Does not own the fp8 layers (`fp8`) or which
modules are conditioning (`summaryformer.ISLANDS`). Called by `host`, `api` and `loops.model`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

from worldloop.core.errors import InvalidInputError
from worldloop.models import fp8
from worldloop.models.device import DTYPES, capability, device_label, multiplies_bf16
from worldloop.models.summaryformer import Summaryformer

Mode = Literal["bf16", "autocast", "fp32"]
Fp8 = Literal["off", "row", "tensor"]
FP8_CAPABILITY = (8, 9)
"""First CUDA capability with fp8 matrix units (Ada)."""
NAMES: dict[Mode, str] = {
    "bf16": "bf16_with_fp32_islands", "autocast": "fp32_master_bf16_autocast", "fp32": "fp32",
}  # fmt: skip
"""The published names of the modes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Number formats of one world.

    Attributes:
        mode: of the network, see the table above.
        decoder: of the picture autoencoder.
        fp8: scales of the trunk's matrices in fp8; needs mode bf16.

    Raises:
        InvalidInputError: fp8 with another mode.
    """

    mode: Mode
    decoder: torch.dtype
    fp8: Fp8 = "off"

    def __post_init__(self) -> None:
        if self.fp8 != "off" and self.mode != "bf16":
            raise InvalidInputError(f"fp8_linears={self.fp8} needs dtype bf16, not {self.mode}")

    @classmethod
    def choose(
        cls, *, dtype: str = "auto", decoder_dtype: str = "auto", fp8: str = "off", device: torch.device
    ) -> Precision:
        """Resolve `auto`: bf16 where the device multiplies it natively, else fp32; the decoder bf16 unless fp32.

        Raises:
            InvalidInputError: an unknown name, or what this device or this mode cannot do.
        """
        _known("dtype", dtype, ("auto", *get_args(Mode)))
        _known("decoder_dtype", decoder_dtype, ("auto", *DTYPES))
        _known("fp8_linears", fp8, get_args(Fp8))
        if fp8 != "off":
            _check_fp8(fp8, device)
        if dtype == "auto":
            dtype = "bf16" if multiplies_bf16(device) else "fp32"
        if decoder_dtype == "auto":
            decoder_dtype = "fp32" if dtype == "fp32" else "bf16"
        return cls(mode=cast(Mode, dtype), decoder=DTYPES[decoder_dtype], fp8=cast(Fp8, fp8))

    @property
    def name(self) -> str:
        """The mode's published name."""
        return NAMES[self.mode]

    @property
    def weights(self) -> torch.dtype:
        """Of the bulk weights; conditioning is always float32."""
        return torch.bfloat16 if self.mode == "bf16" else torch.float32

    @property
    def memory(self) -> torch.dtype:
        """Of keys and values."""
        return torch.float32 if self.mode == "fp32" else torch.bfloat16

    def cast(self, network: Summaryformer, device: torch.device | str = "cpu") -> Summaryformer:
        """Make the network ready to serve, in place: on the device, cast, in evaluation mode, without gradients.

        Raises:
            InvalidInputError: fp8, and a matrix or the kernel does not fit.
        """
        network.to_serving(self.weights, device)
        if self.fp8 != "off":
            fp8.apply(network, self.fp8)
        return network

    def running(self, device: torch.device) -> AbstractContextManager[Any]:
        """What a pass of the network runs under."""
        if self.mode == "autocast":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()


def _known(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(f"{key}={value!r} must be {', '.join(allowed[:-1])} or {allowed[-1]}")


def _check_fp8(mode: str, device: torch.device) -> None:
    if (capability(device) or (0, 0)) < FP8_CAPABILITY:
        raise InvalidInputError(
            f"fp8_linears={mode} needs a CUDA device of capability 8.9 or higher (Ada, Hopper, Blackwell); "
            f"this is {device_label(device)}"
        )
