"""What may be asked of a video rollout, and every reason to refuse it.

Owns requests, inputs and their checks. Does not own the rollout (`video`). A refusal is a `ValueError` that says what
would be right.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from worldloop.loops.picture import PictureRequest
from worldloop.loops.rollout import SERVE, Profile
from worldloop.loops.video_model import VideoModel
from worldloop.models.causal_weights import VideoConfig, check_guidance
from worldloop.models.flow import check_solver, sigma_grid
from worldloop.models.noise import check_seed

MAX_LATENTS = 100_000
"""Latent frames of a rollout with an end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoRequest:
    """What a rollout starts from.

    Attributes:
        prompt: a text, from `VideoModel.encode_text`.
        negative: text of the branch without the prompt; None is the empty one. Not read at guidance 1.
        seed: in [0, 2**32).
        latent_frames: how many to make, the first latent included and earlier context not; None for no end.
        guidance, steps, solver, shift: None for the checkpoint's own.
        first: latent of the first frame, `[C, y, x]`, from `Pictures.encode`.
        draw: the picture whose latent is the first frame, from `FirstFrame.request`; excludes `first`.
        context: every latent frame of an earlier rollout, `[T, C, y, x]`; this one goes on from there. Given less than
            all of them, it goes on from what it is given.
        profile: what is recorded or given, see `rollout`.
    """

    prompt: Tensor
    seed: int
    latent_frames: int | None = None
    negative: Tensor | None = None
    guidance: float | None = None
    steps: int | None = None
    solver: str | None = None
    shift: float | None = None
    first: Tensor | None = None
    draw: PictureRequest | None = None
    context: Tensor | None = None
    profile: Profile = SERVE

    @property
    def has_first(self) -> bool:
        """Whether latent frame 0 comes from elsewhere and is a chunk of its own."""
        return self.first is not None or self.draw is not None


@dataclass(frozen=True, slots=True)
class PromptChange:
    """An input: from the next chunk on the prompt is `text`, from `VideoModel.encode_text`."""

    text: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a rollout samples: a request's wishes, else the checkpoint's own.

    Attributes:
        sigmas: of the denoising passes, high to low, then 0.
        solver, guidance: see `flow`.
    """

    sigmas: tuple[float, ...]
    solver: str
    guidance: float

    @classmethod
    def of(cls, config: VideoConfig, request: VideoRequest) -> Sampling:
        """ValueError for what is out of range."""
        steps = config.steps if request.steps is None else request.steps
        shift = config.shift if request.shift is None else request.shift
        solver = config.solver if request.solver is None else request.solver
        guidance = config.guidance if request.guidance is None else request.guidance
        check_solver(solver)
        check_guidance(guidance)
        return cls(sigmas=sigma_grid(steps, shift), solver=solver, guidance=guidance)

    @property
    def passes(self) -> int:
        """Denoising passes of a chunk."""
        return len(self.sigmas) - 1

    @property
    def branches(self) -> int:
        """1 at guidance 1, where the branch without the prompt would change nothing; else 2."""
        return 1 if self.guidance == 1 else 2


def check_request(model: VideoModel, request: VideoRequest) -> None:
    """ValueError unless `model` can do all of it."""
    shape, chunk = model.config.latent_shape, model.config.chunk_frames
    check_seed(request.seed)
    steps = Sampling.of(model.config, request).passes
    request.profile.check(shape=(chunk, *shape), steps=steps)
    model.check_text(request.prompt)
    if request.negative is not None:
        model.check_text(request.negative)
    if request.first is not None and tuple(request.first.shape) != shape:
        raise ValueError(f"first is {tuple(request.first.shape)}; {shape} is needed")
    if request.first is not None and request.draw is not None:
        raise ValueError("first and draw exclude each other: a first frame is given, or drawn")
    if request.draw is not None and request.draw.size != model.pictures.picture_hw:
        raise ValueError(f"draw is of size {request.draw.size}; {model.pictures.picture_hw} is needed")
    if request.context is not None:
        if request.has_first:
            raise ValueError("first and context exclude each other: a context has its own first frame")
        check_context(request.context, shape, chunk)
    if request.latent_frames is not None:
        check_latent_frames(request.latent_frames, chunk, first=request.has_first)


def check_context(context: Tensor, shape: tuple[int, int, int], chunk: int) -> None:
    """ValueError unless it is whole chunks of latents of this shape, after one first frame if there was one."""
    found = tuple(context.shape)
    if len(found) != 4 or found[1:] != shape or not found[0]:
        raise ValueError(f"context is {found}; at least one frame of {shape} is needed, [T, C, y, x]")
    if found[0] % chunk > 1:
        raise ValueError(
            f"context has {found[0]} frames: it must be whole chunks of {chunk}, after one first frame if there was one"
        )


def check_latent_frames(frames: int, chunk: int, *, first: bool) -> None:
    """ValueError unless `frames` are whole chunks, after the first frame if that is given."""
    if isinstance(frames, bool) or not isinstance(frames, int) or not 1 <= frames <= MAX_LATENTS:
        raise ValueError(
            f"latent_frames={frames!r} must be an integer in 1..{MAX_LATENTS}, or None for no end"
        )
    over = (frames - first) % chunk
    if over:
        raise ValueError(
            f"latent_frames={frames} must be a multiple of {chunk}{' and 1 more for the first' if first else ''}, "
            f"such as {frames + chunk - over}"
        )
