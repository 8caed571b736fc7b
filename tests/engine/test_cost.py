"""What work costs: measured, and guessed only from its own kind."""

from __future__ import annotations

import itertools

import pytest

from worldloop.engine.contract import Work
from worldloop.engine.cost import CostModel


def test_nothing_seen_is_nothing_known() -> None:
    model = CostModel()
    model.seen(Work("denoise", (4,), 100.0), 1.0)

    assert model.seconds([Work("denoise", (4,), 200.0)]) == pytest.approx(2.0)
    assert model.seconds([Work("denoise", (4,), 200.0), Work("decode", (4,))]) is None
    assert model.seconds([]) == 0.0


def test_work_without_units_counts_as_one() -> None:
    model = CostModel()
    model.seen(Work("decode", (4,)), 0.25)

    assert model.seconds([Work("decode", (4,))] * 3) == pytest.approx(0.75)


def test_another_shape_borrows_the_slowest_of_its_op() -> None:
    model = CostModel()
    model.seen(Work("denoise", (4,), 10.0), 1.0)
    model.seen(Work("denoise", (8,), 10.0), 3.0)

    assert model.seconds([Work("denoise", (6,), 20.0)]) == pytest.approx(6.0)


def test_the_average_follows_a_change_and_shrugs_off_one_outlier() -> None:
    model, work = CostModel(), Work("denoise", (4,), 1.0)
    for _ in range(50):
        model.seen(work, 1.0)
    model.seen(work, 10.0)
    after_one = model.seconds([work])
    for _ in range(50):
        model.seen(work, 2.0)

    assert after_one == pytest.approx(1.9)
    assert model.seconds([work]) == pytest.approx(2.0, abs=0.05)


def test_what_is_seen_first_while_it_is_asked_disturbs_nothing() -> None:
    model, sizes = CostModel(), itertools.count(100)

    class Asked(str):
        """Compared with each kind that is known; another thread sees something new just then."""

        def __eq__(self, other: object) -> bool:
            model.seen(Work("decode", (next(sizes),)), 1.0)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    for size in (4, 8):
        model.seen(Work("denoise", (size,)), 3.0)

    assert model.seconds([Work(Asked("denoise"), (6,))]) == pytest.approx(3.0)
    assert next(sizes) > 101, "something new was seen meanwhile"
