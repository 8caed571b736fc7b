"""Few-step students of video and picture models: trained on recorded rollouts of a teacher that takes many steps.

Shapes: R rollouts, B of them in a batch, T latent frames in G chunks, K passes of the student, C channels, y x x cells.

A teacher that follows the flow draws a path from noise to a clean chunk. The student goes the same way in K straight
lines: at each of its sigmas it sees the teacher's x and learns the velocity that leads to the teacher's x at its next,

    v = (x(sigma) - x(after)) / (sigma - after)

so a student without error ends where the teacher ends. That is progressive distillation (Salimans & Ho 2022,
arXiv:2202.00512) in one go, in the terms of `flow`. Guidance is part of the path, so the student asks its network once
a pass. What a chunk reads as its past are the teacher's clean latents.

Owns the pairs, the loss and the student's config. Does not own recording (`rollout_profile`) or files.
"""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldloop.core.errors import InvalidInputError
from worldloop.core.files import check_writable, file_hash
from worldloop.loops.rollout import Chunk, Rollout
from worldloop.loops.video_model import VideoModel
from worldloop.models.causal import CausalTransformer
from worldloop.models.causal_clip import CausalClip, clip_velocity
from worldloop.models.causal_weights import VideoConfig, save_video
from worldloop.models.flow import sigma_grid, timestep
from worldloop.models.registry import AUTOENCODER, is_picture, is_video
from worldloop.trainer.masters import Masters
from worldloop.trainer.rollout_profile import distance, record_videos

