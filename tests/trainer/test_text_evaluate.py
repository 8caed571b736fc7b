"""The evaluation of models that read text: everything runs, the truth passes, and what does not listen misses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.core.errors import InvalidInputError
from worldloop.loops.first_frame import FirstFrame
from worldloop.loops.video import VideoLoop
from worldloop.models.causal import CausalConfig
from worldloop.models.registry import WORLDS
from worldloop.simulators.meadow import FRAME_SIZE, VIEW
from worldloop.simulators.tiles import TILES
from worldloop.simulators.walker import STAND, lay_over
from worldloop.testing import random_picture_model, random_video_model, tiny_picture, tiny_video
from worldloop.trainer import text_evaluate
from worldloop.trainer.report import Report, write_report
from worldloop.trainer.rollouts import ACTIONS, place
from worldloop.trainer.sizes import FIRST_WORLD
from worldloop.trainer.stills import Scenes, scenes
from worldloop.trainer.text_evaluate import (
    TextSizes,
    evaluate_text,
    evaluate_text_model,
    find_text_model,
    rollout,
)

TINY = CausalConfig.named("tiny", places=10)
SIZES = TextSizes(pictures=10, walks=3, latents=6, seeds=1)
FACTS = {"latent_hw": VIEW, "chunk_frames": 1, "window_frames": 2, "sink_frames": 0, "steps": 1}


def draw(views: Scenes, number: int) -> NDArray[np.uint8]:
    cells = TILES[views.windows[number]].copy()
    y, x = views.walker
    cells[y, x] = lay_over(cells[y, x][None], int(views.facings[number]), STAND)[0]
    return cells.transpose(0, 2, 1, 3, 4).reshape(VIEW[0] * 16, VIEW[1] * 16, 3)


class Painter:
    """A perfect model: draws the scenes that the prompts were made from, or those of others, and walks as told."""

    def __init__(self, *, shift: int = 0, deaf: bool = False) -> None:
        count = SIZES.pictures
        self._views = scenes(count, VIEW, np.random.default_rng(2), first_world=FIRST_WORLD, worlds=count)
        self._shift, self._deaf = shift, deaf
        self.loops: list[VideoLoop] = []

    def __call__(self, loop: VideoLoop, prompt: str, *, seed: int, latents: int = 1) -> NDArray[np.uint8]:
        self.loops.append(loop)
        if latents == 1:
            return draw(self._views, (seed + self._shift) % SIZES.pictures)[None]
        names = ["north", "south", "west", "east"]
        told = [word for word in prompt.split("walking ")[1].split(", then ")]
        ways = [names.index(word) + 1 for word in told]
        if self._deaf:
            ways = [ways[0] % 4 + 1]
        world, first = place(FIRST_WORLD + seed, at=(0, 0))
        frames = [first]
        for step in range(latents - 1):
            frames += list(world.step(ACTIONS[ways[min(step // 3, len(ways) - 1)]].tolist()))
        return np.stack(frames)


def report(monkeypatch: pytest.MonkeyPatch, painter: Painter) -> Report:
    monkeypatch.setattr(text_evaluate, "rollout", painter)
    return evaluate_text_model(random_video_model(TINY, **FACTS), SIZES, video=True)


def test_a_perfect_painter_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(monkeypatch, Painter())
    assert found.passed, found.table()
    assert found.row("and where it says").value == 100
    assert found.row("cells that scroll exactly").value == 100
    assert found.row("steps that go where the prompt says").value == 100
    assert found.row("latents with that way open that walk it").value == 100


def test_one_who_does_not_listen_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(monkeypatch, Painter(shift=1, deaf=True))
    assert found.row("legal tiles").passed
    for name in ("and where it says", "steps that go where the prompt says"):
        assert found.row(name).passed is False, name
    assert found.row("steps that go where the prompt says").value == 0
    assert found.row("latents with that way open that walk it").value == 0


def test_everything_is_measured_of_a_checkpoint_and_written(tmp_path: Path) -> None:
    path = tiny_video(tmp_path, size=TINY, **FACTS)
    found = evaluate_text(path, TextSizes.quick())
    assert found.facts["model"] == "tiny-video"
    assert "steps that go where the prompt says" in found.table()
    write_report(found, tmp_path / "report")
    assert {file.name for file in (tmp_path / "report").iterdir()} == {
        "table.md", "eval.json", "curves.png", "contact.png"
    }  # fmt: skip
    other = path.with_name("tiny-picture.safetensors")
    path.rename(other)
    pictures = evaluate_text(other, TextSizes.quick())
    assert [strip.label for strip in pictures.strips] == [text or "no words" for text in text_evaluate.SHOWN]
    assert "steps that go where the prompt says" not in pictures.table()


def test_first_frames_are_drawn_as_when_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    path = tiny_video(
        tmp_path, size=TINY, **FACTS, facts={"picture": {"file": "a-picture.safetensors", "unread": []}}
    )
    tiny_picture(tmp_path, name="a-picture", size=TINY, latent_hw=VIEW, facts={}, steps=1)
    told = []
    for drawn in (True, False):
        painter = Painter()
        monkeypatch.setattr(text_evaluate, "rollout", painter)
        found = evaluate_text(path, TextSizes.quick(), drawn=drawn).facts.get("first frame")
        told.append((found, painter.loops[-1].first_frame is not None))
    assert told == [("drawn by a-picture", True), (None, False)]


def test_a_rollout_begins_with_the_drawn_frame(one_thread: None) -> None:
    video = random_video_model(TINY, **FACTS)
    painter = random_picture_model(size=TINY, latent_hw=VIEW, facts={"grids": [VIEW]})
    first = FirstFrame(painter, size=FRAME_SIZE, name="p")
    alone, drawn = (rollout(VideoLoop(video, each), "a lake", seed=0, latents=2) for each in (None, first))
    assert alone.shape == drawn.shape == (5, *FRAME_SIZE, 3)
    assert not np.array_equal(alone[0], drawn[0])


def test_wrong_sizes_and_pictures_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="walks=0: must be 1 or more"):
        TextSizes(walks=0)
    with pytest.raises(InvalidInputError, match="the meadow's"):
        evaluate_text_model(random_video_model(), TextSizes.quick(), video=False)


def test_models_are_found_by_path_and_by_a_shipped_name(tmp_path: Path) -> None:
    path = tiny_video(tmp_path, size=TINY, **FACTS)
    assert find_text_model(str(path)) == path
    assert find_text_model("meadow-picture") == WORLDS / "meadow" / "meadow-picture.safetensors"
    assert find_text_model("meadow") is None
    assert find_text_model(str(tmp_path)) is None
