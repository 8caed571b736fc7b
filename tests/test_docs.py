"""README and docs run: python blocks are executed in order, commands and links are checked.

A block is left out only by `<!-- not run: REASON -->` on the line above its fence. Blocks of one file share
their names, as a reader who types them in would have it, and run in an empty folder.
"""

from __future__ import annotations

import importlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: *(.*?) *-->")
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: its language, text, first line's number, and why it is not run (None: it is)."""

    language: str
    text: str
    line: int
    not_run: str | None


def blocks(page: str) -> list[Block]:
    found = []
    for fence in FENCE.finditer(page):
        before = page[: fence.start()].rstrip("\n").rsplit("\n", 1)[-1].strip()
        mark = NOT_RUN.fullmatch(before)
        indent = len(fence.group(1))
        found.append(
            Block(
                language=fence.group(2),
                text="".join(line[indent:] or "\n" for line in fence.group(3).splitlines(keepends=True)),
                line=page.count("\n", 0, fence.start()) + 2,
                not_run=mark.group(1) if mark else None,
            )
        )
    return found


def run_python(page: str, name: str) -> int:
    """Execute a page's python blocks in order; returns how many ran."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks(page):
        if block.language == "python" and block.not_run is None:
            # Blank lines in front, so that a traceback names the page's own line.
            exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), namespace)
            count += 1
    return count


def commands(page: str, program: str) -> list[tuple[int, list[str]]]:
    """(line, words) of each call of a program in sh blocks; `\\` joins lines, `$ ` may stand before."""
    calls = []
    for block in blocks(page):
        if block.language not in {"sh", "bash", "shell", "console"} or block.not_run is not None:
            continue
        joined = re.sub(r"\\\n *", " ", block.text)
        for offset, line in enumerate(joined.splitlines()):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and words[0] == program:
                calls.append((block.line + offset, words[1:]))
    return calls


def unknown_words(group: Any, words: list[str]) -> list[str]:
    """Sub-commands and options in a call that the command line does not have."""
    command = group
    options: set[str] = {"--help"}
    unknown = []
    for word in words:
        if word in {"|", ">", "&", "&&", ";"}:
            break
        options |= {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        children = getattr(command, "commands", None)
        if word.startswith("-"):
            if word.split("=", 1)[0] not in options:
                unknown.append(word)
        elif children is not None:
            if word not in children:
                return [*unknown, word]
            command = children[word]
    return unknown


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    run_python(path.read_text(), str(path))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_links_and_marks_are_real(path: Path) -> None:
    page = path.read_text()
    problems = [f"line {block.line}: no reason given" for block in blocks(page) if block.not_run == ""]

    if calls := commands(page, "worldloop"):
        group = typer.main.get_command(importlib.import_module("worldloop.cli").app)
        problems += [
            f"line {line}: worldloop {word}" for line, words in calls for word in unknown_words(group, words)
        ]

    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    problems += [
        f"line {line}: make {word}"
        for line, words in commands(page, "make")
        for word in words
        if "=" not in word and not word.startswith("-") and word not in targets
    ]
    prose = FENCE.sub("", page)
    problems += [
        f"link to {target}"
        for target in LINK.findall(prose)
        if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists()
    ]

    assert problems == []


PAGE = """Words.

```python
first = 1
```

<!-- not run: needs a card -->
```python
raise SystemExit
```

- in a list

  ```python
  assert first == EXPECTED
  ```

```sh
$ worldloop play --port 9000 \\
    --slots 2   # two players
make test
```
"""


def test_blocks_share_names_and_a_marked_block_is_left_out() -> None:
    assert run_python(PAGE.replace("EXPECTED", "1"), "page.md") == 2


def test_a_block_that_fails_is_reported_at_its_line() -> None:
    with pytest.raises(AssertionError) as failure:
        run_python(PAGE.replace("EXPECTED", "2"), "page.md")

    assert failure.traceback[-1].lineno + 1 == PAGE[: PAGE.index("assert")].count("\n") + 1


def test_commands_are_found_across_joined_lines() -> None:
    assert commands(PAGE, "worldloop") == [(19, ["play", "--port", "9000", "--slots", "2"])]
    assert commands(PAGE, "make") == [(20, ["test"])]


def test_an_unknown_subcommand_or_option_is_found() -> None:
    app = typer.Typer()

    @app.command()
    def play(port: int = 1) -> None: ...

    @app.command()
    def serve() -> None: ...

    group = typer.main.get_command(app)
    assert unknown_words(group, ["play", "--port", "9000"]) == []
    assert unknown_words(group, ["dance"]) == ["dance"]
    assert unknown_words(group, ["play", "--slots", "2"]) == ["--slots"]
