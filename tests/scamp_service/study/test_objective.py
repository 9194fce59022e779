"""Which of two values is better, in one place for all that compare trials."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scamp.shown import shown_metric
from scamp_service.study.objective import Objective

LARGE, SMALL = Objective(metric="m"), Objective(metric="m", direction="minimize")


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_maximizing_prefers_the_larger_value_and_minimizing_the_smaller(value: float, other: float) -> None:
    assert LARGE.is_better(value, other) == (value > other)
    assert SMALL.is_better(value, other) == (value < other)


@given(st.lists(st.floats(allow_nan=False)))
def test_the_best_value_comes_first(values: list[float]) -> None:
    assert sorted(values, key=LARGE.key) == sorted(values, reverse=True)
    assert sorted(values, key=SMALL.key) == sorted(values)


@pytest.mark.parametrize("objective", [LARGE, SMALL])
def test_nan_is_never_better(objective: Objective) -> None:
    assert not objective.is_better(math.nan, 0.0) and not objective.is_better(0.0, math.nan)


def test_the_objective_of_a_stored_study_is_not_checked_again() -> None:
    assert Objective.of_spec({"objective": {"metric": "m", "direction": "minimize"}}) == SMALL
    assert Objective.of_spec({"objective": {"metric": "\x1b", "direction": "maximize"}}).prefers_large


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.0000"), (0.97, "0.9700"), (-12.34567, "-12.3457"), (3.904e-09, "3.904e-09"), (-1.5e-4, "-0.00015"),
     (98765.4321, "98765"), (2.5e12, "2.5e+12"), (math.inf, "inf"), (math.nan, "nan")],
)  # fmt: skip
def test_a_value_of_any_size_is_shown_with_enough_digits(value: float, shown: str) -> None:
    assert shown_metric("loss", value) == shown


def test_a_predicted_count_has_no_decimals() -> None:
    assert shown_metric("predicted.parameters", 1234567.0) == "1,234,567"
    assert shown_metric("predicted.step_seconds", 0.25) == "0.2500"
