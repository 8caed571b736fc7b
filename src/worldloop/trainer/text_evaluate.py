"""The evaluation of models that read text: what they draw, read again from the pixels, against what was asked.

    prompt -> rollout as it is served -> decode -> read tiles, walker and motion -> tell, compare

Owns the prompts, the sections and their order. Does not own the measures (`measures.telling`) or the report's form
(`report`). Called by the command line.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError
from worldloop.engine.contract import Plan
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_model import VideoModel
from worldloop.loops.video_request import VideoRequest
from worldloop.models import device as devices
from worldloop.models.precision import Precision
from worldloop.models.registry import AUTOENCODER, WORLDS, is_picture, is_video
from worldloop.simulators.captions import walk
from worldloop.simulators.meadow import FRAME_SIZE, VIEW, Meadow
from worldloop.trainer.charts import Curve
from worldloop.trainer.measures.obedience import Share
from worldloop.trainer.measures.telling import Walked, goes, shown, takes, told_again, walked
from worldloop.trainer.report import Report, Row, Strip
from worldloop.trainer.rollouts import ACTIONS
from worldloop.trainer.sizes import FIRST_WORLD
from worldloop.trainer.stills import scenes

SHOWN: Final = (
    "a lake in the east",
    "pine forest in the north",
    "a sandy shore, a path",
    "flowers, a bridge",
    "",
)
"""Prompts of the contact sheet."""
TURN: Final = (1, 4)
"""A walk with a turn: north, then east."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSizes:
    """How much is measured.

    Attributes:
        pictures: prompts, one picture each; as many pictures without a prompt.
        walks: rollouts in each of the four directions.
        latents: length of a rollout.
        seeds: columns of the contact sheet.
    """

    pictures: int = 200
    walks: int = 6
    latents: int = 32
    seeds: int = 6

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise InvalidInputError(f"{name}={value}: must be 1 or more")

    @classmethod
    def quick(cls) -> TextSizes:
        """Everything once, in seconds with a tiny model; the numbers mean nothing."""
        return cls(pictures=2, walks=1, latents=3, seeds=1)


