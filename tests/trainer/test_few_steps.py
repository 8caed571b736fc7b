"""Few-step students of recorded teachers: they end nearer to the teacher, by what they learned and by nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from worldloop.cli import app
from worldloop.core.files import file_hash
from worldloop.loops.rollout import Chunk, Rollout
from worldloop.loops.rollout_file import pack_rollout, unpack_rollout
from worldloop.loops.video_model import VideoModel
from worldloop.models.causal import CausalTransformer
from worldloop.models.causal_weights import read_video_config
from worldloop.testing import random_video_model, tiny_picture, tiny_video
from worldloop.trainer.few_steps import FewStepRecipe, Paths, distil, student_config, train_few_steps
from worldloop.trainer.rollout_profile import distance, record_videos
from worldloop.trainer.text_data import meadow_prompts
from worldloop.trainer.text_recipes import VOCABULARY

PROMPTS = ["a lake", "walk in the meadow", "a", "lake", "walk", "the lake in the meadow"]
RECIPE = FewStepRecipe(
    passes=2, steps=30, batch=6, muon_rate=0.01, adam_rate=2.5e-3, average=8, warmup=4, latent_frames=4
)


@pytest.fixture(scope="module")
def teacher(one_thread: None) -> VideoModel:
    return random_video_model(guidance=2.0, solver="euler", steps=6)


@pytest.fixture(scope="module")
def rollouts(teacher: VideoModel) -> list[Rollout]:
    return list(record_videos(teacher, PROMPTS * 2, latent_frames=4, seed=100))


@pytest.fixture(scope="module")
def held_out(teacher: VideoModel) -> list[Rollout]:
    return list(record_videos(teacher, PROMPTS[:3], latent_frames=4, seed=9000))


@pytest.fixture(scope="module")
def paths(rollouts: list[Rollout], teacher: VideoModel) -> Paths:
    return Paths.of(rollouts, teacher.config, RECIPE.passes)


@pytest.fixture(scope="module")
def student_of(teacher: VideoModel) -> Callable[[CausalTransformer], VideoModel]:
    """A network, served as a student of two passes."""

    def make(network: CausalTransformer) -> VideoModel:
        return VideoModel(
            config=student_config(teacher.config, 2), network=network.to_serving(torch.float32),
            pictures=teacher.pictures, texts=teacher.texts, device=teacher.device, dtype=teacher.dtype,
        )  # fmt: skip

    return make


def test_a_student_of_two_passes_ends_nearer_to_its_teacher(
    teacher: VideoModel,
    paths: Paths,
    held_out: list[Rollout],
    student_of: Callable[[CausalTransformer], VideoModel],
) -> None:
    losses: list[float] = []
    before = [parameter.clone() for parameter in teacher.network.parameters()]

    network = train_few_steps(
        teacher.network, teacher.config, paths, RECIPE, on_step=lambda step, loss: losses.append(loss)
    )

    assert len(losses) == RECIPE.steps
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])
    assert distance(teacher, held_out) == 0.0, "the teacher itself, in all its steps"
    untrained = min(distance(teacher, held_out, steps=2, guidance=scale) for scale in (1.0, 2.0))
    assert untrained > 0.15
    assert distance(student_of(network), held_out) < 0.5 * untrained
    assert all(torch.equal(a, b) for a, b in zip(teacher.network.parameters(), before, strict=True)), (
        "the teacher is as it was"
    )


def test_control_shuffled_records_do_not_help(
    teacher: VideoModel,
    paths: Paths,
    held_out: list[Rollout],
    student_of: Callable[[CausalTransformer], VideoModel],
) -> None:
    count = len(paths)
    mixed = [paths.points[torch.arange(count).roll(3 * k + 1), k] for k in range(paths.points.shape[1])]
    network = train_few_steps(
        teacher.network, teacher.config, replace(paths, points=torch.stack(mixed, dim=1)), RECIPE
    )

    assert distance(student_of(network), held_out) > distance(teacher, held_out, steps=2, guidance=1.0)


def test_paths_are_what_the_teacher_went_through(rollouts: list[Rollout], paths: Paths) -> None:
    assert paths.points.shape == (12, 3, 4, 8, 3, 4)
    assert paths.sigmas == (1.0, pytest.approx(5 / 6), 0.0)
    for row, rollout in enumerate(rollouts):
        for number, chunk in enumerate(rollout.chunks):
            frames = slice(2 * number, 2 * number + 2)
            assert torch.equal(paths.points[row, 0, frames], chunk.steps[0].x_t)
            assert torch.equal(paths.points[row, 1, frames], chunk.steps[3].x_t)
            assert torch.equal(paths.points[row, 2, frames], chunk.latents)
    assert paths.text[1].tolist() == [2, 3, 4, 5, 0, 0]


def test_a_record_from_a_file_is_as_good(rollouts: list[Rollout], paths: Paths, teacher: VideoModel) -> None:
    read = [unpack_rollout(pack_rollout(rollout)) for rollout in rollouts]
    found = Paths.of(read, teacher.config, 2)
    assert torch.equal(found.points, paths.points)
    assert torch.equal(found.text, paths.text)


def edited(rollout: Rollout, *chunks: Chunk) -> Rollout:
    other = Rollout()
    other.chunks = list(chunks) or rollout.chunks
    return other


def test_records_that_teach_nothing_are_refused(teacher: VideoModel, rollouts: list[Rollout]) -> None:
    one, config = rollouts[0], teacher.config
    first, second = one.chunks
    text = {"cond": torch.tensor([1])}
    renoised = list(record_videos(teacher, ["a"], latent_frames=2, solver="renoise"))
    for records, passes, words in (
        ([], 2, "there are no rollouts"),
        ([one], 4, r"no step at sigma 0.9375: .* a multiple of 4 steps"),
        (renoised, 2, r"frame 0, step 0 does not follow the flow: record with solver 'euler'"),
        ([edited(one, replace(first, steps=()), second)], 2, "frame 0 was given, not made"),
        ([edited(one, first, replace(second, told=text))], 2, "changed its prompt"),
        ([one, edited(one, first)], 2, r"have \[2, 4\] latent frames"),
    ):
        with pytest.raises(ValueError, match=words):
            Paths.of(records, config, passes)


@pytest.mark.parametrize("frames", [1, 3])
def test_a_checkpoint_becomes_one_that_can_be_served(frames: int, tmp_path: Path, one_thread: None) -> None:
    """With one frame this is how a picture model is made."""
    still = {"chunk_frames": 1, "window_frames": 2, "sink_frames": 0} if frames == 3 else {
        "chunk_frames": 1, "window_frames": 1, "sink_frames": 0,
    }  # fmt: skip
    checkpoint = tiny_video(tmp_path, guidance=2.0, solver="euler", steps=4, **still)
    recipe = replace(RECIPE, steps=2, batch=2, teacher_steps=4, latent_frames=frames)
    heard: list[int] = []
    (tmp_path / "students").mkdir()
    made = distil(
        checkpoint,
        tmp_path / "students" / "few-video.safetensors",
        PROMPTS[:3],
        recipe,
        on_rollout=heard.append,
    )

    config = read_video_config(made.path)
    assert (config.steps, config.solver, config.guidance) == (2, "euler", 1.0)
    assert replace(config, steps=4, guidance=2.0) == read_video_config(checkpoint)
    assert file_hash(made.path) != file_hash(checkpoint)
    assert heard == [1, 2, 3]
    assert made.before > 0 and made.after > 0
    # It is served from where it is: what it needs lies beside it.
    autoencoder = made.path.parent / "autoencoder.safetensors"
    served = VideoModel.load(made.path, autoencoder, device=torch.device("cpu"), dtype=torch.float32)
    assert len(next(record_videos(served, ["a lake"], latent_frames=frames)).chunks) == frames


def run(*words: object) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["distil", *map(str, words), "--threads", "1"])
    return answer.exit_code, answer.output


@pytest.mark.parametrize("kind", ["picture", "video"])
def test_the_command_makes_a_student_that_draws(kind: str, tmp_path: Path, one_thread: None) -> None:
    teacher = (tiny_picture if kind == "picture" else tiny_video)(
        tmp_path, guidance=2.0, solver="euler", steps=4
    )
    (tmp_path / "prompts.txt").write_text("a lake\n\nwalk in the meadow\nthe lake\n")
    out = tmp_path / f"few-{kind}.safetensors"
    words = ["--passes", 2, "--teacher-steps", 4, "--steps", 2, "--prompts", tmp_path / "prompts.txt"]
    latents = ["--latents", 4] if kind == "video" else []

    code, said = run(teacher, "--out", out, *words, *latents)

    assert code == 0, said
    assert "3 of 3 rollouts" in said
    assert "step 2 of 2, loss" in said
    assert re.search(
        r"wrote .*: in 2 passes, the teacher ends \d.\d\d from .* 4, the student \d.\d\d\n", said
    )
    draw = ["a lake", "--model", str(out), "--set", "threads=1"]
    file, length = ("a.png", []) if kind == "picture" else ("a.mp4", ["--seconds", "1"])
    draw += ["--out", str(tmp_path / file), *length]
    assert CliRunner().invoke(app, [kind, *draw]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere", "--out", "a-video.safetensors"], "'nowhere' must be a picture or video model"),
        (["{teacher}", "--out", "a-picture.safetensors"], "must end as tiny-video.safetensors does"),
        (["{teacher}", "--out", "no/a-video.safetensors"], "there is no folder 'no'"),
        (["{teacher}", "--out", "{teacher}"], "is the teacher itself"),
        (
            ["{teacher}", "--out", "other/a-video.safetensors"],
            "another autoencoder.safetensors than the teacher's",
        ),
        (
            ["{teacher}", "--out", "a-video.safetensors", "--passes", 3],
            "32 steps must be a multiple of",
        ),
        (["{teacher}", "--out", "a-video.safetensors", "--prompts", "no.txt"], "no.txt cannot be read"),
        (["{teacher}", "--out", "a-video.safetensors", "--prompts", "one.txt"], "1 prompts: two are needed"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(
    words: list[object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    teacher = tiny_video(tmp_path)
    (tmp_path / "one.txt").write_text("a lake")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "autoencoder.safetensors").write_bytes(b"another")
    before = sorted(tmp_path.iterdir())

    code, said = run(*(str(word).format(teacher=teacher) for word in words))

    assert (code, says in said, said.count("\n")) == (2, True, 1), said
    assert sorted(tmp_path.iterdir()) == before


def test_the_meadow_is_told_in_words_that_its_models_know() -> None:
    places, walks = (meadow_prompts(8, seed=3, walks=walks) for walks in (False, True))
    known = set(VOCABULARY)
    for place, way in zip(places, walks, strict=True):
        assert way.startswith(place + ", walking ")
        assert set(re.findall("[a-z]+", way)) <= known
    assert len(set(places)) == 8
