"""The command line: help, one line and exit code 2 for what a user got wrong, and what each command prints."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from worldloop import __version__
from worldloop.cli import app
from worldloop.testing import tiny_world

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_world(tmp_path_factory.mktemp("tiny"), step=5)


def run(*words: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of one call."""
    answer = CliRunner().invoke(app, list(words))
    return answer.exit_code, answer.stdout, answer.stderr


def test_the_version_is_printed() -> None:
    assert run("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_and_every_option(command: str) -> None:
    code, text, _ = run(command, "--help")
    options = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]

    assert code == 0
    assert all(getattr(option, "help", None) for option in options), [option.name for option in options]
    assert "Usage" in text


def test_the_commands_of_this_version_are_there() -> None:
    assert {"bench", "eval", "inspect", "play", "train"} <= set(COMMANDS)


def test_inspect_prints_the_facts_of_a_folder_and_of_a_file(folder: Path) -> None:
    code, text, _ = run("inspect", str(folder))
    one = json.loads(text)

    assert code == 0
    assert list(one) == ["tiny-3r"]
    assert one["tiny-3r"]["cache_mode"] == "recache"
    assert one["tiny-3r"]["train_step"] == 5
    assert json.loads(run("inspect", str(folder / "tiny-3r.safetensors"))[1]) == one


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["play", "--world", "atlantis", "--no-browser"], "no world 'atlantis'"),
        (["play", "--port", "99999"], "port"),
        (["play", "--set", "colour=red"], "unknown setting 'colour'"),
        (["play", "--set", "slots"], "--set 'slots' must be NAME=VALUE"),
        (["train", "moon"], "recipe 'moon' must be one of"),
        (["bench", "atlantis"], "no world 'atlantis'"),
        (["inspect", "no-such.safetensors"], "no-such.safetensors: not a readable safetensors file"),
        (["bench", "FOLDER", "--dtype", "fp64"], "dtype='fp64' must be auto, bf16 or fp32"),
        (["inspect", "."], "holds no autoencoder.safetensors"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], says: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    code, out, err = run(*(str(folder) if word == "FOLDER" else word for word in words))

    assert (code, out) == (2, "")
    assert err.startswith("worldloop: ")
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_bench_prints_what_a_frame_costs(folder: Path) -> None:
    code, text, _ = run("bench", str(folder), "--frames", "2", "--threads", "1")

    assert code == 0
    for row in ("model passes", "decode", "one latent frame", "start picture", "real-time factor"):
        assert re.search(rf"{row}.* \d", text), row


def test_play_says_where_it_listens_and_ends_with_0_on_a_signal(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "worldloop",
        "play",
        "--world",
        str(folder),
        "--port",
        "0",
        "--no-browser",
    ]
    with subprocess.Popen([*command, "--set", "threads=1"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            url = ready.removeprefix("ready ").strip()
            with urllib.request.urlopen(f"{url}/models", timeout=10) as answer:
                models = json.load(answer)["models"]
            server.send_signal(signal.SIGTERM)
            code = server.wait(timeout=20)
        finally:
            server.kill()

    assert ready.startswith("ready http://127.0.0.1:")
    assert models == ["tiny-3r"]
    assert code == 0
