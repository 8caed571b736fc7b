"""Units of work on their own: how an op is run, and a session's next unit here and now, without an engine.

Called by the loops for their ops, and by whoever plays a session by itself (`warmup`, `testing`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from worldloop.engine.contract import BatchOp, Done, Emit, Idle, Loop, Op

A = TypeVar("A")
B = TypeVar("B")


def inference(op: Callable[[A], B]) -> Callable[[A], B]:
    """The op without gradients."""

    def run(plan: A) -> B:
        with torch.inference_mode():
            return op(plan)

    return run


def alone(op: BatchOp) -> Op:
    """The op of one session out of that of several, without gradients."""
    run = inference(op)
    return lambda plan: run([plan])[0]


def run_unit(loop: Loop[Any], state: Any) -> tuple[Emit, ...]:
    """Do a session's next unit of work here and now; returns what it emits.

    Raises:
        RuntimeError: the session waits for an input, or is over.
    """
    plan = loop.next(state)
    if isinstance(plan, Idle | Done):
        raise RuntimeError(f"nothing to run: {plan}")
    result = loop.ops[plan.op](plan)
    loop.advance(state, result)
    return result.emits
