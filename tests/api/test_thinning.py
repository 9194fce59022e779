"""The points that a thinned line keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.thinning import improvements, lttb, merged_points, spread_evenly
from scamp_service.study.objective import Objective

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=300)
MOST = st.integers(2, 60)


@given(VALUES, MOST)
def test_a_line_keeps_its_ends_and_never_more_points_than_asked_for(values: list[float], most: int) -> None:
    kept = lttb(range(len(values)), values, most).tolist()
    assert len(kept) == min(most, len(values))
    assert kept[0] == 0 and kept[-1] == len(values) - 1


@given(VALUES, MOST)
def test_kept_points_are_points_of_the_line_in_their_order(values: list[float], most: int) -> None:
    kept = lttb(range(len(values)), values, most).tolist()
    assert kept == sorted(set(kept)) and set(kept) <= set(range(len(values)))


@given(st.integers(3, 60), st.data())
def test_a_spike_in_a_flat_line_survives(most: int, data: st.DataObject) -> None:
    num = data.draw(st.integers(most, 500))
    at, height = data.draw(st.integers(0, num - 1)), data.draw(st.sampled_from([-1e300, -1.0, 1e-3, 5.0, 1e300]))
    values = np.zeros(num)
    values[at] = height
    assert at in lttb(range(num), values, most)


def test_a_short_line_is_kept_whole() -> None:
    assert lttb([1, 2, 3], [5, 6, 7], 3).tolist() == [0, 1, 2]
    assert lttb([], [], 5).tolist() == []


def test_of_each_bucket_the_point_with_the_largest_triangle_is_kept() -> None:
    # Buckets of 4 points: (1-2), (3-4). From (0, 0) and the mean (3.5, 1), point 2 is farther off than point 1.
    assert lttb(range(6), [0, 0, 3, 2, 0, 0], 4).tolist() == [0, 2, 4, 5]


def test_one_end_alone_is_no_line() -> None:
    with pytest.raises(AssertionError, match="two ends"):
        lttb([1, 2], [1, 2], 1)


@given(st.integers(0, 1000), st.integers(1, 100))
def test_marks_are_spread_over_all(num: int, most: int) -> None:
    kept = spread_evenly(num, most).tolist()
    assert len(kept) == min(num, most) == len(set(kept))
    assert all(0 <= index < num for index in kept)


@given(st.lists(st.just(math.nan) | st.floats(allow_nan=False, allow_infinity=False), max_size=50), st.booleans())
def test_improvements_are_better_than_all_before(values: list[float], maximize: bool) -> None:
    improved = improvements(values, Objective(metric="m", direction="maximize" if maximize else "minimize")).tolist()
    numbers = [(index, value) for index, value in enumerate(values) if value == value]
    expected = [
        index
        for place, (index, value) in enumerate(numbers)
        if all(value > before if maximize else value < before for _, before in numbers[:place])
    ]
    assert improved == expected


def test_merged_indices_ascend_and_occur_once() -> None:
    assert merged_points([3, 1], np.array([1, 2])) == [1, 2, 3]
