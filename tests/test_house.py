"""The house rules that no linter knows: versions agree, importing is light, files stay small, layers hold."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import worldloop

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
WRITTEN = [
    path
    for folder in ("src", "tests", "docs", "examples", "bench", ".ci")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in {"", ".py", ".md", ".js", ".html", ".css", ".toml"}
] + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
# Put together here so that this file passes its own rule.
FORBIDDEN = ["/ro" "ot/", "/ho" "me/", "/wo" "rk/", "TO" "DO", "FIX" "ME"]  # fmt: skip
PRINTERS = {"cli.py", "__main__.py"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest is not None
    assert worldloop.__version__ == project == newest.group(1)


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "import worldloop\n"
        "spent = time.process_time() - start\n"
        "heavy = {'torch', 'numpy', 'av', 'PIL', 'fastapi', 'pydantic'} & set(sys.modules)\n"
        "print(spent, sorted(heavy))\n"
    )

    answer = run(sys.executable, "-c", code)

    spent, heavy = answer.stdout.strip().split(" ", 1)
    assert heavy == "[]"
    assert float(spent) < 0.2


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_what_it_is_and_stays_short(path: Path) -> None:
    text = path.read_text()

    assert ast.get_docstring(ast.parse(text)), "no module docstring"
    assert text.count("\n") <= 500


def test_library_code_does_not_print() -> None:
    printing = [
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        if path.name not in PRINTERS and "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]

    assert printing == []


def test_no_file_holds_forbidden_words() -> None:
    found = [
        f"{relative(path)}: {word}"
        for path in WRITTEN
        if "__pycache__" not in path.parts
        for word in FORBIDDEN
        if word in path.read_text()
    ]

    assert found == []


def test_the_licence_is_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()


LINT_IMPORTS = str(Path(sys.executable).with_name("lint-imports"))

BREACHES = {
    "layers": ("core/planted.py", "import worldloop.wire"),
    "no cycles anywhere": ("core/planted/__init__.py", "import worldloop.core.types"),
    "the serving path is torch-free and model-free": ("codec/planted.py", "import torch"),
    "the trainer never touches serving": ("trainer/planted.py", "import worldloop.wire"),
    "one owner for the web framework": ("models/planted.py", "import fastapi"),
}


def test_every_contract_of_the_layers_is_kept() -> None:
    answer = run(LINT_IMPORTS, "--no-cache")

    assert answer.returncode == 0, answer.stdout
    assert " 0 broken" in answer.stdout


def test_every_contract_has_a_planted_breach() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

    assert {contract["name"] for contract in contracts} == set(BREACHES)


@pytest.mark.parametrize("contract", BREACHES)
def test_a_planted_breach_breaks_its_contract(contract: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    place, line = BREACHES[contract]
    planted = tmp_path / "src" / "worldloop" / place
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(f"{line}\n")
    if contract == "no cycles anywhere":
        types = tmp_path / "src/worldloop/core/types.py"
        types.write_text(types.read_text() + "\nimport worldloop.core.planted\n")

    answer = run(
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command;"
        "lint_imports_command(['--no-cache'])",
        cwd=tmp_path,
    )

    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert re.search(rf"^{re.escape(contract)}.* BROKEN$", answer.stdout, re.MULTILINE)
    assert ".planted" in answer.stdout, "broken, but not by what was planted"
