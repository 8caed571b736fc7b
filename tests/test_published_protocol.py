"""The page that compares the published protocol with ours is whole, and every row has a proof that exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from worldloop.core.settings import Settings
from worldloop.host import WorldHost
from worldloop.session.host import GameOptions
from worldloop.testing import tiny_world
from worldloop.wire.world import ModelsAnswer, OccupancyAnswer, StartAnswer, StatusAnswer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "published_protocol.md").read_text()
HEADER = "| published | ours | verdict | proof |"
PROOF = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")
NAME = re.compile(r"`([^`]+)`")
ADDITION = "—"

ROUTES = ("/models", "/status", "/z0/{user_id}", "/switch", "/create-game/{user_id}", "/ws/{user_id}")
FORM = (
    "z0_image",
    "model_id",
    "nfe",
    "nfe_mode",
    "sphere",
    "reprefill_every",
    "focus_mask",
    "ticket",
    "user_id",
)
MESSAGES = (
    "type", "pressed", "w", "a", "s", "d", "left", "right", "space", "shift", "fps_embedding", "stream_fps",
    "schemaVersion", '{"type":"log","tag","msg","ts"}', '{"type":"session_over","message","limit_s"}',
)  # fmt: skip
CODES = ("200", "400", "401", "412", "422", "423", "1000", "1008", "1011", "1013")
CHECKPOINT = (
    "format", "timesteps", "timestep_shift", "cache_mode", "focus_region", "jump_sprint", "sink_gap_max", "num_layers",
    "dim", "ffn_dim", "num_heads",
)  # fmt: skip
VARIABLES = (
    "LUCID_DEMO_DEFAULT_MODEL", "LUCID_DEMO_TICKET_SECRET", "LUCID_DEMO_SERVER_ID", "SUMMARY_PROFILE",
    "SUMMARY_PROFILE_EXIT", "SUMMARY_FP8",
)  # fmt: skip
CONFIG = (
    "checkpoints_dir", "default_model_id", "sae_ckpt", "sae_diag_gauss_stats_path", "sae_diag_gauss_rest_stats_path",
    "generator_dtype_mode", "rope_table_len", "serve_window_frames", "serve_recency", "recency_enabled",
    "reprefill_every", "noise_seed", "fps_embedding", "use_compiled_generator_in_steady_state",
    "compile_generator_mode", "compile_dynamic", "compile_sae_decode", "compile_sae_decode_mode", "sae_decoder_dtype",
    "use_compiled_sae_in_steady_state", "dynamo_recompile_limit", "warmup_compile_at_startup",
    "warmup_compiled_frames", "profile_steady_frames", "fp8_linears", "cuda_device", "encode_fps", "stream_fps",
    "stream_h264_encoder", "stream_h264_bitrate", "stream_h264_gop", "frames_low_watermark", "enable_ws_log_streaming",
    "host", "port", "ws_session_limit_s", "ws_session_limit_message", "cors_allow_origins",
)  # fmt: skip
"""Names of the published server's source."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: its line, and its four cells."""

    line: int
    published: str
    ours: str
    verdict: str
    proof: str


