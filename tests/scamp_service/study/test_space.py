"""The values of a range."""

from __future__ import annotations

import pytest

from scamp_service.study.space import Range


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
