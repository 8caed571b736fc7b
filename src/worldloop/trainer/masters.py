"""The weights of a network in training: a master in float32, a working copy in bfloat16, and a moving average.

Muon (Jordan et al. 2024) moves the matrices of the trunk, AdamW everything else. Owns the optimisers and what is needed
to go on after a stop. Does not own losses. Called by the trainers of single networks.
"""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

NetworkT = TypeVar("NetworkT", bound=nn.Module)


class Masters(Generic[NetworkT]):
    """Three copies of one network.

    Args:
        model: start values; its weights become the master.
        muon_rate, adam_rate: learning rates at scale 1.
        horizon: of the moving average, in steps.

    Attributes:
        master, work, average: float32; bfloat16 with its float32 islands, whose gradients count; float32.
        steps: taken so far.
    """

    def __init__(self, model: NetworkT, *, muon_rate: float, adam_rate: float, horizon: int) -> None:
        self.master = model.float().train()
        self.average = copy.deepcopy(model).requires_grad_(False)
        work: Any = copy.deepcopy(model)
        self.work: NetworkT = work.to_serving(torch.bfloat16).train().requires_grad_(True)
        self.steps = 0
        self._horizon = horizon
        self._rates = (muon_rate, adam_rate)
        blocks: Any = model.get_submodule("blocks")
        trunk = {id(p) for p in blocks.parameters() if p.ndim == 2}
        matrices = [p for p in self.master.parameters() if id(p) in trunk]
        self._rest = [p for p in self.master.parameters() if id(p) not in trunk]
        self._optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=muon_rate, momentum=0.95, weight_decay=0.05, adjust_lr_fn="original"
            ),
            torch.optim.AdamW(self._rest, lr=adam_rate, betas=(0.9, 0.99), weight_decay=1e-3),
        ]
        self._pairs = list(zip(self.master.parameters(), self.work.parameters(), strict=True))

    def step(self, loss: Tensor, scale: float) -> float:
        """One step down `loss`, which came from `work`, at `scale` times the learning rates; returns the loss."""
        for work in self.work.parameters():
            work.grad = None
        loss.backward()
        for master, work in self._pairs:
            master.grad = None if work.grad is None else work.grad.to(master.dtype)
        torch.nn.utils.clip_grad_norm_(self._rest, 1.0)
        for optimiser, rate in zip(self._optimisers, self._rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()
        self.steps += 1
        keep = min(1 - 1 / self._horizon, self.steps / (self.steps + 20))
        with torch.no_grad():
            self._to_work()
            torch._foreach_lerp_(
                list(self.average.parameters()), [master for master, _ in self._pairs], 1 - keep
            )
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, tensors and numbers only."""
        return {
            "master": self.master.state_dict(),
            "average": self.average.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "step": self.steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.master.load_state_dict(state["master"])
        self.average.load_state_dict(state["average"])
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.steps = int(state["step"])
        with torch.no_grad():
            self._to_work()

    def _to_work(self) -> None:
        torch._foreach_copy_([work for _, work in self._pairs], [master for master, _ in self._pairs])


def rate_scale(step: int, *, steps: int, warmup: int, decay: float) -> float:
    """Factor on the learning rates at `step`: up over `warmup` steps, down over the last share `decay` of all."""
    rising = min(1.0, (step + 1) / warmup)
    left = (steps - step) / max(1.0, decay * steps)
    return rising * min(1.0, max(0.02, left))


def channel_weights(deviation: Tensor, power: float) -> Tensor:
    """Weight of each latent channel in a loss, `[C]`, 1 in the mean: its deviation to `power`."""
    weights = (deviation / deviation.mean()) ** power
    return weights / weights.mean()
