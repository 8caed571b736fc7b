"""The smallest loop there is, for the engine's own rules: it counts, and fails where it is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from worldloop.engine.contract import BatchOp, Done, Emit, Idle, Op, Plan, Price, Result, Work

Check = Callable[[Plan], None]


@dataclass
class Count:
    """`steps` units a chunk, `chunks` chunks without inputs, or one for each input when `chunks` is 0."""

    name: str
    chunks: int
    steps: int
    size: int
    step: int = 0
    made: int = 0
    inputs: deque[int] = field(default_factory=deque)
    offered: int = 0


class CountingLoop:
    """Args: check: called with every plan that runs; may raise. log: names of who ran, a list for each call."""

    def __init__(self, check: Check = lambda _: None, *, batched: bool = False) -> None:
        self.check = check
        self.log: list[list[str]] = []
        self._batched = batched

    @property
    def ops(self) -> Mapping[str, Op]:
        return {"count": lambda plan: self._run([plan])[0]}

    @property
    def batch_ops(self) -> Mapping[str, BatchOp]:
        return {"count": self._run} if self._batched else {}

    def price(self, request: Mapping[str, Any]) -> Price:
        work = (Work("count", (request.get("size", 1),), 1.0),) * request.get("steps", 1)
        return Price(resident_bytes=request.get("bytes", 0), chunk=work, chunks=request.get("chunks"))

    def init(self, request: Mapping[str, Any]) -> Count:
        if "error" in request:
            raise request["error"]
        return Count(
            str(request.get("name", "?")),
            request.get("chunks", 0),
            request.get("steps", 1),
            request.get("size", 1),
        )

    def offer(self, state: Count, value: Any) -> int:
        if isinstance(value, Exception):
            raise value
        state.offered += 1
        state.inputs.append(state.offered)
        return state.offered

    def next(self, state: Count) -> Plan | Idle | Done:
        if state.chunks and state.made == state.chunks:
            return Done(f"{state.made} chunks are made")
        if not state.chunks and not state.inputs:
            return Idle()
        return Plan(
            op="count",
            inputs={"state": state},
            shape=(state.size,),
            cost=1.0,
            label=f"{state.name}{state.step}",
        )

    def _run(self, plans: Sequence[Plan]) -> list[Result]:
        self.log.append([plan.inputs["state"].name for plan in plans])
        for plan in plans:
            self.check(plan)
        return [self._count(plan.inputs["state"]) for plan in plans]

    def _count(self, state: Count) -> Result:
        if state.step + 1 < state.steps:
            return Result()
        frames = np.full((1, 1, 1, 3), state.made % 256, np.uint8)
        ids = (state.inputs[0],) if state.inputs else ()
        return Result(emits=(Emit(frames=frames, media_time=0.0, input_ids=ids, index=state.made),))

    def advance(self, state: Count, result: Result) -> Count:
        state.step += 1
        if state.step == state.steps:
            state.step, state.made = 0, state.made + 1
            if state.inputs:
                state.inputs.popleft()
        return state

    def finalize(self, state: Count) -> int:
        return state.made
