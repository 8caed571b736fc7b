"""The report card of a world: rows with targets, curves, dream strips, and the files they are written to.

    table.md   curves.png   contact.png   eval.json   (and training.png when the training curves are given)

Owns the report's form. Does not own the numbers (`evaluate`) or the drawing (`charts`). Called by `evaluate` and the
command line.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldloop.trainer import charts
from worldloop.trainer.charts import Curve

_SMOOTH = 20
"""Training steps that a point of a training curve averages over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measure.

    Attributes:
        name: what is measured.
        value: the number, or None when there was no case to judge.
        unit: such as "%" or "dB".
        count: cases behind the number.
        target: least value that passes, or None for a number that is only reported.
        needed: least count of cases that can pass; fewer show too little.
        note: what else the reader must know.
    """

    name: str
    value: float | None
    unit: str = "%"
    count: int
    target: float | None = None
    needed: int = 1
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """None without a target. Too few cases to judge is no pass."""
        if self.target is None:
            return None
        return self.value is not None and self.count >= self.needed and self.value >= self.target

    def cells(self) -> tuple[str, ...]:
        """Name, value, n, target, verdict and note, as text."""
        missed = "**missed**" if self.count >= self.needed else "**too few**"
        verdict = {None: "", True: "pass", False: missed}[self.passed]
        target = "" if self.target is None else f"≥ {self.target:g} {self.unit}"
        return self.name, _number(self.value, self.unit), f"{self.count:,}", target, verdict, self.note


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """One dream as a row of pictures: its label, uint8 `[columns, H, W, 3]`, and the latent of each."""

    label: str
    pictures: NDArray[np.uint8]
    latents: list[int]


@dataclass(kw_only=True)
class Report:
    """Everything that an evaluation found.

    Attributes:
        facts: what was measured, and on what: model, training step, machine, sizes, seconds.
        rows, curves: in the order of the table and of the sheet.
        strips: pictures for the contact sheet.
        columns: what the numbers above the strips are.
    """

    facts: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    columns: str = "latent"

    @property
    def passed(self) -> bool:
        """Whether every row with a target reaches it."""
        return all(row.passed is not False for row in self.rows)

    def row(self, name: str) -> Row:
        """The row of that name; KeyError lists the names."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; have {[row.name for row in self.rows]}")

    def table(self) -> str:
        """Markdown, one row a measure."""
        head = ("measure", "value", "n", "target", "", "note")
        rows = [head, ("---", "---:", "---:", "---", "---", "---"), *(row.cells() for row in self.rows)]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)

    def to_dict(self) -> dict[str, Any]:
        """Numbers only, ready for JSON."""
        rows = [{**asdict(row), "passed": row.passed} for row in self.rows]
        return {
            "facts": self.facts,
            "passed": self.passed,
            "rows": rows,
            "curves": [asdict(curve) for curve in self.curves],
        }


def write_report(report: Report, folder: Path, *, training: Path | None = None) -> None:
    """Write the report's files into `folder`, which is made when missing.

    Args:
        report: what to write.
        folder: where.
        training: a `world.csv` of the training run; its curves become `training.png`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval.json").write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    (folder / "table.md").write_text(_page(report))
    if report.curves:
        charts.sheet(report.curves).save(folder / "curves.png", optimize=True)
    strips = [(strip.label, strip.pictures) for strip in report.strips]
    if strips:
        heads = [f"{n}" for n in report.strips[0].latents]
        charts.contact(strips, heads, head=report.columns).save(folder / "contact.png", optimize=True)
    if training is not None:
        charts.sheet(training_curves(training)).save(folder / "training.png", optimize=True)


def training_curves(path: Path) -> list[Curve]:
    """The curves of a training run's CSV (`step,time,name,value`): the loss, and the validation at each timestep."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            points[line["name"]].append((float(line["step"]), float(line["value"])))
    curves = []
    if loss := points.pop("loss", []):
        groups = [loss[start : start + _SMOOTH] for start in range(0, len(loss), _SMOOTH)]
        mean = [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]
        curves.append(_training_curve("training loss", {"loss": mean}))
    if points:
        curves.append(_training_curve("validation error of x0", points))
    return curves


def _training_curve(title: str, points: Mapping[str, list[tuple[float, float]]]) -> Curve:
    steps = sorted({x for series in points.values() for x, _ in series})
    lines = {name: dict(series) for name, series in points.items()}
    return Curve(
        title=title,
        x_label="optimiser step",
        x=steps,
        series={name: [line.get(step) for step in steps] for name, line in lines.items()},
    )


def _page(report: Report) -> str:
    facts = "\n".join(f"- {name}: {value}" for name, value in report.facts.items())
    verdict = "every target is reached" if report.passed else "a target is missed"
    title = f"# Evaluation of {report.facts.get('model', 'a world')}: {verdict}"
    return f"{title}\n\nMade by `worldloop eval`.\n\n{facts}\n\n{report.table()}\n"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "no case"
    digits = 2 if unit == "%" else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}".rstrip()
