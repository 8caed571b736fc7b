from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from worldloop.api import load_world
from worldloop.core.errors import InvalidInputError
from worldloop.loops.model import WorldModel
from worldloop.models.precision import Precision
from worldloop.trainer.dreams import Dream
from worldloop.trainer.evaluate import Sizes, evaluate_model, evaluate_world
from worldloop.trainer.recipes import RECIPES
from worldloop.trainer.report import write_report
from worldloop.trainer.rollouts import ACTIONS, place
from worldloop.trainer.run import Run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run(RECIPES["tiny"], tmp_path_factory.mktemp("tiny"), compile_blocks=False).train()


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> WorldModel:
    return WorldModel.load(
        checkpoint,
        checkpoint.parent / "autoencoder.safetensors",
        device=torch.device("cpu"),
        precision=Precision.choose(dtype="fp32", device=torch.device("cpu")),
    )


def play(dream: Dream, directions: list[int]) -> np.ndarray:
    return np.stack([dream.step(ACTIONS[direction].tolist()) for direction in directions])


def test_a_dream_shows_what_a_player_of_the_product_sees(checkpoint: Path, model: WorldModel) -> None:
    picture = place(1)[1]
    dream = Dream(model, picture, seed=9)
    with (
        load_world(checkpoint, dtype="fp32", device="cpu", threads=1) as world,
        world.start(picture, seed=9) as session,
    ):
        np.testing.assert_array_equal(dream.first, session.first[-1])
        for direction, key in enumerate(("", "w", "s", "a", "d")):
            np.testing.assert_array_equal(dream.step(ACTIONS[direction].tolist()), session.step(key))


def test_a_fork_dreams_the_same_and_leaves_the_first_alone(model: WorldModel) -> None:
    script = [1, 0, 4, 4, 2, 3, 1]
    alone = play(Dream(model, place(1)[1], seed=2), script)
    dream = Dream(model, place(1)[1], seed=2)
    begun = play(dream, script[:3])
    fork, other = dream.fork(), dream.fork()

    others = play(other, [0, 0])
    forked = play(fork, script[3:])
    ended = play(dream, script[3:])

    np.testing.assert_array_equal(np.concatenate((begun, forked)), alone)
    np.testing.assert_array_equal(ended, forked)
    assert (others != forked[:2]).any()
    assert len(dream.deviations) == 1 + len(script)


def test_without_summaries_differs_once_a_frame_is_only_a_summary(model: WorldModel) -> None:
    picture = place(1)[1]
    with_summaries, without = (Dream(model, picture, seed=2, summaries=keep) for keep in (True, False))
    whole = 1 + model.config.model.raw_window_frames
    script = [4] * (whole + 3)

    seen, bare = play(with_summaries, script), play(without, script)

    np.testing.assert_array_equal(seen[:whole], bare[:whole])
    assert (seen[whole:] != bare[whole:]).any()


def test_time_is_counted_by_the_given_timer(model: WorldModel) -> None:
    ticks = iter(range(1000))
    dream = Dream(model, place(1)[1], timer=lambda: float(next(ticks)))

    play(dream, [0, 0])

    assert {op: len(times) for op, times in dream.spent.items()} == {
        "denoise": 6, "decode": 2, "write_memory": 2, "step": 2,
    }  # fmt: skip
    assert dream.spent["decode"] == [1, 1]
    assert dream.spent["step"] == [11, 11]


def test_an_untrained_world_fails_and_the_measure_itself_passes(checkpoint: Path, tmp_path: Path) -> None:
    told: list[str] = []
    report = evaluate_world(str(checkpoint), sizes=Sizes.quick(), threads=1, on_progress=told.append)
    write_report(report, tmp_path / "deep" / "report", training=checkpoint.parent / "world.csv")

    assert not report.passed
    assert report.row("control: keys obeyed in the simulator itself").value == 100
    assert report.row("legal tiles at latent 12, mixed keys").passed is False
    assert report.row("autoencoder on held-out pictures").passed is False
    assert report.facts["model"] == "tiny-3r"
    assert report.facts["training step"] == 4
    assert told[0] == "mixed keys, world 1 of 2"
    written = json.loads((tmp_path / "deep" / "report" / "eval.json").read_text())
    assert written == json.loads(json.dumps(report.to_dict()))
    assert {row["name"] for row in written["rows"]} == {row.name for row in report.rows}
    names = {path.name for path in (tmp_path / "deep" / "report").iterdir()}
    assert names == {"eval.json", "table.md", "curves.png", "contact.png", "training.png"}


def test_the_same_world_gets_the_same_numbers(model: WorldModel) -> None:
    sizes = replace(Sizes.quick(), worlds=1, latents=6)

    first, second = (evaluate_model(model, sizes) for _ in range(2))

    assert [r for r in first.rows if r.unit not in ("ms", "×")] == [
        r for r in second.rows if r.unit not in ("ms", "×")
    ]
    assert first.curves == second.curves


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worlds": 0}, "worlds=0: must be 1 or more"),
        ({"latents": 5}, "latents=5: must be 6 or more"),
        ({"sizes": replace(Sizes(), distances=())}, r"distances=\(\)"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evaluate_world("meadow", **changes)


def test_an_unknown_world_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no world 'nowhere'"):
        evaluate_world("nowhere")


def test_the_default_reaches_every_latent_that_is_looked_at() -> None:
    assert Sizes().checkpoints() == [1, 2, 4, 8, 16, 32, 64, 100, 200, 300, 600]
    assert Sizes().segments == [0, 100, 200, 300, 400, 500, 600]
    assert Sizes(latents=50).checkpoints() == [1, 2, 4, 8, 16, 32, 50]
