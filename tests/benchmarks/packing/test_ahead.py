"""Schedules that are found by looking ahead."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.packing.ahead import best_schedule, simulate
from placement.model import Shape
from tests.shapes import pareto

times = st.lists(st.floats(1.0, 20.0), min_size=1, max_size=2)


@settings(max_examples=25, deadline=None)
@given(st.lists(times, min_size=1, max_size=4), st.integers(2, 3))
def test_of_few_trials_the_best_order_and_shapes_are_found(drawn: list[list[float]], num_devices: int) -> None:
    tasks = [
        pareto(Shape(2**n, 1, seconds) for n, seconds in enumerate(seconds_of_widths)) for seconds_of_widths in drawn
    ]
    free = [0.0] * num_devices
    least = min(
        max(simulate(tasks, free, order, choices))
        for order in permutations(range(len(tasks)))
        for choices in product(*(range(len(shapes)) for shapes in tasks))
    )
    schedule = best_schedule(tasks, free, 500)
    assert schedule.makespan == pytest.approx(least, rel=0.03)
    assert schedule.makespan == max(simulate(tasks, free, schedule.order, schedule.choices))


def test_a_gang_starts_when_the_devices_that_are_free_first_are_all_free() -> None:
    tasks = [(Shape(1, 1, 5.0),), (Shape(2, 1, 3.0),), (Shape(1, 1, 1.0),)]
    assert simulate(tasks, [0.0, 0.0], (0, 1, 2), (0, 0, 0)) == [8.0, 9.0]
    assert simulate(tasks, [0.0, 2.0], (1, 0, 2), (0, 0, 0)) == [6.0, 10.0]
