"""The short checks of the evaluation: pictures against the truth, every key against none, and time.

Owns their rows and curves. Called by `evaluate`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np
import torch

from worldloop.codec.h264 import H264Encoder
from worldloop.loops.model import WorldModel
from worldloop.simulators.patches import render
from worldloop.trainer.charts import Curve
from worldloop.trainer.datasets import record_walks
from worldloop.trainer.dreams import Dream
from worldloop.trainer.measures.fidelity import psnr, reconstruct, square_error
from worldloop.trainer.measures.obedience import Share, Steps, judge, keys_obeyed
from worldloop.trainer.report import Report, Row
from worldloop.trainer.rollouts import ACTIONS, Rollout, place, wander
from worldloop.trainer.sizes import FIRST_WORLD, Sizes

RATE: Final = 35.0
"""Pictures a second that the published server sends."""
_FIDELITY_LATENTS: Final = 8
_BRANCH_EVERY, _BRANCHES = 4, 3
_ENCODES: Final = 10


def fidelity(model: WorldModel, sizes: Sizes, report: Report, tick: Callable[[str], None]) -> None:
    """PSNR of the autoencoder, and of dreams under true keys next to copying the start picture."""
    tick("fidelity")
    seeds = range(FIRST_WORLD, FIRST_WORLD + sizes.fidelity_worlds)
    walks = record_walks(seeds, _FIDELITY_LATENTS, seed=3)
    rebuilt: list[float] = []
    dreamt: list[list[float]] = [[] for _ in range(_FIDELITY_LATENTS)]
    copied: list[list[float]] = [[] for _ in range(_FIDELITY_LATENTS)]
    for number in range(len(walks)):
        truth = render(walks.patches[number])
        clip = np.concatenate((truth[0, -1:], truth[1:].reshape(-1, *truth.shape[2:])))
        rebuilt.append(square_error(reconstruct(model.autoencoder, clip), clip))
        dream = Dream(model, clip[0], seed=number)
        for latent in range(_FIDELITY_LATENTS):
            frames = dream.step(walks.actions[number, latent + 1].tolist())
            dreamt[latent].append(square_error(frames, truth[latent + 1]))
            copied[latent].append(square_error(np.broadcast_to(clip[0], frames.shape), truth[latent + 1]))
    report.rows.append(
        Row(
            name="autoencoder on held-out pictures",
            value=psnr(rebuilt),
            unit="dB",
            count=len(walks) * 33,
            target=34.0,
        )
    )
    for latent in (1, 4, 8):
        base = psnr(copied[latent - 1])
        report.rows.append(
            Row(
                name=f"PSNR of latent {latent} under true keys",
                value=psnr(dreamt[latent - 1]),
                unit="dB",
                count=len(walks),
                note=f"copying the start picture: {base:.1f} dB",
            )
        )
    report.curves.append(
        Curve(
            title="fidelity under true keys",
            x_label="latent",
            y_label="PSNR against the simulator, dB",
            x=[float(latent + 1) for latent in range(_FIDELITY_LATENTS)],
            series={
                "dream": [psnr(errors) for errors in dreamt],
                "copying the start picture": [psnr(errors) for errors in copied],
            },
        )
    )


def keys_against_none(model: WorldModel, sizes: Sizes, report: Report, tick: Callable[[str], None]) -> None:
    """From the same state and noise, each key's picture against the picture without a key."""
    parts: list[Steps] = []
    for number in range(sizes.branch_worlds):
        tick(f"every key against none, world {number + 1} of {sizes.branch_worlds}")
        dream = Dream(model, place(FIRST_WORLD + number)[1], seed=number)
        rng, picture = np.random.default_rng((4, number)), dream.first
        for _ in range(_BRANCHES):
            picture = wander(dream, picture, _BRANCH_EVERY, rng).pictures[-1]
            parts += [judge(rollout) for rollout in branches(dream)]
    report.rows.append(_against(keys_obeyed(Steps.join(parts))))


def branches(dream: Dream) -> list[Rollout]:
    """For each direction: from the picture without a key to the picture with it, at the same moment and noise."""
    still = dream.fork().step(ACTIONS[0].tolist())[-1]
    return [
        Rollout(
            pictures=np.stack((still, dream.fork().step(ACTIONS[direction].tolist())[-1])),
            directions=np.array([direction]),
        )
        for direction in range(1, 5)
    ]


def _against(share: Share) -> Row:
    note = "same state and noise, free tile ahead"
    return Row(
        name="each key against none moves the right way", value=share.value, count=share.count, note=note
    )


def latency(model: WorldModel, sizes: Sizes, report: Report, tick: Callable[[str], None]) -> None:
    """Time of a latent and of its parts, medians, one session alone."""
    tick("latency")
    picture = place(FIRST_WORLD)[1]
    dream = Dream(model, picture, seed=0)
    rng = np.random.default_rng(5)
    window = model.config.model.summary_window_frames
    wander(dream, dream.first, window, rng)  # a full memory is what a session costs from then on
    dream.spent.clear()
    frames = [dream.step(ACTIONS[int(rng.integers(5))].tolist()) for _ in range(sizes.timed)]
    step, decode = median(dream.spent["step"]), median(dream.spent["decode"])
    first = []
    for _ in range(_ENCODES):
        begin = time.perf_counter()
        model.encode(torch.from_numpy(picture))
        first.append(time.perf_counter() - begin)
    coded = []
    with H264Encoder(height=picture.shape[0], width=picture.shape[1]) as encoder:
        for group in frames:
            begin = time.perf_counter()
            for frame in group:
                encoder.encode(frame)
            coded.append(time.perf_counter() - begin)
    write = " and the write" if model.config.cache_mode == "recache" else ""
    passes = f"passes: {len(model.config.timesteps)}{write}"
    times = (
        ("time of a latent", step, sizes.timed, f"{passes}, and decode; memory full"),
        ("of it the model", step - decode, sizes.timed, passes),
        ("of it decode", decode, sizes.timed, ""),
        ("H.264 of a latent", median(coded), len(coded), f"{len(frames[0])} pictures"),
        ("encode of a start picture", median(first), len(first), ""),
    )
    report.rows += [
        Row(name=name, value=1000 * seconds, unit="ms", count=count, note=note)
        for name, seconds, count, note in times
    ]
    rate = frames[0].shape[0] / RATE
    note = f"a latent lasts {1000 * rate:.0f} ms at {RATE:g} pictures a second; no H.264, no socket"
    report.rows.append(
        Row(name="real-time factor, model alone", value=rate / step, unit="×", count=sizes.timed, note=note)
    )
