"""Rollouts of a video model that are recorded to be learned from, and how far a student lands from them.

A picture model is a video model of one frame, so this is for both. Owns which rollouts are made. Does not own what is
recorded of them (`loops.rollout`) or what is learned (`few_steps`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from worldloop.engine.contract import Plan
from worldloop.loops.rollout import Profile, Rollout
from worldloop.loops.units import run_unit
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import VideoRequest


def record_videos(
    model: VideoModel, prompts: Sequence[str], *, latent_frames: int, seed: int = 0, **wishes: Any
) -> Iterator[Rollout]:
    """One recorded rollout a prompt, with seeds from `seed` on; each is made when it is asked for.

    Args:
        latent_frames: of each.
        wishes: further fields of `VideoRequest`, such as `steps`, `solver` and `guidance`.

    Raises:
        ValueError: what `VideoLoop.init` refuses; a rollout does not fit into one record.
    """
    loop = VideoLoop(model)
    for number, prompt in enumerate(prompts):
        record = Rollout()
        request = VideoRequest(
            prompt=model.encode_text(prompt), seed=seed + number, latent_frames=latent_frames, **wishes
        )
        rolled(loop, replace(request, profile=Profile(record=record)))
        if record.full:
            raise ValueError(f"{latent_frames} latent frames are too many for one record")
        yield record


def distance(model: VideoModel, rollouts: Sequence[Rollout], **wishes: Any) -> float:
    """How far the model's own rollouts of the recorded prompts and seeds end from the recorded latents.

    Root mean square over all of them, as a share of that of the latents: 0 is the same, about 1.4 is unrelated.

    Args:
        wishes: as of `record_videos`; the checkpoint's own sampling without.
    """
    loop, apart, size = VideoLoop(model), 0.0, 0.0
    for record in rollouts:
        wanted = record.latents
        text = record.chunks[0].told["cond"]
        request = VideoRequest(prompt=text, seed=record.seed, latent_frames=len(wanted), **wishes)
        apart += float((rolled(loop, request) - wanted).double().square().sum())
        size += float(wanted.double().square().sum())
    if not size:
        raise ValueError("there is nothing to compare with")
    return math.sqrt(apart / size)


def rolled(loop: VideoLoop, request: VideoRequest) -> Tensor:
    """A whole rollout here and now: its latents `[T, C, y, x]` on the CPU."""
    state = loop.init(request)
    while isinstance(loop.next(state), Plan):
        run_unit(loop, state)
    latents = loop.finalize(state).latents
    assert latents is not None
    return latents.to(torch.float32)
