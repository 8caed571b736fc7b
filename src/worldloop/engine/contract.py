"""The loop contract: what the engine and a loop say to each other. Plain data; no torch, no clock, no I/O.

A loop is stateless code. Everything about one request is in its state:

    state = loop.init(request)              validates and allocates
    plan  = loop.next(state)                what to run next: Plan, Idle or Done. Launches nothing, may be asked twice
    state = loop.advance(state, result)     the only place where the state moves on
    value = loop.finalize(state)            once, at the end

The engine runs a plan by its `op` name and hands the result to `advance`, then delivers `result.emits`.
A plan that is run twice before `advance` gives the same result: in-place writes go to the frame's own slot, and
noise is a pure function of (seed, frame, pass).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
"""RGB pictures, uint8 `[T, H, W, 3]`, always four axes."""

StateT = TypeVar("StateT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One unit of device work.

    Attributes:
        op: registered name of the work, such as `denoise` or `decode`.
        inputs: everything the work reads, by name; in-place targets included.
        shape: plans of equal (op, shape) may run as one batch.
        deadline: monotonic seconds at which the result is due, or None for work that may wait.
        cost: units for the cost model (multiply-adds).
        resident_bytes: bytes that the whole session holds.
        peak_bytes: scratch of this plan on top.
        label: such as `frame17.t669`; also the profiler range.
    """

    op: str
    inputs: Mapping[str, Any]
    shape: tuple[int, ...]
    deadline: float | None = None
    cost: float = 0.0
    resident_bytes: int = 0
    peak_bytes: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to run until the next input comes."""


@dataclass(frozen=True, slots=True)
class Done:
    """The session is over."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Emit:
    """A chunk of output, built after the step that made it.

    Attributes:
        frames: uint8 `[T, H, W, 3]`.
        media_time: seconds from the session's first picture to this chunk's first, at the model's rate.
        input_ids: ids of the inputs that shaped it.
        index: latent frame number; 0 is the start picture.
        final: False for a preview that a later chunk replaces.
        device_s: seconds of the device thread by op since the session's chunk before; the engine fills it in.
    """

    frames: Frames
    media_time: float
    input_ids: tuple[int, ...]
    index: int
    final: bool = True
    device_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a plan made: named outputs for `advance`, and chunks for the consumer."""

    outputs: Mapping[str, Any] = field(default_factory=dict)
    emits: tuple[Emit, ...] = ()


Op = Callable[[Plan], Result]
"""Runs one plan on the device thread."""


class Loop(Protocol, Generic[StateT]):
    """Stateless code of one family. `ops` names the work that its plans ask for."""

    @property
    def ops(self) -> Mapping[str, Op]: ...

    def init(self, request: Any) -> StateT: ...

    def offer(self, state: StateT, value: Any) -> int:
        """Queue one input; returns its id."""
        ...

    def next(self, state: StateT) -> Plan | Idle | Done: ...

    def advance(self, state: StateT, result: Result) -> StateT: ...

    def finalize(self, state: StateT) -> Any: ...
