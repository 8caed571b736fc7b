"""What a rollout went through, step by step, and predictions that stand in for the network's. One mechanism for worlds,
videos and pictures.

    record = Rollout()
    VideoRequest(..., profile=Profile(record=record))                           the same bytes, and a record of them
    VideoRequest(..., profile=Profile(override=record.predictions()))           the same bytes, and no forward

A loop asks the profile before each forward and tells it of each step and chunk that is finished, in `advance`, so that
a unit that runs twice is recorded once. A record is for training (few-step students, reinforcement learning), an
override for feature caches and parity tests. Owns both; not the solver (`models.flow`, `models.sampling`) and not the
file (`rollout_file`). Shapes: F latent frames of a chunk, then one family's latent: world `[N, C]`, video `[C, y, x]`,
picture that of its model, as one chunk of one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

MAX_BYTES = 256 * 2**20
"""Of one record, unless it is given another limit."""

At = tuple[int, int]
"""(first latent frame of the chunk, denoising step)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One denoising step. All latents are `[F, ...]`.

    Attributes:
        step: number in its chunk, from 0.
        timestep: what the network is told.
        alpha, sigma: scales of signal and noise in `x_t`.
        x_t: what the step sees.
        v: the prediction that the solver takes: of a guided rollout, after guidance.
        x0: the clean latent that `v` says.
        branches: of a guided rollout, the prediction of each branch by name.
        given: whether `v` came from an override.
    """

    step: int
    timestep: float
    alpha: float
    sigma: float
    x_t: Tensor
    v: Tensor
    x0: Tensor
    branches: Mapping[str, Tensor] = field(default_factory=dict)
    given: bool = False

    def kept(self) -> Step:
        """A copy in main memory, which shares nothing with the rollout."""
        branches = {name: kept(v) for name, v in self.branches.items()}
        return replace(self, x_t=kept(self.x_t), v=kept(self.v), x0=kept(self.x0), branches=branches)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Latent frames that were made together, or given: those have no steps.

    Attributes:
        frame: number of the first.
        latents: clean, `[F, ...]`, as the memory gets them.
        steps: in order.
        told: what they follow. World: `action [5]`, `fps [1]` as the network hears them. Video: each branch's text by
            the branch's name.
    """

    frame: int
    latents: Tensor
    steps: tuple[Step, ...] = ()
    told: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its latents and steps."""
        steps = [tensor for s in self.steps for tensor in (s.x_t, s.v, s.x0, *s.branches.values())]
        return sum(tensor.nbytes for tensor in (self.latents, *steps))


class Rollout:
    """The record of one rollout: whole chunks from the beginning on, as many as fit. Filled by a loop.

    Args:
        max_bytes: of its tensors. The chunk that does not fit any more ends the record, not the rollout.

    Attributes:
        family, seed: of the rollout; `family` is empty before one begins.
        chunks: in order. Frames that a rollout is given (start picture, first frame, earlier context) come first.
        full: whether there was a chunk that did not fit.
        nbytes: of its tensors, in main memory.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self.family = ""
        self.seed = 0
        self.chunks: list[Chunk] = []
        self.full = False
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._steps: list[Step] = []

    @property
    def latents(self) -> Tensor:
        """Every clean latent frame, `[T, ...]`. ValueError when there is none."""
        if not self.chunks:
            raise ValueError("nothing was recorded")
        return torch.cat([chunk.latents for chunk in self.chunks])

    def predictions(self) -> dict[At, Tensor]:
        """Each step's `v`, as `Profile.override` takes them."""
        return {(chunk.frame, step.step): step.v for chunk in self.chunks for step in chunk.steps}

    def begin(self, family: str, seed: int) -> None:
        """ValueError when it holds another rollout."""
        if self.family:
            raise ValueError(f"this record is of a {self.family} rollout already: each needs one of its own")
        self.family, self.seed = family, seed

    def step(self, step: Step) -> None:
        """One more step of the chunk in the making."""
        if not self.full:
            self._steps.append(step.kept())

    def chunk(self, frame: int, latents: Tensor, told: Mapping[str, Tensor]) -> None:
        """The chunk in the making is finished; `told` is on the CPU and does not change."""
        if self.full:
            return
        chunk = Chunk(frame=frame, latents=kept(latents), steps=tuple(self._steps), told=dict(told))
        self._steps.clear()
        before = self.chunks[-1].told if self.chunks else {}
        size = chunk.nbytes + sum(
            tensor.nbytes for name, tensor in told.items() if before.get(name) is not tensor
        )
        self.full = self.nbytes + size > self._max_bytes
        if not self.full:
            self.chunks.append(chunk)
            self.nbytes += size


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Profile:
    """How a rollout is run, beside what it is. `SERVE` records nothing and asks the network for every step.

    Attributes:
        record: is told of every step and chunk, or None. The bytes are the same with and without.
        override: predictions by (chunk's first frame, step), as `Step.v`. Such a step skips the forward; its solver
            step stays. Passes that write the memory are none of these steps, and always run.
    """

    record: Rollout | None = None
    override: Mapping[At, Tensor] = field(default_factory=dict)

    def check(self, *, shape: tuple[int, ...], steps: int) -> None:
        """ValueError unless every prediction has this shape, `[F, ...]`, and is of one of the first `steps` steps."""
        for (frame, step), v in self.override.items():
            where = f"override of frame {frame}, step {step}"
            if not 0 <= step < steps:
                raise ValueError(f"{where}: only steps below {steps} can be given")
            if tuple(v.shape) != shape or not v.is_floating_point():
                raise ValueError(f"{where} is {v.dtype} {tuple(v.shape)}; floating {shape} is needed")

    def begin(self, family: str, seed: int) -> None:
        """A rollout begins. ValueError when its record holds another."""
        if self.record is not None:
            self.record.begin(family, seed)

    def given(self, frame: int, step: int, like: Tensor) -> Tensor | None:
        """The prediction of a step that need not be asked for, in the format of `like`; else None."""
        v = self.override.get((frame, step))
        return None if v is None else v.to(like)

    def step(self, frame: int, seen: Callable[[], Step]) -> None:
        """A step of the chunk that begins at `frame` is taken. `seen` is asked only for a record."""
        if self.record is not None:
            step = seen()
            self.record.step(replace(step, given=(frame, step.step) in self.override))

    def chunk(self, frame: int, latents: Tensor, told: Callable[[], Mapping[str, Tensor]]) -> None:
        """A chunk is finished, or given. `told` is asked only for a record."""
        if self.record is not None:
            self.record.chunk(frame, latents, told())


SERVE = Profile()


def completed(
    given: Sequence[Tensor | None], predict: Callable[[Sequence[int]], Sequence[Tensor]]
) -> list[Tensor]:
    """Each prediction of a batch: as it is given, else as `predict` makes it for those numbers, in one call."""
    missing = [number for number, v in enumerate(given) if v is None]
    made = iter(predict(missing) if missing else ())
    return [next(made) if v is None else v for v in given]


def kept(tensor: Tensor) -> Tensor:
    """A copy in main memory that may be trained on, made under inference mode or not."""
    with torch.inference_mode(mode=False):
        return tensor.to("cpu", copy=True).detach().contiguous()
