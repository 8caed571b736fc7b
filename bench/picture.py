"""What a picture costs, alone and beside a live game: `python -m bench.picture`.

    alone      seconds of a pass, of the decode and of a whole picture, for each size
    beside     a game that shares the device with picture after picture, against the same game without: how much of a
               picture is in the way of any frame, which is one pass at most

No server, no encoder; one thread computes and the two sides take turns, as in `bench.engine`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.engine import ROUNDS, Games, Time, delays, load
from bench.report import Row, environment, percentile, publish
from worldloop.core.errors import InvalidInputError
from worldloop.engine.contract import Done, Op, Plan, Result
from worldloop.loops.picture import PictureLoop, PictureRequest
from worldloop.loops.picture_model import PictureModel, Size
from worldloop.loops.units import run_unit
from worldloop.loops.world import WorldLoop
from worldloop.models.device import pick_device, set_threads, synchronize
from worldloop.models.registry import find_picture
from worldloop.picture_host import load_model

PROMPT = "a lake in the meadow"


class Watched(PictureLoop):
    """A picture loop that keeps when each of its units ran, as (op, began, ended)."""

    def __init__(self, model: PictureModel, time: Time) -> None:
        super().__init__(model)
        self.units: list[tuple[str, float, float]] = []
        self._time = time

    @property
    def ops(self) -> Mapping[str, Op]:
        return {name: self._watch(op) for name, op in super().ops.items()}

    def _watch(self, op: Op) -> Op:
        def run(plan: Plan) -> Result:
            began = self._time.now()
            result = op(plan)
            synchronize(self.model.device)
            self.units.append((plan.op, began, self._time.now()))
            return result

        return run


def wish(model: PictureModel, size: Size, seed: int = 0) -> PictureRequest:
    """One picture by the model's own choices."""
    own = model.defaults
    return PictureRequest(
        prompt=PROMPT, size=size, seed=seed, steps=own.steps, guidance=own.guidance, shift=own.shift
    )


def make_alone(model: PictureModel, size: Size, pictures: int, time: Time) -> dict[str, float]:
    """Medians over `pictures` of them, in milliseconds; the first one more warms up."""
    watched, whole = Watched(model, time), []
    for seed in range(pictures + 1):
        if seed == 1:
            watched.units.clear()
        began, state = time.now(), watched.init(wish(model, size, seed))
        while not isinstance(watched.next(state), Done):
            run_unit(watched, state)
        whole.append(time.now() - began)
    spent = {
        op: [ended - began for name, began, ended in watched.units if name == op]
        for op in ("denoise", "decode")
    }
    return {
        "pass_ms": 1000 * percentile(spent["denoise"], 50),
        "passes": len(spent["denoise"]) / pictures,
        "decode_ms": 1000 * sum(spent["decode"]) / pictures,
        "picture_ms": 1000 * percentile(whole[1:], 50),
    }


def play_beside(loop: WorldLoop, model: PictureModel, seconds: float, time: Time) -> dict[str, float]:
    """One game alone and beside picture after picture, in turns; times in milliseconds."""
    alone, beside = (Games(loop, 1, largest=1, time=time) for _ in range(2))
    watched, pictures = Watched(model, time), 0

    def another() -> None:
        nonlocal pictures
        pictures += 1
        if not over:
            beside.engine.open(watched, wish(model, model.defaults.size, pictures), on_close=another)

    for _ in range(ROUNDS):
        alone.play(seconds / ROUNDS)
        over: list[bool] = []
        pictures -= 1
        another()
        beside.play(seconds / ROUNDS)
        over.append(True)
        while beside.engine.tick():
            pass
    units = [(began, ended) for _, began, ended in watched.units]
    inside = [delays(frame, units) for frame in beside.players[0].frames]
    largest = max((ended - began for began, ended in units), default=math.nan)
    without, with_them = alone.figures(), beside.figures()
    return {
        "frames": len(inside),
        "pictures": pictures,
        "units": len(units),
        "largest_unit_ms": 1000 * largest,
        "largest_delay_ms": 1000 * max(sum(each) for each in inside),
        "median_delay_ms": 1000 * percentile([sum(each) for each in inside], 50),
        "units_in_a_frame": max(len(each) for each in inside),
        **{f"alone_{name}": without[name] for name in ("frame_p50_ms", "frame_p95_ms", "late_percent")},
        **{f"beside_{name}": with_them[name] for name in ("frame_p50_ms", "frame_p95_ms", "late_percent")},
    }


def rows(result: dict[str, Any]) -> list[Row]:
    """For people."""
    found: list[Row] = [
        (
            f"a picture of {size}",
            f"{each['picture_ms']:.0f} ms: {each['passes']:.0f} passes of {each['pass_ms']:.1f} ms, decode "
            f"{each['decode_ms']:.1f} ms",
        )
        for size, each in result["alone"].items()
    ]
    job = result["beside"]
    for which in ("alone", "beside"):
        p50, p95, late = (job[f"{which}_{name}"] for name in ("frame_p50_ms", "frame_p95_ms", "late_percent"))
        found.append((f"one game {which}", f"frame {p50:.1f} / {p95:.1f} ms, late {late:.1f}%"))
    return [
        *found,
        ("pictures beside it", f"{job['pictures']} in {job['units']} units"),
        (
            "largest delay of a frame / largest unit",
            f"{job['largest_delay_ms']:.1f} / {job['largest_unit_ms']:.1f} ms, at most {job['units_in_a_frame']} "
            "unit(s) of a picture in a frame",
        ),
    ]


def main(
    world: Annotated[str, typer.Option(help="A shipped world's name, or a path.")] = "meadow",
    picture: Annotated[str, typer.Option(help="A picture model's path; the world's own without.")] = "",
    count: Annotated[int, typer.Option(min=1, help="Pictures of each size.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="Of play, on each side.")] = 20.0,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds, to see that it runs.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Make pictures alone, and beside one game."""
    set_threads(threads)
    path = find_picture(picture, world)
    if path is None:
        raise InvalidInputError(f"world {world!r} has no picture model: give --picture")
    clock, game, model = Time(), load(world), load_model(path, device=pick_device())
    sizes = model.sizes or (model.defaults.size,)
    if quick:
        sizes, count, seconds = sizes[:1], 1, 1.2
    result = {
        "alone": {f"{w}x{h}": make_alone(model, (h, w), count, clock) for h, w in sizes},
        "beside": play_beside(WorldLoop(game), model, seconds, clock),
    }
    publish(f"picture: {path.stem}", environment(dtype=game.dtype), rows(result), result, json_file)


if __name__ == "__main__":
    typer.run(main)
