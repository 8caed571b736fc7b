"""The command line: help, one line and exit code 2 for what a user got wrong, and what each command prints."""

from __future__ import annotations

import hmac
import json
import logging
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer.main
from safetensors import safe_open
from typer.testing import CliRunner

from worldloop import __version__
from worldloop.cli import app
from worldloop.core.clock import ManualClock
from worldloop.core.errors import TicketError
from worldloop.core.settings import Settings
from worldloop.core.telemetry import LOGGER
from worldloop.session.keys import Keys
from worldloop.session.tickets import Tickets
from worldloop.testing import tiny_world

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_world(tmp_path_factory.mktemp("tiny"), step=5)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Some commands send the log to their own standard error, which is gone afterwards."""
    logger = logging.getLogger(LOGGER)
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


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
    assert {"bench", "doctor", "eval", "inspect", "play", "ticket", "train"} <= set(COMMANDS)


def test_inspect_prints_the_facts_of_a_folder_and_of_a_file(folder: Path) -> None:
    code, text, _ = run("inspect", str(folder), "--json")
    one = json.loads(text)
    with safe_open(folder / "tiny-3r.safetensors", framework="pt") as file:
        count = sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118 -- not a dict

    assert code == 0
    assert one["refused"] == []
    assert list(one["checkpoints"]) == ["tiny-3r"]
    facts = one["checkpoints"]["tiny-3r"]
    assert facts["cache_mode"] == "recache"
    assert facts["train_step"] == 5
    assert facts["weights"] == {"bfloat16": count}
    assert facts["bytes"] == (folder / "tiny-3r.safetensors").stat().st_size
    assert facts["trained_on"] == "nothing: random weights"
    assert json.loads(run("inspect", str(folder / "tiny-3r.safetensors"), "--json")[1]) == one


def test_inspect_prints_a_table(folder: Path) -> None:
    code, text, _ = run("inspect", str(folder))

    assert code == 0
    assert text.startswith("tiny-3r\n")
    for row in ("cache mode +recache", "training step +5", "weights +[0-9,]+ bfloat16", "recency +off"):
        assert re.search(rf"^  {row}$", text, re.MULTILINE), row


def test_inspect_reads_no_weights(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "tiny-3r.safetensors").read_bytes()
    spoiled = tmp_path / "tiny-3r.safetensors"
    header = 8 + int.from_bytes(whole[:8], "little")
    spoiled.write_bytes(whole[:header] + b"\xff" * (len(whole) - header))

    mine, theirs = (json.loads(run("inspect", str(path), "--json")[1]) for path in (spoiled, folder))

    assert mine == theirs


def test_inspect_goes_on_past_what_is_refused_and_lists_it(folder: Path, tmp_path: Path) -> None:
    for name in ("autoencoder.safetensors", "tiny-3r.safetensors"):
        shutil.copy(folder / name, tmp_path)
    shutil.copy(folder / "tiny-3r.safetensors", tmp_path / "odd-4r.safetensors")
    (tmp_path / "broken-3r.safetensors").write_bytes(b"nothing")

    code, out, err = run("inspect", str(tmp_path))
    refused = json.loads(run("inspect", str(tmp_path), "--json")[1])["refused"]

    assert code == 2
    assert out.startswith("tiny-3r\n")
    lines = err.splitlines()
    assert [line.split(":")[1] for line in lines] == [" broken-3r.safetensors", " odd-4r.safetensors"]
    assert "the name says 4 steps" in lines[1]
    assert [(each["file"], each["found"], each["allowed"]) for each in refused] == [
        ("broken-3r.safetensors", None, None),
        ("odd-4r.safetensors", "4r", "3r"),
    ]


def test_inspect_of_a_folder_without_checkpoints_says_all_that_is_missing(tmp_path: Path) -> None:
    code, out, err = run("inspect", str(tmp_path))

    assert (code, out) == (2, "")
    assert "holds no autoencoder.safetensors" in err
    assert "holds no checkpoint" in err


def test_a_pt_file_is_counted_too(folder: Path, tmp_path: Path) -> None:
    with safe_open(folder / "tiny-3r.safetensors", framework="pt") as file:
        config = json.loads(file.metadata()["config"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- not a dict
    torch.save({"model": tensors, "config": config, "step": 5}, tmp_path / "tiny-3r.pt")

    (mine,) = json.loads(run("inspect", str(tmp_path / "tiny-3r.pt"), "--json")[1])["checkpoints"].values()
    (theirs,) = json.loads(run("inspect", str(folder), "--json")[1])["checkpoints"].values()

    assert mine["weights"] == theirs["weights"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["play", "--world", "atlantis", "--no-browser"], "no world 'atlantis'"),
        (["play", "--port", "99999"], "port"),
        (["play", "--set", "colour=red"], "unknown setting 'colour'"),
        (["play", "--set", "slots"], "--set 'slots' must be NAME=VALUE"),
        (["train", "moon"], "recipe 'moon' must be one of"),
        (["bench", "atlantis"], "no world 'atlantis'"),
        (["inspect", "no-such.safetensors"], "no world 'no-such.safetensors'"),
        (["bench", "FOLDER", "--dtype", "fp64"], "dtype='fp64' must be auto, bf16, autocast or fp32"),
        (["ticket", "ann"], "no ticket_secret: set it and server_id"),
        (["ticket", "ann", "--config", "no-such.toml"], "settings file no-such.toml"),
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


def test_a_key_is_printed_with_the_hash_that_admits_it() -> None:
    code, out, _ = run("key")
    (name, key), (other, digest) = (line.split() for line in out.splitlines())

    assert (code, name, other) == (0, "key", "hash")
    Keys(Settings(api_key_hashes=(digest,))).check(f"Bearer {key}")
    assert run("key")[1] != out


def test_a_ticket_admits_its_player_until_it_ends(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('ticket_secret = "between us"\nserver_id = "eu1"\n')
    began = int(time.time())

    code, out, _ = run("ticket", "ann.b", "--ttl", "60", "--config", str(config))
    ticket = out.removesuffix("\n")
    user, server, end, signature = ticket.rsplit(".", 3)
    clock = ManualClock(epoch=float(end))
    tickets = Tickets(secret="between us", server_id="eu1", clock=clock)

    assert (code, out.count("\n")) == (0, 1)
    assert (user, server) == ("ann.b", "eu1")
    assert began + 60 <= int(end) <= int(time.time()) + 60
    claim = f"ann.b.eu1.{end}".encode()
    assert signature == hmac.digest(b"between us", claim, "sha256").hex()
    tickets.check("ann.b", ticket)
    for whom, secret, second in (("bob", "between us", 0), ("ann.b", "other", 0), ("ann.b", "between us", 1)):
        late = ManualClock(epoch=float(end) + second)
        with pytest.raises(TicketError):
            Tickets(secret=secret, server_id="eu1", clock=late).check(whom, ticket)


def test_a_ticket_takes_its_secret_from_the_environment_and_never_from_an_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLDLOOP_TICKET_SECRET", "between us")
    monkeypatch.setenv("WORLDLOOP_SERVER_ID", "eu1")

    assert run("ticket", "ann")[1].startswith("ann.eu1.")
    code, out, err = run("ticket", "a b")
    assert (code, out) == (2, "")
    assert "user id must be 1 to 64 of" in err
    options = [name for each in typer.main.get_command(app).commands["ticket"].params for name in each.opts]  # type: ignore[attr-defined]
    assert set(options) == {"user", "--ttl", "--config"}


def test_doctor_says_that_play_works_here(folder: Path) -> None:
    flags = ["--set", f"world={folder}", "--set", "threads=1", "--set", "port=0"]

    code, text, err = run("doctor", *flags)

    assert (code, err) == (0, "")
    assert text.endswith("worldloop play works here with these settings.\n")
    assert "Traceback" not in text


def test_doctor_says_what_stops_play(folder: Path) -> None:
    flags = ["--set", f"world={folder}", "--set", "device=cuda:63"]

    code, text, _ = run("doctor", *flags)
    coded, data, _ = run("doctor", *flags, "--json")

    assert code == coded == 1
    assert re.search(r"^stops worldloop play: device: .*; set device=auto$", text, re.MULTILINE)
    found = json.loads(data)
    assert not found["works"]
    assert len(found["problems"]) == 1


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
            with urllib.request.urlopen(f"{url}/models", timeout=60) as answer:
                models = json.load(answer)["models"]
            server.send_signal(signal.SIGTERM)
            code = server.wait(timeout=60)
        finally:
            server.kill()

    assert ready.startswith("ready http://127.0.0.1:")
    assert models == ["tiny-3r"]
    assert code == 0
