"""`worldloop picture` and `worldloop verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from worldloop.cli import app
from worldloop.codec.still import encode_picture, read_picture
from worldloop.core.settings import Settings
from worldloop.pictures import PictureMaker
from worldloop.testing import tiny_picture, tiny_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tiny_world(tmp_path_factory.mktemp("worlds") / "tiny")
    tiny_picture(folder)
    return folder


def run(*words: str | Path) -> tuple[int, str]:
    """Exit code, and everything that was said."""
    made = CliRunner().invoke(app, [*map(str, words)])
    return made.exit_code, made.output


def picture(world: Path, out: Path, *words: str | Path) -> None:
    code, said = run("picture", "a lake", "--out", out, "--world", world, "--set", "threads=1", *words)
    assert code == 0, said


@pytest.mark.parametrize("size", ["64x48", "48x64", "32x32", "96x64"])
@pytest.mark.parametrize("negative", ["", "walk"])
def test_the_file_is_what_python_and_so_a_server_makes(
    world: Path, tmp_path: Path, size: str, negative: str
) -> None:
    picture(world, tmp_path / "a.png", "--size", size, "--seed", "5", "--negative", negative)

    width, height = map(int, size.split("x"))
    with PictureMaker.from_settings(Settings(world=str(world), threads=1)) as maker:
        made = maker.make("a lake", seed=5, size=(height, width), negative=negative)
    assert (tmp_path / "a.png").read_bytes() == encode_picture(made.pixels, "png")


def test_the_name_or_a_flag_says_the_format(world: Path, tmp_path: Path) -> None:
    names = ["a.png", "a.jpg", "a.jpeg", "a.webp", "a"]
    for name in names:
        flags = [] if "." in name else ["--format", "jpeg"]
        picture(world, tmp_path / name, "--seed", "5", *flags)
    heads = [(tmp_path / name).read_bytes()[:4] for name in names]
    pixels = [read_picture((tmp_path / name).read_bytes()).astype(int) for name in names]

    assert heads == [b"\x89PNG", *[b"\xff\xd8\xff\xe0"] * 2, b"RIFF", b"\xff\xd8\xff\xe0"]
    assert (tmp_path / "a.jpg").read_bytes() == (tmp_path / "a").read_bytes()
    assert np.array_equal(pixels[3], pixels[0])
    assert 0 < np.abs(pixels[1] - pixels[0]).mean() < 20


def test_seed_steps_and_time_are_told(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    code, said = run("picture", "a lake", "--out", out, "--world", world, "--steps", "2")

    assert code == 0
    assert f"wrote {out}: 64x48, seed " in said
    assert ", 2 steps, " in said
    assert "step 2 of 2" in said


def test_a_receipt_is_verified_and_a_change_is_found(world: Path, tmp_path: Path) -> None:
    paper = tmp_path / "r.json"
    picture(world, tmp_path / "a.webp", "--seed", "5", "--steps", "4", "--receipt", paper)
    again = ("verify", paper, "--world", world, "--set", "threads=1")
    found = json.loads(paper.read_text())

    assert run(*again) == (0, "equal: noise, pixels and file are the same bytes\n")
    for change, says in (
        ({"pixel_hash": "0" * 64}, "pixel_hash: 000000000000 then"),
        ({"file_hash": "0" * 64}, "file_hash: 000000000000 then"),
        ({"order": {**found["order"], "seed": 6}}, "noise_hash: "),
        ({"order": {**found["order"], "prompt": "walk"}}, "pixel_hash: "),
    ):
        paper.write_text(json.dumps({**found, **change}))
        code, said = run(*again)
        assert code == 1, said
        assert said.endswith("not equal\n")
        assert says in said
    paper.write_text(json.dumps({**found, "machine": {**found["machine"], "torch": "1.0"}}))
    code, said = run(*again)
    assert code == 0
    assert said.splitlines()[0].startswith("torch: 1.0 then, ")


def test_another_checkpoint_is_named_before_anything_is_made(world: Path, tmp_path: Path) -> None:
    paper = tmp_path / "r.json"
    picture(world, tmp_path / "a.png", "--receipt", paper)
    other = tiny_picture(tmp_path / "other", seed=9)

    code, said = run("verify", paper, "--model", other)

    assert code == 1
    assert said.startswith("not equal: it was made by another checkpoint, tiny-picture ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--size", "64x49"], "this model makes 64x48, 48x64"),
        (["--size", "64"], "must be WIDTHxHEIGHT"),
        (["--size", "-64x48"], "must be WIDTHxHEIGHT"),
        (["--out", "a.gif"], "must be png, jpeg or webp"),
        (["--out", "a"], "must be png, jpeg or webp"),
        (["--format", "bmp"], "--format 'bmp' must be"),
        (["--steps", "101"], r"steps 101 must be in 1..100"),
        (["--guidance", "nan"], "guidance=nan"),
        (["--negative", "lake " * 7], "7 words that this model knows"),
        (["--out", "no/such/folder/a.png"], "a.png cannot be written: there is no folder 'no/such/folder'"),
        (["--receipt", "no/r.json"], "r.json cannot be written: there is no folder 'no'"),
        (["--model", "nowhere"], "no picture model"),
        (["--set", "picture=off"], "picture=off"),
        (["--set", "picture_memory_mib=1"], "no picture fits"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = run("picture", "a lake", "--out", "a.png", "--world", world, *words)

    assert code == 2, said
    assert says in said
    assert said.splitlines()[-1].startswith("worldloop: ")
    assert list(tmp_path.iterdir()) == []


def test_a_world_without_a_picture_model_says_so(tmp_path: Path, one_thread: None) -> None:
    code, said = run("picture", "x", "--out", tmp_path / "a.png", "--world", tiny_world(tmp_path / "w"))

    assert code == 2
    assert "has none" in said


@pytest.mark.parametrize("text", ["{}", "nonsense"])
def test_what_is_no_receipt_is_refused(tmp_path: Path, text: str, world: Path) -> None:
    path: Any = tmp_path / "r.json"
    path.write_text(text)

    code, said = run("verify", path, "--world", world)

    assert code == 2
    assert said.startswith("worldloop: receipt")
