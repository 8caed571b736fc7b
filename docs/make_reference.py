"""Writes the reference pages that are made from code: settings, command line, errors.

Run `python docs/make_reference.py` after changing any of them; a test compares the pages with what this makes.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from worldloop import __all__ as public_names
from worldloop.cli import app
from worldloop.core import errors
from worldloop.core.settings import ENV_PREFIX, Settings

FOLDER = Path(__file__).parent / "reference"


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {"settings.md": settings_page(), "cli.md": cli_page(), "errors.md": errors_page()}


def settings_page() -> str:
    """One row a setting."""
    rows = [
        "# Settings",
        "",
        "Made from the code by `python docs/make_reference.py`. Sources, weakest first: the default, a TOML file",
        f"(`--config` or `WORLDLOOP_CONFIG`), the environment (`{ENV_PREFIX}<NAME>`), flags (`--set NAME=VALUE`).",
        "Unknown names are refused.",
        "",
        "| setting | default | meaning |",
        "| --- | --- | --- |",
    ]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{name}` | `{_plain(field.default)}` | {field.description} |")
    return "\n".join(rows) + "\n"


def cli_page() -> str:
    """The help text of every command."""
    runner = CliRunner()
    parts = ["# Command line", "", "Made from the code by `python docs/make_reference.py`.", ""]
    names = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for name in names:
        text = runner.invoke(
            app, [name, "--help"], env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
        ).stdout
        lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        parts += [f"## worldloop {name}", "", "```text", lines, "```", ""]
    return "\n".join(parts)


def errors_page() -> str:
    """The exception tree, and what each class becomes on the wire."""
    rows = [
        "# Errors",
        "",
        "Made from the code by `python docs/make_reference.py`. HTTP answers carry the message as `detail`; 423 is",
        "plain text.",
        "",
        "| class | meaning | HTTP | WebSocket close | exit code |",
        "| --- | --- | --- | --- | --- |",
    ]
    classes = [
        c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.WorldloopError)
    ]
    for each in classes:
        public = "" if each.__name__ in public_names else " (internal)"
        meaning = (inspect.getdoc(each) or "").splitlines()[0]
        codes = f"{each.http_status} | {each.close_code} | {each.exit_code}"
        rows.append(f"| `{each.__name__}`{public} | {meaning} | {codes} |")
    return "\n".join(rows) + "\n"


def _plain(value: Any) -> str:
    return "none" if value is None else "empty" if value == () else str(value)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text)
