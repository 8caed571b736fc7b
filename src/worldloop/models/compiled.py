"""Compiled passes: the pass of a body frame in fixed shapes, and how it and the decoder are compiled.

    as written   reads the filled rows, a number that grows with the frame; writes to a slice
    static       reads every row, those not filled under a bias of -inf; writes to rows that a tensor names

Nothing about the frame reaches the static form as a Python number, so one graph serves every body frame: the fill of
the memory, its steady state, any number of passes, and other weights in the same places. Both forms are the same
`Summaryformer.pass_record`; they differ in the memory that it is given, and a test holds them equal.
Owns the modes and what they need. Does not own which pass is compiled (`loops.model`) or the game that pays for it
(`loops.warmup`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor

from worldloop.core.errors import InvalidInputError
from worldloop.models.autoencoder import Autoencoder, to_bytes
from worldloop.models.memory import Buffers
from worldloop.models.summaryformer import Film, Summaryformer

NetworkMode = Literal["off", "default", "max-autotune-no-cudagraphs", "max-autotune+cudagraphs"]
DecoderMode = Literal["off", "default", "max-autotune-no-cudagraphs"]
GRAPHS = "max-autotune+cudagraphs"
GRAPH_OPTIONS = {"max_autotune": True, "coordinate_descent_tuning": True, "triton.cudagraphs": True}

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Compile:
    """What is compiled, and how.

    Attributes:
        network: mode of the body frames' passes. The start picture's pass runs as written.
        decoder: mode of the picture decoder, from the first body frame on.
        dynamic: compile for changing shapes; ours never change.
        recompile_limit: graphs that a function may hold before it runs as written, at least 1.

    Raises:
        InvalidInputError: an unknown mode, or a limit below 1.
    """

    network: NetworkMode = "off"
    decoder: DecoderMode = "off"
    dynamic: bool = False
    recompile_limit: int = 64

    def __post_init__(self) -> None:
        for name, value, modes in (
            ("compile", self.network, get_args(NetworkMode)),
            ("compile_decoder", self.decoder, get_args(DecoderMode)),
        ):
            if value not in modes:
                raise InvalidInputError(f"{name}={value!r} must be {', '.join(modes[:-1])} or {modes[-1]}")
        if self.recompile_limit < 1:
            raise InvalidInputError(f"recompile_limit={self.recompile_limit} must be at least 1")

    @property
    def any(self) -> bool:
        """Whether anything is compiled."""
        return (self.network, self.decoder) != ("off", "off")

    @property
    def records(self) -> bool:
        """Whether passes are recorded as CUDA graphs, which know their memory by its address."""
        return self.network == GRAPHS

    def check(self, device: torch.device) -> None:
        """Refuse what the device cannot do.

        Raises:
            InvalidInputError: CUDA graphs on another device, or a CPU without a C++ compiler.
        """
        if device.type != "cpu":
            return
        if self.records:
            raise InvalidInputError(
                f"compile={GRAPHS} needs a CUDA device; this is a CPU, where default and "
                "max-autotune-no-cudagraphs work"
            )
        compiler = os.environ.get("CXX", "g++")
        if self.any and shutil.which(compiler) is None:
            name = "compile" if self.network != "off" else "compile_decoder"
            raise InvalidInputError(
                f"{name}={getattr(self, name.removeprefix('compile_').replace('compile', 'network'))} needs a C++ "
                f"compiler on a CPU, and {compiler!r} is not on the path: install g++, set CXX, or use off"
            )

    def network_pass(self) -> Callable[..., Tensor]:
        """`static_pass`, compiled."""
        return self._compiled(static_pass, self.network)

    def decode(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """`decode_body`, compiled, or as written when that is off."""
        return decode_body if self.decoder == "off" else self._compiled(decode_body, self.decoder)

    def _compiled(self, function: F, mode: str) -> F:
        limits: Any = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, self.recompile_limit)
        limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, self.recompile_limit)
        how: dict[str, Any] = {"options": GRAPH_OPTIONS} if mode == GRAPHS else {"mode": mode}
        return cast(F, torch.compile(function, dynamic=self.dynamic, **how))


class WholeBuffer:
    """A memory in fixed shapes: every row is read, and the bias says which ones count.

    Args:
        keys, values: of each block, `[1, H, capacity, K]`; written in place.
        rows: int64 `[R]`, where the record goes.
        bias: float32 `[capacity]`.
    """

    def __init__(
        self, keys: tuple[Tensor, ...], values: tuple[Tensor, ...], rows: Tensor, bias: Tensor
    ) -> None:
        self._keys, self._values, self._rows, self._bias = keys, values, rows, bias

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        for buffer, new in ((self._keys[layer], keys), (self._values[layer], values)):
            buffer.index_copy_(2, self._rows, new.to(buffer.dtype))

    def read(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        return self._keys[layer], self._values[layer], self._bias


def static_pass(
    network: Summaryformer,
    latent_1NC: Tensor,
    film_blocks: Tensor,
    film_head: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: tuple[Tensor, ...],
    values: tuple[Tensor, ...],
    rows: Tensor,
    bias: Tensor,
) -> Tensor:
    """`Summaryformer.pass_record` of a body frame, over tensors alone; v, float32 `[1, N, C]`.

    The film is of one pass; the rest are fields of `memory.Buffers`. Blocks get views of the buffers that do not
    overlap: out of one stacked tensor, the compiler would copy the whole memory at every pass.
    """
    film = Film(blocks=film_blocks, head=film_head)
    return network.pass_record(latent_1NC, film, (cos, sin), WholeBuffer(keys, values, rows, bias))


def decode_body(
    autoencoder: Autoencoder, mean_C: Tensor, std_C: Tensor, latent_1NC: Tensor, cache: Tensor
) -> tuple[Tensor, Tensor]:
    """A body frame's gaussianised latent to (bytes `[4, H, W, 3]`, cache), see `Autoencoder.decode_next`."""
    rgb, after = autoencoder.decode_next((latent_1NC * std_C + mean_C).to(autoencoder.dtype), cache)
    return to_bytes(rgb[0]), after


def keep_in_place(buffers: Buffers) -> None:
    """Tell the compiler that these addresses last, so that a recorded graph reads and writes them where they are."""
    for part in (*buffers.layers, (buffers.bias, buffers.rows, buffers.cos, buffers.sin)):
        for tensor in part:
            torch._dynamo.mark_static_address(tensor, guard=False)
