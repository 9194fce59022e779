"""A moved value is another allowed one, if there is any."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scamp_service.search.moves import moved, nearest
from scamp_service.study.spaces.space import Categorical, Ordinal, Range

CASES: list[tuple[Any, Any]] = [
    (Categorical(choice=["a", "b", None]), "a"),
    (Ordinal(ordinal=[8, 16, 32, 64]), 64),
    (Range(low=1, high=9), 9),
    (Range(low=0.0, high=1.0), 1.0),
    (Range(low=0.0, high=1.0, step=0.25), 0.25),
    (Range(low=1e-4, high=1e-1, log=True), 1e-4),
]


@pytest.mark.parametrize(("dimension", "value"), CASES, ids=[type(dimension).__name__ for dimension, _ in CASES])
def test_a_moved_value_is_another_one_that_is_allowed(dimension: Any, value: Any) -> None:
    values = [moved(dimension, value, random.Random(seed)) for seed in range(200)]
    assert not any(dimension.why_not(value) for value in values)
    assert sum(other == value for other in values) <= 30  # a step out of a range ends at its edge


def test_the_only_value_stays() -> None:
    only: list[Any] = [Categorical(choice=["a"]), Ordinal(ordinal=["a"]), Range(low=3, high=3)]
    assert [
        moved(dimension, value, random.Random(0)) for dimension, value in zip(only, ("a", "a", 3), strict=True)
    ] == [
        "a",
        "a",
        3,
    ]


def test_the_nearest_value_of_a_range() -> None:
    assert [nearest(Range(low=8, high=60, step=8), value) for value in (1, 13, 100)] == [8, 16, 56]
    assert nearest(Range(low=1, high=9), 2.6) == 3 and nearest(Range(low=0.0, high=1.0), 0.3) == 0.3
    assert nearest(Range(low=0.0, high=1.0, step=0.25), 0.6) == 0.5
