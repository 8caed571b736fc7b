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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
"""RGB pictures, uint8 `[T, H, W, 3]`, always four axes."""

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Work:
    """A kind and an amount of device work: op, shape and cost as in `Plan`."""

    op: str
    shape: tuple[int, ...]
    cost: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a request will take, known before anything runs.

    Attributes:
        resident_bytes: that its session holds on the device.
        peak_bytes: further scratch of its largest plan.
        chunk: the work of one chunk of output in the steady state.
        chunks: how many chunks there will be, or None for no end.
    """

    resident_bytes: int = 0
    peak_bytes: int = 0
    chunk: tuple[Work, ...] = ()
    chunks: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One unit of device work.

    Attributes:
        op: registered name of the work, such as `denoise` or `decode`.
        inputs: everything the work reads, by name; in-place targets included.
        shape: plans of one loop with equal (op, shape) may run as one batch.
        cost: units for the cost model (multiply-adds); 0 when it does not vary.
        label: such as `frame17.t669`; also the profiler range.
    """

    op: str
    inputs: Mapping[str, Any]
    shape: tuple[int, ...]
    cost: float = 0.0
    label: str = ""

    @property
    def work(self) -> Work:
        """What the cost model hears of."""
        return Work(self.op, self.shape, self.cost)


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

BatchOp = Callable[[Sequence[Plan]], Sequence[Result]]
"""Runs several plans of one loop, op and shape at once; results in their order."""


class Loop(Protocol, Generic[StateT]):
    """Stateless code of one family. `ops` names the work that its plans ask for."""

    @property
    def ops(self) -> Mapping[str, Op]: ...

    @property
    def batch_ops(self) -> Mapping[str, BatchOp]:
        """Ops that can also run several sessions' plans at once, to a stated tolerance."""
        ...

    def price(self, request: Any) -> Price:
        """What the request will take. Allocates nothing; raises what `init` raises for a bad request."""
        ...

    def init(self, request: Any) -> StateT: ...

    def offer(self, state: StateT, value: Any) -> int:
        """Queue one input; returns its id."""
        ...

    def next(self, state: StateT) -> Plan | Idle | Done: ...

    def advance(self, state: StateT, result: Result) -> StateT: ...

    def finalize(self, state: StateT) -> Any: ...
