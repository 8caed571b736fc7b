"""The long walks of the evaluation: obedience to keys, legal tiles and drift, mixed keys and none.

Owns their rows, curves and strips. Does not own the measures themselves (`measures`). Called by `evaluate`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worldloop.loops.model import WorldModel
from worldloop.simulators.tiles import KINDS
from worldloop.trainer.charts import Curve
from worldloop.trainer.dreams import Dream
from worldloop.trainer.measures import looks as looking
from worldloop.trainer.measures import obedience
from worldloop.trainer.measures.looks import Looks, looks
from worldloop.trainer.measures.obedience import Share, Steps, judge
from worldloop.trainer.report import Report, Row, Strip
from worldloop.trainer.rollouts import Rollout, follow, place, wander
from worldloop.trainer.sizes import FIRST_WORLD, Sizes

_NEEDED: Final = 50
"""Cases of a share below which it shows nothing about 98 or 99 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walked:
    """What is kept of one long walk.

    Attributes:
        steps, looks: its judgement and its pictures' numbers.
        deviations: float64 `[T + 1]`, of the latents; zeros for the simulator.
        shown: uint8 `[columns, H, W, 3]`, for the contact sheet.
    """

    steps: Steps
    looks: Looks
    deviations: NDArray[np.float64]
    shown: NDArray[np.uint8]


