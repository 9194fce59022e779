"""The values of a range."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from scamp_service.study.spaces.space import Categorical, Range


@pytest.mark.parametrize(
    ("dimension", "count", "last"),
    [
        (Range(low=1, high=10, step=3), 4, 10),
        (Range(low=1, high=9, step=3), 3, 7),
        (Range(low=0.0, high=0.3, step=0.1), 4, 0.3),
        (Range(low=0.1, high=0.95, step=0.2), 5, 0.9),
        (Range(low=5, high=5), 1, 5),
        (Range(low=0.5, high=0.5), 1, 0.5),
        (Range(low=1, high=3), 3, 3),
    ],
)
def test_a_stepped_range_counts_in_decimals_and_ends_at_or_below_high(
    dimension: Range, count: int, last: float
) -> None:
    assert dimension.num_values == count
    assert dimension.value(count - 1) == last
    assert type(dimension.value(0)) is type(dimension.low)
    assert all(dimension.why_not(dimension.value(index)) == "" for index in range(count))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-8e307, 8e307), (0, 2**53)])
def test_a_step_of_the_smallest_float_makes_too_many_values(low: float, high: float) -> None:
    with pytest.raises(ValidationError, match="which is too many; take a larger step"):
        Range(low=low, high=float(high), step=5e-324)


def test_a_value_far_finer_than_the_step_is_no_multiple_of_it() -> None:
    assert "not 0.0 plus a multiple of 0.25" in Range(low=0.0, high=1.0, step=0.25).why_not(5e-324)


def test_a_choice_tells_true_from_one() -> None:
    choices = Categorical(choice=[1, "a", 2.5])
    assert [bool(choices.why_not(value)) for value in (1, "a", 2.5, True, 2, "b")] == [False] * 3 + [True] * 3