def rows(page: str) -> Iterator[Row]:
    """Every row of every comparison."""
    inside = False
    for number, line in enumerate(page.splitlines(), 1):
        if line == HEADER:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("| ---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            # A row of another length has no proof.
            published, ours, verdict, proof = cells if len(cells) == 4 else [*(*cells, "", "")[:3], ""]
            yield Row(line=number, published=published, ours=ours, verdict=verdict, proof=proof)


@cache
def existing_tests() -> set[str]:
    """`tests/...py::test_name` of every test function of this repository, read and not imported."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def problems(page: str, tests: set[str]) -> list[str]:
    """What is wrong with the rows of a page."""
    found = []
    for row in rows(page):
        if not row.published or not row.ours:
            found.append(f"line {row.line}: an empty cell")
        kind, colon, reason = row.verdict.partition(":")
        if kind not in ("same", "better", "other"):
            found.append(f"line {row.line}: no verdict: {row.verdict!r}")
        elif kind != "same" and not (colon and reason.strip()):
            found.append(f"line {row.line}: {kind} without a reason")
        elif row.published == ADDITION and kind == "same":
            found.append(f"line {row.line}: an addition cannot be the same")
        proofs = PROOF.findall(row.proof)
        if not proofs or PROOF.sub("", row.proof).replace("<br>", "").strip():
            found.append(f"line {row.line}: no proof, or something that is none: {row.proof!r}")
        found += [f"line {row.line}: no such test: {proof}" for proof in proofs if proof not in tests]
    return found


def unnamed(page: str, names: set[str] | tuple[str, ...], *, ours: bool) -> list[str]:
    """Those of `names` that no row names, in its column of ours or of the published server."""
    cells = [row.ours if ours else row.published for row in rows(page) if ours or row.published != ADDITION]
    named = {name for cell in cells for name in NAME.findall(cell)}
    return sorted(set(names) - named)


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of the leaves of nested objects."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Any]:
    """`describe()` of a world that has every field, and the `focus` object of an upload."""
    folder = tiny_world(
        tmp_path_factory.mktemp("worlds"), name="tiny-rec-3r", summary_window_frames=16, jump_sprint=True
    )
    with closing(WorldHost.open(str(folder), threads=1)) as host:
        return {**host.describe(), "answer": host.configure(GameOptions())}


def test_every_row_has_a_verdict_and_a_proof_that_exists() -> None:
    assert len(list(rows(PAGE))) > 150
    assert problems(PAGE, existing_tests()) == []


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("| `x` | `x` | same | `tests/nowhere/test_x.py::test_x` |", "no such test"),
        ("| `x` | `x` | same | `tests/test_published_protocol.py::test_made_up` |", "no such test"),
        ("| `x` | `x` | same | |", "no proof"),
        ("| `x` | `x` | same | looked at it |", "no proof"),
        ("| `x` | `x` | | `GOOD` |", "no verdict"),
        ("| `x` | `x` | fine | `GOOD` |", "no verdict"),
        ("| `x` | `x` | better | `GOOD` |", "better without a reason"),
        ("| `x` | `x` | other: | `GOOD` |", "other without a reason"),
        ("| `x` | | same | `GOOD` |", "an empty cell"),
        ("| — | `x` | same | `GOOD` |", "an addition cannot be the same"),
        ("| `x` | `x` | same |", "no proof"),
        ("| `x` | `x` | same | `GOOD` | more |", "no proof"),
    ],
)
def test_control_a_row_that_is_not_whole_is_found(row: str, why: str) -> None:
    good = "tests/test_published_protocol.py::test_every_row_has_a_verdict_and_a_proof_that_exists"
    page = (
        f"{HEADER}\n| --- | --- | --- | --- |\n| `w` | `w` | same | `{good}` |\n{row.replace('GOOD', good)}\n"
    )
    (found,) = problems(page, existing_tests())
    assert found.startswith("line 4: ")
    assert why in found


def test_every_setting_has_a_row() -> None:
    assert unnamed(PAGE, set(Settings.model_fields), ours=True) == []


def test_every_field_of_an_answer_has_a_row(told: dict[str, Any]) -> None:
    details = next(iter(told["details"].values()))
    fields = {
        *paths(
            {"details": details, **{state: told[state] for state in ("nfe", "sphere", "reprefill", "focus")}}
        ),
        *paths({"focus": told["answer"]}),
        *(name for name in ModelsAnswer.model_fields if name not in told),
        *(name for name in StartAnswer.model_fields if name not in told),
        *(name for name in StatusAnswer.model_fields if name != "occupancy"),
        *(f"occupancy.{name}" for name in OccupancyAnswer.model_fields),
    }
    assert len(fields) > 60
    assert unnamed(PAGE, fields, ours=True) == []


@pytest.mark.parametrize("names", [FORM, MESSAGES, CHECKPOINT, VARIABLES, CONFIG])
def test_every_published_name_has_a_row(names: tuple[str, ...]) -> None:
    assert unnamed(PAGE, names, ours=False) == []


def test_every_published_route_and_code_has_a_row() -> None:
    published = [row.published for row in rows(PAGE) if row.published != ADDITION]
    routes = {word.partition(" ")[2] for cell in published for word in NAME.findall(cell) if " /" in word}
    assert set(ROUTES) <= routes
    assert set(CODES) <= {cell.split()[0].strip(":,") for cell in published}


@pytest.mark.parametrize("gone", ["`slots`", "`resume_s`", "`serve_recency`"])
def test_control_a_setting_without_a_row_is_found(gone: str) -> None:
    page = PAGE.replace(gone, "`x`")
    assert unnamed(page, set(Settings.model_fields), ours=True) == [gone.strip("`")]


def test_control_a_name_in_the_other_column_does_not_count() -> None:
    page = f"{HEADER}\n| --- | --- | --- | --- |\n| `port` | none | same | |\n| — | `host` | same | |\n"
    assert unnamed(page, ("port", "host"), ours=True) == ["port"]
    assert unnamed(page, ("port", "host"), ours=False) == ["host"]
