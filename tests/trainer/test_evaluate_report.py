from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from worldloop.trainer.charts import Curve, contact, panel, sheet
from worldloop.trainer.report import Report, Row, training_curves


def report(value: float | None) -> Report:
    return Report(
        facts={"model": "x-3r"},
        rows=[
            Row(name="keys", value=value, count=1234, target=99.0),
            Row(name="drift", value=12.34, count=3, unit="dB"),
        ],
    )


@pytest.mark.parametrize(("value", "passed"), [(99.0, True), (98.99, False), (None, False)])
def test_a_target_is_reached_from_its_value_on_and_never_without_a_case(
    value: float | None, passed: bool
) -> None:
    assert report(value).passed is passed


def test_too_few_cases_are_no_pass() -> None:
    few, enough = (Row(name="stops", value=100.0, count=count, target=98.0, needed=50) for count in (49, 50))

    assert few.passed is False
    assert "**too few**" in few.cells()
    assert enough.passed is True


def test_the_table_is_markdown_with_a_row_a_measure() -> None:
    lines = report(98.5).table().splitlines()

    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| keys | 98.50 % | 1,234 | ≥ 99 % | **missed** |  |"
    assert lines[3] == "| drift | 12.3 dB | 3 |  |  |  |"


def test_an_unknown_row_lists_the_rows() -> None:
    with pytest.raises(KeyError, match="have \\['keys', 'drift'\\]"):
        report(1.0).row("other")


def curve(values: list[float | None], **changes: object) -> Curve:
    return Curve(title="t", x_label="x", x=[1.0, 10.0, 100.0], series={"s": values}, **changes)  # type: ignore[arg-type]


def pixels(image: object, colour: tuple[int, int, int]) -> np.ndarray:
    return np.argwhere((np.asarray(image)[50:300, 71:] == colour).all(-1))


def test_a_line_rises_with_its_values_and_a_gap_has_no_line() -> None:
    blue = (0x16, 0x68, 0xB8)
    rising = pixels(panel(curve([0.0, 50.0, 100.0], y_range=(0.0, 100.0))), blue)
    left, right = rising[rising[:, 1].argmin()], rising[rising[:, 1].argmax()]

    assert left[0] > right[0] + 200
    assert len(pixels(panel(curve([None, None, None])), blue)) == 0


def test_equal_values_zero_width_and_no_values_can_be_drawn() -> None:
    one = Curve(title="t", x_label="x", x=[3.0], series={"s": [2.0]}, target=2.0)
    none = Curve(title="t", x_label="x", x=[], series={})

    assert sheet([one, none, curve([1.0, 1.0, 1.0], log_x=True)]).size == (1280, 800)


def test_a_contact_sheet_holds_every_picture_unchanged() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 96, 160, 3), dtype=np.uint8)

    page = np.asarray(contact([("mixed 1", pictures)], ["0", "600"]))

    np.testing.assert_array_equal(page[26 : 26 + 96, 84 : 84 + 160], pictures[0])
    np.testing.assert_array_equal(page[26 : 26 + 96, 84 + 166 : 84 + 166 + 160], pictures[1])


def test_training_curves_average_the_loss_and_keep_each_timestep(tmp_path: Path) -> None:
    rows = [f"{step},0,loss,{step}" for step in range(1, 41)] + [
        "25,0,t999,0.5",
        "40,0,t999,0.25",
        "40,0,t548,0.1",
    ]
    (tmp_path / "world.csv").write_text("step,time,name,value\n" + "\n".join(rows) + "\n")

    loss, validation = training_curves(tmp_path / "world.csv")

    assert loss.series == {"loss": [10.5, 30.5]}
    assert validation.x == [25, 40]
    assert validation.series == {"t999": [0.5, 0.25], "t548": [None, 0.1]}
