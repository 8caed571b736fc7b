"""The device that the pieces run on, and the suite's last line: what was counted while it ran."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest
import torch

COUNTS: Counter[tuple[str, str]] = Counter()
ENTRIES: set[str] = set()


@pytest.fixture(scope="session")
def device(one_thread: None) -> torch.device:
    """`CONTRACT_DEVICE`, the CPU unless it is set."""
    return torch.device(os.environ.get("CONTRACT_DEVICE", "cpu"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts each gate and each control by how its test ended."""
    for key, value in report.user_properties:
        if report.when != "call" or key not in ("entry", "control"):
            continue
        ENTRIES.update({str(value)} if key == "entry" else set())
        COUNTS[key, report.outcome] += 1


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Writes the last line, after pytest's own."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if COUNTS and reporter is not None:
        reporter.write_line(last_line(COUNTS, len(ENTRIES)))


def last_line(counts: Counter[tuple[str, str]], entries: int) -> str:
    """What ran, in one line."""
    line = f"contract: {entries} entries, {counts['entry', 'passed']} gates passed, {counts['entry', 'failed']} failed"
    return (
        f"{line}; {counts['control', 'passed']} controls red as planted, {counts['control', 'failed']} missed"
    )