def evaluate_text(
    path: Path,
    sizes: TextSizes,
    *,
    device: str = "auto",
    dtype: str = "auto",
    threads: int = 0,
    drawn: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure a checkpoint beside its autoencoder: pictures, and of a video model walks too.

    Args:
        path: of the checkpoint.
        sizes: how much is measured.
        device, dtype, threads: as for serving.
        drawn: whether the picture model beside a video model draws its first frames, as when it is served.
        on_progress: called with what is being measured, often.

    Raises:
        InvalidInputError: pictures of another size than the meadow's.
        CheckpointError: a file is refused.
    """
    devices.set_threads(threads)
    place = devices.pick_device(device)
    precision = Precision.choose(dtype=dtype, device=place)
    model = VideoModel.load(path, path.parent / AUTOENCODER, device=place, dtype=precision.memory)
    size, format_ = model.pictures.picture_hw, precision.memory
    first = FirstFrame.beside(path, model.config, size, device=place, dtype=format_) if drawn else None
    report = evaluate_text_model(
        model, sizes, video=is_video(path), first_frame=first, on_progress=on_progress
    )
    facts = {
        "model": path.stem,
        "training step": model.config.step,
        "trained on": model.config.facts.get("trained_on"),
        **({} if first is None else {"first frame": f"drawn by {first.name}"}),
    }
    report.facts = {**facts, **report.facts}
    return report


def find_text_model(name: str) -> Path | None:
    """The checkpoint of a picture or video model that a path or a shipped model's name means; None for all else."""
    path = Path(name)
    found = [path] if path.is_file() else sorted(WORLDS.glob(f"*/{path.name}.safetensors"))
    return next((each for each in found if is_picture(each) or is_video(each)), None)


def evaluate_text_model(
    model: VideoModel,
    sizes: TextSizes,
    *,
    video: bool,
    first_frame: FirstFrame | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure a loaded model, walks too if `video`, from frames that `first_frame` draws, if any.

    Raises:
        InvalidInputError: its pictures are not the meadow's.
    """
    if model.pictures.picture_hw != FRAME_SIZE:
        raise InvalidInputError(
            f"pictures are {model.pictures.picture_hw}; the meadow's {FRAME_SIZE} can be evaluated"
        )
    start, report = time.monotonic(), Report(facts={}, columns="seed" if not video else "latent")
    loop = VideoLoop(model, first_frame)
    pictures(loop, sizes, report, on_progress)
    if video:
        walks(loop, sizes, report, on_progress)
    else:
        _sheet(loop, sizes, report)
    config = model.config
    report.facts = {
        "sampler": f"{config.steps} steps, shift {config.shift:g}, {config.solver}, guidance {config.guidance:g}",
        "machine": f"{platform.machine()}, {devices.usable_cores()} cores, {torch.get_num_threads()} threads",
        "device": str(model.device),
        "number format": str(model.dtype).removeprefix("torch."),
        "seconds": round(time.monotonic() - start),
        "sizes": asdict(sizes),
    }
    return report


def rollout(loop: VideoLoop, prompt: str, *, seed: int, latents: int = 1) -> NDArray[np.uint8]:
    """Pictures of one rollout in the caller's thread, uint8 `[1 + 4 (latents - 1), H, W, 3]`."""
    text, first = loop.model.encode_text(prompt), loop.first_frame
    draw = None if first is None else first.request(prompt, seed)
    state = loop.init(VideoRequest(prompt=text, seed=seed, latent_frames=latents, draw=draw))
    parts = []
    while isinstance(plan := loop.next(state), Plan):
        result = loop.ops[plan.op](plan)
        state = loop.advance(state, result)
        parts += [emit.frames for emit in result.emits]
    return np.concatenate(parts)


def pictures(loop: VideoLoop, sizes: TextSizes, report: Report, tick: Callable[[str], None]) -> None:
    """First frames: legal tiles, one walker, and the phrases of the prompt told again."""
    count = sizes.pictures
    views = scenes(count, VIEW, np.random.default_rng(2), first_world=FIRST_WORLD, worlds=count)
    asked = views.phrases()
    made, bare, spent = [], [], []
    for number, told in enumerate(asked):
        tick(f"picture {number + 1} of {count}")
        begin = time.perf_counter()
        made.append(rollout(loop, ", ".join(told), seed=number)[0])
        spent.append(time.perf_counter() - begin)
        bare.append(rollout(loop, "", seed=number)[0])
    for name, stack in (("", made), (", no words", bare)):
        seen = shown(np.stack(stack))
        rows = (
            ("legal tiles", Share(right=int(seen.legal.sum()), count=seen.legal.size), 97.0),
            (
                "pictures of legal tiles alone",
                Share(right=int(seen.legal.all((1, 2)).sum()), count=count),
                None,
            ),
            (
                "one walker, in the middle",
                Share(right=int((seen.in_place & (seen.walkers == 1)).sum()), count=count),
                97.0,
            ),
        )
        report.rows += [
            Row(name=f"{row}{name}", value=share.value, count=share.count, target=target)
            for row, share, target in rows
        ]
    found = shown(np.stack(made)).phrases()
    others = [*asked[1:], asked[0]]
    for name, sides, target in (
        ("what the prompt says is shown", False, 90.0),
        ("and where it says", True, 70.0),
    ):
        share, chance = told_again(asked, found, sides=sides), told_again(others, found, sides=sides)
        note = f"with another picture's prompt: {_percent(chance)}"
        report.rows.append(Row(name=name, value=share.value, count=share.count, target=target, note=note))
    kinds = len({picture.tobytes() for picture in bare})
    report.rows.append(Row(name="different pictures without words", value=100 * kinds / count, count=count))
    report.rows.append(
        Row(name="time of a picture", value=1000 * float(np.median(spent)), unit="ms", count=count)
    )


def walks(loop: VideoLoop, sizes: TextSizes, report: Report, tick: Callable[[str], None]) -> None:
    """Rollouts in each direction: legal tiles by age, the way that was asked for, steps of exactly one tile."""
    views = scenes(sizes.walks, VIEW, np.random.default_rng(3), first_world=FIRST_WORLD, worlds=sizes.walks)
    plans = [(way,) for way in range(1, 5)] + [TURN]
    found: list[tuple[tuple[int, ...], Walked]] = []
    spent, columns = [], [n for n in (0, 1, 2, 4, 8, 16, 32, 64) if n <= sizes.latents]
    for way in plans:
        words = walk([step for step in way for _ in range(2)])
        for number, told in enumerate(views.phrases()):
            tick(f"{words}, {number + 1} of {sizes.walks}")
            begin = time.perf_counter()
            frames = rollout(loop, ", ".join([*told, words]), seed=number, latents=sizes.latents + 1)
            spent.append((time.perf_counter() - begin) / (sizes.latents + 1))
            found.append((way, walked(frames[::4])))
            if number < 2:
                strip = frames[::4][columns]
                report.strips.append(Strip(label=words, pictures=strip, latents=columns))
    straight = [(way[0], each) for way, each in found if len(way) == 1]
    judged = [each for _, each in found]
    share = goes([each for _, each in straight], [way for way, _ in straight])
    taken = takes([each for _, each in straight], [way for way, _ in straight])
    turned = [way % 4 + 1 for way, _ in straight]
    chance = goes([each for _, each in straight], turned)
    truth = [_simulated(number, sizes.latents) for number in range(sizes.walks)]
    moved = np.concatenate([each.moved for each in judged])
    kept = np.concatenate([each.kept for each in judged])
    free = np.concatenate([each.free for each in judged])[moved > 0]
    both = [each for way, each in found if way == TURN]
    turns = sum(_has_turn(each.moved, TURN) for each in both)
    report.rows += [
        Row(name="steps that go where the prompt says", value=share.value, count=share.count, target=90.0,
            note=f"with another direction: {_percent(chance)}"),
        Row(name="latents with that way open that walk it", value=taken.value, count=taken.count),
        Row(name="walks north, then east, that do both", value=100 * turns / len(both), count=len(both)),
        Row(name="latents in which the walker moves", value=100 * float((moved > 0).mean()), count=len(moved)),
        Row(name="cells that scroll exactly", value=100 * float(kept.mean()), count=len(kept), target=97.0,
            note=f"in the simulator itself: {100 * float(np.mean([each.kept.mean() for each in truth])):.1f} %"),
        Row(name="steps onto tiles that are free", value=100 * float(free.mean()) if len(free) else None,
            count=len(free), target=95.0),
        Row(name=f"legal tiles at latent {sizes.latents}",
            value=100 * float(np.mean([each.legal[-1] for each in judged])), count=60 * len(judged), target=95.0),
        Row(name="time of a latent", value=1000 * float(np.median(spent)), unit="ms", count=len(spent)),
    ]  # fmt: skip
    legal = 100 * np.stack([each.legal for each in judged]).mean(0)
    report.curves.append(
        Curve(
            title="legal tiles in pixels",
            x_label="latent",
            y_label="% of cells within the bound of a tile",
            x=[float(n) for n in range(sizes.latents + 1)],
            series={"rollouts": legal.tolist()},
            target=95.0,
            y_range=(0.0, 101.0),
        )
    )


def _has_turn(moved: NDArray[np.int64], way: tuple[int, int]) -> bool:
    """Whether a walk goes one way and later the other."""
    first = np.flatnonzero(moved == way[0])
    return bool(len(first) and (moved[first[0] :] == way[1]).any())


def _simulated(number: int, latents: int) -> Walked:
    world = Meadow(FIRST_WORLD + number)
    frames = [world.step(ACTIONS[0].tolist())[-1]]
    frames += [world.step(ACTIONS[1 + n // 4 % 4].tolist())[-1] for n in range(latents)]
    return walked(np.stack(frames))


def _sheet(loop: VideoLoop, sizes: TextSizes, report: Report) -> None:
    """Strips of the same prompt with several seeds."""
    seeds = list(range(sizes.seeds))
    for prompt in SHOWN:
        drawn = np.stack([rollout(loop, prompt, seed=seed)[0] for seed in seeds])
        report.strips.append(Strip(label=prompt or "no words", pictures=drawn, latents=seeds))


def _percent(share: Share) -> str:
    return "no case" if share.value is None else f"{share.value:.1f} %"
