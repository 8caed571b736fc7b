"""The doctor: what stops a server is told with what to set instead, and a probe that fails is a line."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from worldloop.codec import h264
from worldloop.core.errors import CheckpointError, InvalidInputError
from worldloop.core.settings import Settings
from worldloop.doctor import compiling, machine, serving, stream
from worldloop.doctor.examine import examine
from worldloop.doctor.report import Diagnosis, Finding, guarded, setting
from worldloop.host import WorldHost
from worldloop.testing import tiny_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_world(tmp_path_factory.mktemp("tiny"), latent_hw=(6, 10))


def by_name(findings: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_machine_that_can_play_is_told_so_in_numbers(folder: Path) -> None:
    found = examine(world=str(folder), threads=1, port=0, slots=2, ticket_secret="hush", server_id="eu1")

    lines = by_name(found.findings)
    assert found.problems == []
    assert found.works
    assert lines["torch"].value == torch.__version__
    assert lines[str(folder)].value == ["tiny-3r"]
    assert lines["pictures"].value == [96, 160]
    speed = lines["speed"].value
    assert speed["factor"] == pytest.approx(speed["latents_per_s"] * 4 / 35)
    assert lines["players"].value == int(speed["factor"])
    assert 0 < lines["libx264"].value < 1000
    assert lines["codec"].value == "avc1.42E00D"
    assert lines["slots"].text == "2"
    assert lines["ticket_secret"].value == "(hidden)"
    assert "hush" not in str(found.to_dict())
    assert {finding.area for finding in found.findings} >= {
        "machine", "devices", "number formats", "compile", "world", "video encoders", "browser", "server", "settings",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"device": "cuda:63"}, ["device: ", "set device=auto"]),
        ({"fp8_linears": "row"}, ["fp8_linears: ", "capability 8.9", "set fp8_linears=off"]),
        ({"fp8_linears": "row", "dtype": "fp32"}, ["settings: fp8_linears=row needs dtype bf16"]),
        ({"compile": "max-autotune+cudagraphs"}, ["compile: ", "needs a CUDA device", "set compile="]),
        (
            {"h264_encoder": "mpeg2video"},
            ["h264_encoder: 'mpeg2video' must be one of", "set h264_encoder=libx264"],
        ),
        ({"slots": 0}, ["settings: slots: ", "everything else is told for the defaults"]),
        ({"world": "atlantis"}, ["world: no world 'atlantis'"]),
        ({"profile_frames": 1, "profile_dir": "no-such"}, ["profile_dir: ", "profile_frames=0"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a card can't do")
def test_what_cannot_work_here_stops_it_with_what_to_set_instead(
    flags: dict[str, Any], says: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    found = examine(**{"world": str(folder), "threads": 1, "port": 0, **flags})

    assert not found.works
    assert len(found.problems) == 1
    assert all(words in found.problems[0] for words in says), found.problems


def test_a_port_that_is_taken_stops_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = by_name(serving.server(Settings(port=port)))

    assert found["port"].stops
    assert f"port {port}" in found["port"].text
    assert "port" not in by_name(serving.server(Settings(port=0)))


def test_a_missing_package_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(serving.PACKAGES, "no_such_module", "no-such-package")

    (found,) = serving.server(Settings())

    assert found.stops
    assert found.text == "missing no-such-package: pip install 'worldloop[serve]'"


def test_a_world_that_fails_in_any_way_stops_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Settings) -> WorldHost:
        raise MemoryError("no room")

    monkeypatch.setattr(WorldHost, "from_settings", fail)

    found = examine(world=str(folder), port=0)

    assert found.problems == ["world: fails (MemoryError: no room)"]
    assert by_name(found.findings)["libx264"].value > 0, "the probes that follow still run"


def test_a_probe_of_the_machine_that_fails_is_a_line_and_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no\nsuch file")

    monkeypatch.setattr(machine, "_memory", fail)

    found = examine(world=str(folder), threads=1, port=0)

    assert found.works
    assert by_name(found.findings)["machine"].text == "could not be told (OSError: no such file)"
    assert "cores" in by_name(found.findings), "what came before stays"


def test_a_guarded_probe_stops_by_what_failed() -> None:
    def probe(error: Exception) -> Iterator[Finding]:
        yield Finding(area="a", name="first", text="there")
        raise error

    ours = list(guarded("a", probe(CheckpointError("x.pt", "is empty"))))
    foreign = list(guarded("a", probe(OSError("gone"))))
    needed = list(guarded("a", probe(OSError("gone")), needed=True))

    assert [found[0].name for found in (ours, foreign, needed)] == ["first"] * 3
    assert [found[1].stops for found in (ours, foreign, needed)] == [True, False, True]
    assert ours[1].text == "x.pt: is empty"
    assert Diagnosis(findings=tuple(needed)).problems == ["a: fails (OSError: gone)"]


def test_a_setting_is_a_line_only_when_it_is_refused() -> None:
    def refuse(number: int) -> None:
        if number > 1:
            raise InvalidInputError(f"{number} is too many")

    assert list(setting("slots", "slots=1", refuse, 1)) == []
    (found,) = setting("slots", "slots=1", refuse, 2)
    assert (found.name, found.text, found.stops) == ("slots", "2 is too many; set slots=1", True)


def test_cards_are_told_with_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {0: ("Ada", (8, 9), 24), 1: ("Turing", (7, 5), 8)}

    def number(place: Any) -> int:
        return place if isinstance(place, int) else place.index or 0

    class Properties:
        def __init__(self, gib: int) -> None:
            self.total_memory = gib * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: cards[number(place)][0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: cards[number(place)][1])
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda place: Properties(cards[number(place)][2])
    )

    found = by_name(machine.cards(Settings()))
    formats = by_name(machine.formats(Settings()))

    assert {key: found["cuda:0"].value[key] for key in ("bytes", "bf16", "fp8")} == {
        "bytes": 24 * 2**30, "bf16": True, "fp8": True,
    }  # fmt: skip
    assert {key: found["cuda:1"].value[key] for key in ("bf16", "fp8")} == {"bf16": False, "fp8": False}
    assert found["auto"].value == "cuda"
    assert formats["fp8_linears"].value == ["row", "tensor"]


def test_a_mode_without_a_compiler_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Settings(device="cpu", compile="default", compile_decoder="default")
    monkeypatch.setenv("CXX", sys.executable)
    there = list(compiling.compiling(asked))
    monkeypatch.setenv("CXX", "no-such-compiler")

    found = list(compiling.compiling(asked))

    assert not any(finding.stops for finding in there)
    assert by_name(there)["compile"].value == ["off", "default", "max-autotune-no-cudagraphs"]
    assert by_name(found)["C++ compiler"].value is None
    stops = {finding.name: finding.text for finding in found if finding.stops}
    assert list(stops) == ["compile", "compile_decoder"]
    for name, text in stops.items():
        assert text.startswith(f"{name}=default needs a C++ compiler"), text
        assert text.endswith(f"; set {name}=off"), text


def test_too_many_threads_and_too_few_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.devices, "usable_cores", lambda: 2)
    monkeypatch.setattr(machine, "_open_files", lambda: 100)

    tight = by_name(machine.machine(Settings(threads=3, slots=10)))
    roomy = by_name(machine.machine(Settings(threads=2, slots=9)))

    assert "set threads=0" in tight["cores"].text
    assert "ulimit -n 104" in tight["open files"].text
    assert "set threads" not in roomy["cores"].text
    assert "ulimit" not in roomy["open files"].text


@pytest.mark.parametrize(
    ("factor", "slots", "says"),
    [
        (0.5, 1, "none in real time: one alone gets 17.5 pictures a second of 35"),
        (2.9, 2, "2 at 35 pictures a second each, before the server's own work"),
        (2.9, 3, "2 at 35 pictures a second each, before the server's own work; slots=3 is more than that"),
    ],
)
def test_players_follow_from_the_speed(factor: float, slots: int, says: str) -> None:
    assert serving._players(factor, slots) == says


def test_an_encoder_that_holds_pictures_back_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(h264.ENCODERS, "libx264", {"preset": "veryslow", "rc-lookahead": "20"})

    found = by_name(stream.encoders(Settings(), (96, 160)))

    assert found["libx264"].value is None
    assert "gave 0 units for one picture" in found["libx264"].text
    assert found["h264_encoder"].stops


def test_other_machines_need_https() -> None:
    assert "https" not in by_name(stream.browser(Settings(), (96, 160)))
    assert "https" in by_name(stream.browser(Settings(host="0.0.0.0"), (96, 160)))