HELD_OUT = 8
SAME_SIGMA = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class FewStepRecipe:
    """How a student is made.

    Attributes:
        passes: K, denoising passes of the student.
        teacher_steps: of the recorded rollouts, a multiple of K.
        latent_frames: of each rollout; 1 for pictures.
        steps: of the optimiser.
        batch: rollouts a step.
        muon_rate, adam_rate, average: as of `masters.Masters`.
        warmup: steps in which the rates rise.
        seed: of everything that is drawn.
    """

    passes: int = 4
    teacher_steps: int = 32
    latent_frames: int = 1
    steps: int = 400
    batch: int = 32
    muon_rate: float = 0.005
    adam_rate: float = 3e-4
    average: int = 50
    warmup: int = 20
    seed: int = 1

    def rate_scale(self, step: int) -> float:
        """Factor on the learning rates at `step`: up, then down to a tenth."""
        return min(1.0, (step + 1) / self.warmup) * max(0.1, 1 - step / self.steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Distilled:
    """A student that was made.

    Attributes:
        path: its checkpoint.
        before, after: how far from the teacher's latents the teacher itself and the student end in the student's number
            of passes, on prompts and seeds that were not learned from; see `rollout_profile.distance`.
    """

    path: Path
    before: float
    after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Paths:
    """What a teacher went through, at the student's sigmas.

    Attributes:
        sigmas: K + 1 numbers from 1 down to 0.
        points: the teacher's x there, the clean latents last, `[R, K + 1, T, C, y, x]`.
        text: as of `CausalTransformer.text`, padded, `[R, ...]`.
    """

    sigmas: tuple[float, ...]
    points: Tensor
    text: Tensor

    @classmethod
    def of(cls, rollouts: Iterable[Rollout], config: VideoConfig, passes: int) -> Paths:
        """The paths of recorded rollouts, for a student of this config. Keeps none of the records.

        Raises:
            ValueError: a rollout has no step at one of the sigmas, took steps that do not follow the flow, was given
                frames, changed its prompt, or is of another length than the first.
        """
        sigmas = sigma_grid(passes, config.shift)
        whole, texts = [], []
        for rollout in rollouts:
            whole.append(torch.cat([_path(chunk, sigmas) for chunk in rollout.chunks], dim=1))
            told = [chunk.told["cond"] for chunk in rollout.chunks]
            if any(not torch.equal(text, told[0]) for text in told):
                raise ValueError("a rollout changed its prompt: a clip is learned under one")
            texts.append(told[0])
        if not whole:
            raise ValueError("there are no rollouts to learn from")
        lengths = {path.shape[1] for path in whole}
        if len(lengths) > 1:
            raise ValueError(f"rollouts have {sorted(lengths)} latent frames: all must have the same number")
        return cls(sigmas=sigmas, points=torch.stack(whole), text=_padded(texts, config.model.text_len))

    def __len__(self) -> int:
        return len(self.points)


def student_config(config: VideoConfig, passes: int) -> VideoConfig:
    """The teacher's config with the student's sampling: K passes along the flow, no guidance."""
    return replace(config, steps=passes, solver="euler", guidance=1.0)


def train_few_steps(
    network: CausalTransformer,
    config: VideoConfig,
    paths: Paths,
    recipe: FewStepRecipe,
    *,
    on_step: Callable[[int, float], object] | None = None,
) -> CausalTransformer:
    """A student that starts as a copy of the teacher's `network`; the moving average of its weights, float32.

    Args:
        config: the teacher's.
        paths: to learn; they say how many passes the student will take.
        on_step: hears of each optimiser step (from 1) and its loss.
    """
    clip = CausalClip(config.memory, paths.points.shape[2])
    generator = torch.Generator().manual_seed(recipe.seed)
    student = copy.deepcopy(network).requires_grad_(True)
    weights = Masters(student, muon_rate=recipe.muon_rate, adam_rate=recipe.adam_rate, horizon=recipe.average)
    for step in range(recipe.steps):
        chosen = torch.randperm(len(paths), generator=generator)[: recipe.batch]
        loss = _loss(weights.work, clip, paths, chosen, generator)
        value = weights.step(loss, recipe.rate_scale(step))
        if on_step is not None:
            on_step(step + 1, value)
    return weights.average


def distil(
    checkpoint: Path,
    out: Path,
    prompts: Sequence[str],
    recipe: FewStepRecipe,
    *,
    guidance: float | None = None,
    on_rollout: Callable[[int], object] | None = None,
    on_step: Callable[[int, float], object] | None = None,
) -> Distilled:
    """Record a checkpoint's rollouts of `prompts` and write a few-step student of it to `out`, ready to be served.

    The files that the checkpoint needs beside it are copied beside `out`.

    Args:
        prompts: one a rollout; the last eighth of them is not learned from but measured by.
        guidance: of the teacher; None for the checkpoint's own.
        on_rollout: hears of each rollout that is recorded (from 1).

    Raises:
        CheckpointError: a file is refused.
        InvalidInputError: fewer than two prompts, `out` cannot be written or is of another kind, or the checkpoint
            cannot make such rollouts.
    """
    _check(checkpoint, out, prompts, recipe)
    model = VideoModel.load(
        checkpoint, checkpoint.parent / AUTOENCODER, device=torch.device("cpu"), dtype=torch.float32
    )
    wishes: dict[str, Any] = {"solver": "euler", "guidance": guidance}
    records = record_videos(
        model,
        prompts,
        latent_frames=recipe.latent_frames,
        seed=recipe.seed,
        steps=recipe.teacher_steps,
        **wishes,
    )
    if on_rollout is not None:
        records = _counted(records, on_rollout)
    held_out = max(1, len(prompts) // HELD_OUT)
    paths = Paths.of(itertools.islice(records, len(prompts) - held_out), model.config, recipe.passes)
    unseen = list(records)
    before = distance(model, unseen, steps=recipe.passes, **wishes)
    student = train_few_steps(model.network, model.config, paths, recipe, on_step=on_step)
    save_video(out, student, student_config(model.config, recipe.passes))
    for file in _beside(checkpoint, model.config):
        if file.is_file() and not (out.parent / file.name).exists():
            shutil.copyfile(file, out.parent / file.name)
    after = distance(
        VideoModel.load(out, out.parent / AUTOENCODER, device=torch.device("cpu"), dtype=torch.float32),
        unseen,
    )
    return Distilled(path=out, before=before, after=after)


def _check(checkpoint: Path, out: Path, prompts: Sequence[str], recipe: FewStepRecipe) -> None:
    check_writable(out)
    if is_video(checkpoint) != is_video(out) or is_picture(checkpoint) != is_picture(out):
        raise InvalidInputError(
            f"{out.name} must end as {checkpoint.name} does, so that it is found: "
            f"{'video' if is_video(checkpoint) else 'picture'}.safetensors"
        )
    if out.exists() and out.samefile(checkpoint):
        raise InvalidInputError(f"{out.name} is the teacher itself: write the student to another file")
    there = out.parent / AUTOENCODER
    if there.exists() and file_hash(there) != file_hash(checkpoint.parent / AUTOENCODER):
        raise InvalidInputError(
            f"another {AUTOENCODER} than the teacher's lies beside {out.name}: write it elsewhere"
        )
    if len(prompts) < 2:
        raise InvalidInputError(f"{len(prompts)} prompts: two are needed at least, one of them to measure by")
    if recipe.passes < 1 or recipe.teacher_steps % recipe.passes:
        raise InvalidInputError(
            f"the teacher's {recipe.teacher_steps} steps must be a multiple of the student's {recipe.passes} passes"
        )


def _beside(checkpoint: Path, config: VideoConfig) -> list[Path]:
    """Files that a checkpoint is served with."""
    picture = config.facts.get("picture")
    names = [AUTOENCODER, *([str(picture["file"])] if isinstance(picture, dict) else [])]
    return [checkpoint.parent / name for name in names]


def _counted(records: Iterator[Rollout], hear: Callable[[int], object]) -> Iterator[Rollout]:
    for number, record in enumerate(records, start=1):
        yield record
        hear(number)


def _loss(
    model: CausalTransformer, clip: CausalClip, paths: Paths, chosen: Tensor, generator: torch.Generator
) -> Tensor:
    """Mean squared error of the velocity; every chunk is at a sigma of its own."""
    points, size = paths.points[chosen], clip.config.chunk
    steps = torch.randint(len(paths.sigmas) - 1, (len(chosen), clip.chunks), generator=generator)
    by_frame = steps.repeat_interleave(size, dim=1)
    row, frame = torch.arange(len(chosen))[:, None], torch.arange(points.shape[2])
    x, after = points[row, by_frame, frame], points[row, by_frame + 1, frame]
    sigmas = torch.tensor(paths.sigmas, dtype=torch.float32)
    span = (sigmas[by_frame] - sigmas[by_frame + 1])[..., None, None, None]
    v = clip_velocity(model, clip, points[:, -1], x, timestep(1.0) * sigmas[steps], paths.text[chosen])
    return (v - (x - after) / span).square().mean()


def _path(chunk: Chunk, sigmas: Sequence[float]) -> Tensor:
    """The teacher's x at these sigmas, clean last, `[K + 1, F, C, y, x]`."""
    if not chunk.steps:
        raise ValueError(f"frame {chunk.frame} was given, not made: such rollouts are not learned from")
    ends = [*(step.x_t for step in chunk.steps[1:]), chunk.latents]
    after = [*(step.sigma for step in chunk.steps[1:]), 0.0]
    for step, end, sigma in zip(chunk.steps, ends, after, strict=True):
        if not torch.allclose(step.x_t + (sigma - step.sigma) * step.v, end, atol=1e-4, rtol=1e-4):
            raise ValueError(
                f"frame {chunk.frame}, step {step.step} does not follow the flow: record with solver 'euler'"
            )
    at = []
    for sigma in sigmas[:-1]:
        found = [step.x_t for step in chunk.steps if abs(step.sigma - sigma) < SAME_SIGMA]
        if not found:
            raise ValueError(
                f"frame {chunk.frame} has no step at sigma {sigma:.4g}: record with the checkpoint's shift and a "
                f"multiple of {len(sigmas) - 1} steps"
            )
        at.append(found[0])
    return torch.stack([*at, chunk.latents])


def _padded(texts: Sequence[Tensor], length: int) -> Tensor:
    """Texts of several lengths as one batch; what is behind the last word says nothing."""
    batch = texts[0].new_zeros(len(texts), length, *texts[0].shape[1:])
    for row, text in zip(batch, texts, strict=True):
        row[: len(text)] = text
    return batch