def long_walks(model: WorldModel, sizes: Sizes, report: Report, tick: Callable[[str], None]) -> None:
    """Walk, and add rows, curves and strips to the report."""
    mixed = [_mixed(model, sizes, n, tick) for n in range(sizes.worlds)]
    idle = [_idle(model, sizes, n, tick) for n in range(sizes.idle_worlds)]
    real = [_real(sizes, n, tick) for n in range(sizes.idle_worlds)]
    _obedience(sizes, report, mixed, idle, real)
    _legality(sizes, report, mixed, idle)
    _drift(sizes, report, {"mixed keys": mixed, "no keys": idle, "simulator": real})
    latents = [0, *sizes.checkpoints()]
    for name, walks in (("mixed", mixed), ("idle", idle)):
        for number, walked in enumerate(walks[: sizes.strips if name == "mixed" else sizes.strips // 3]):
            report.strips.append(Strip(label=f"{name} {number + 1}", pictures=walked.shown, latents=latents))


def _mixed(model: WorldModel, sizes: Sizes, number: int, tick: Callable[[str], None]) -> Walked:
    tick(f"mixed keys, world {number + 1} of {sizes.worlds}")
    dream = Dream(model, place(FIRST_WORLD + number)[1], seed=number)
    rollout = wander(dream, dream.first, sizes.latents, np.random.default_rng((1, number)))
    return _walked(rollout, sizes, dream.deviations)


def _idle(model: WorldModel, sizes: Sizes, number: int, tick: Callable[[str], None]) -> Walked:
    tick(f"no keys, world {number + 1} of {sizes.idle_worlds}")
    dream = Dream(model, place(FIRST_WORLD + number)[1], seed=number)
    rollout = follow(dream, dream.first, np.zeros(sizes.latents, np.int64))
    return _walked(rollout, sizes, dream.deviations)


def _real(sizes: Sizes, number: int, tick: Callable[[str], None]) -> Walked:
    tick(f"the simulator itself, world {number + 1} of {sizes.idle_worlds}")
    world, first = place(FIRST_WORLD + number)
    rollout = wander(world, first, sizes.latents, np.random.default_rng((1, number)))
    return _walked(rollout, sizes, [0.0] * len(rollout.pictures))


def _walked(rollout: Rollout, sizes: Sizes, deviations: list[float]) -> Walked:
    return Walked(
        steps=judge(rollout),
        looks=looks(rollout.pictures),
        deviations=np.array(deviations),
        shown=rollout.pictures[[0, *sizes.checkpoints()]],
    )


def _obedience(
    sizes: Sizes, report: Report, mixed: list[Walked], idle: list[Walked], real: list[Walked]
) -> None:
    steps = Steps.join([walked.steps for walked in mixed])
    still = Steps.join([walked.steps for walked in mixed + idle])
    truth = Steps.join([walked.steps for walked in real])
    last = sizes.latents
    for first, to in dict.fromkeys(((1, min(100, last)), (max(1, last - 100), last))):
        share = obedience.keys_obeyed(steps.between(first, to))
        report.rows.append(_row(f"keys obeyed, latents {first}–{to}", share, 99.0))
    report.rows += [
        _row("stops at solid tiles", obedience.stops(steps), 98.0),
        _row("stands still without a key", obedience.stands(still), 99.0),
        _row("faces the key's direction", obedience.turns(steps), None),
        _row("control: keys obeyed in the simulator itself", obedience.keys_obeyed(truth), 99.9),
        _row("control: stops in the simulator itself", obedience.stops(truth), 99.9),
    ]
    edges = sizes.segments
    report.curves.append(
        Curve(
            title="keys obeyed by age of the dream",
            x_label="latents, up to",
            y_label="% of latents with a key and a free tile ahead",
            x=[float(edge) for edge in edges[1:]],
            series={
                "dream": obedience.by_latent(steps, edges),
                "simulator": obedience.by_latent(truth, edges),
            },
            target=99.0,
        )
    )


def _row(name: str, share: Share, target: float | None) -> Row:
    """A world of one kind all over obeys in the few cases that can be judged; most must be for a pass."""
    note = f"{share.skipped:,} more could not be judged" if share.skipped else ""
    needed = max(_NEEDED, share.skipped)
    return Row(name=name, value=share.value, count=share.count, target=target, needed=needed, note=note)


def _legality(sizes: Sizes, report: Report, mixed: list[Walked], idle: list[Walked]) -> None:
    latents = sizes.checkpoints()
    series: dict[str, list[float | None]] = {}
    for name, walks in (("mixed keys", mixed), ("no keys", idle)):
        legal = 100 * np.stack([walked.looks.legal for walked in walks])
        value = float(legal[:, sizes.horizon].mean())
        worst = float(legal[:, sizes.horizon].min())
        report.rows.append(
            Row(
                name=f"legal tiles at latent {sizes.horizon}, {name}",
                value=value,
                count=len(walks) * 60,
                target=97.0,
                note=f"cells of {len(walks)} worlds; the worst world {worst:.0f} %",
            )
        )
        series[name] = [float(legal[:, latent].mean()) for latent in latents]
    report.curves.append(
        Curve(
            title="legal tiles in pixels",
            x_label="latent",
            y_label="% of cells within the bound of a tile",
            x=[float(latent) for latent in latents],
            series=series,
            log_x=True,
            target=97.0,
            y_range=(0.0, 101.0),
        )
    )


def _drift(sizes: Sizes, report: Report, kinds_of_walk: dict[str, list[Walked]]) -> None:
    """Statistics by segment; rows compare the last segment with the first, against the same in the simulator."""
    edges = sizes.segments
    middles = [(first + last) / 2 for first, last in itertools.pairwise(edges)]
    panels: dict[str, dict[str, list[float | None]]] = {}
    for name, walks in kinds_of_walk.items():
        stacks = {
            "sharpness (mean absolute Laplacian)": np.stack([w.looks.sharpness for w in walks]),
            "colour mean": np.stack([w.looks.colour.mean(1) for w in walks]),
            "colour deviation": np.stack([w.looks.contrast for w in walks]),
            "deviation of latents": np.stack([w.deviations for w in walks]),
        }
        for panel, stack in stacks.items():
            values = looking.segments(stack, edges)
            if name == "simulator" and panel == "deviation of latents":
                continue
            panels.setdefault(panel, {})[name] = list(values)
            if name == "mixed keys" or (name == "no keys" and panel.startswith("sharpness")):
                report.rows.append(
                    Row(
                        name=f"drift of {panel.split(' (')[0]}, {name}",
                        value=100 * values[-1] / values[0] if values[0] else None,
                        count=len(walks),
                        note=f"last sixth of {sizes.latents} latents against the first",
                    )
                )
        shares = np.stack([w.looks.kinds for w in walks])
        first, last = (shares[:, a:b].mean((0, 1)) for a, b in ((edges[0], edges[1]), (edges[-2], edges[-1])))
        report.rows.append(
            Row(
                name=f"drift of the kinds' shares, {name}",
                value=100 * looking.shift_of_kinds(last, first),
                count=len(walks),
                note="share of cells that changed kind on balance, last sixth against the first",
            )
        )
        if name == "mixed keys":
            report.curves.append(_kinds_curve(shares, edges, middles))
    for panel, lines in panels.items():
        report.curves.append(
            Curve(title=f"drift: {panel}", x_label="latent, middle of the segment", x=middles, series=lines)
        )


def _kinds_curve(shares: NDArray[np.float64], edges: list[int], middles: list[float]) -> Curve:
    return Curve(
        title="drift: share of each kind, mixed keys",
        x_label="latent, middle of the segment",
        y_label="% of cells",
        x=middles,
        series={
            kind: [100 * value for value in looking.segments(shares[..., n], edges)]
            for n, kind in enumerate(KINDS)
        },
    )
