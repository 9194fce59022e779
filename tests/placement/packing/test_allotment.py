"""Trials get as few ranks as let all of them end by the common target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.model import Cluster, Device, Queued, Shape
from placement.packing.allotment import CLEARLY_MORE, allot, least_target
from placement.packing.ledger import Ledger
from tests.shapes import pareto

LINEAR = (Shape(1, 10, 8.0), Shape(2, 10, 4.0), Shape(4, 10, 2.0))


def ledger(num_devices: int) -> Ledger:
    return Ledger(Cluster(tuple(Device(f"d{n}", "n0", n, "v", 96) for n in range(num_devices))), 1)


def queue(num: int) -> list[Queued]:
    return [Queued(str(n), LINEAR) for n in range(num)]


def test_few_trials_get_many_devices_and_many_trials_one_each() -> None:
    assert allot(queue(1), ledger(4), {}).first_choices == {"0": 2}
    assert set(allot(queue(2), ledger(4), {}).first_choices.values()) == {1}
    assert set(allot(queue(9), ledger(4), {}).first_choices.values()) == {0}


def test_work_that_is_left_to_running_gangs_counts() -> None:
    busy = ledger(4)
    busy.place(queue(1)[0].gang(2), ["d0", "d1", "d2", "d3"])
    assert allot([Queued("new", LINEAR)], busy, {"0": 2.0}).seconds == pytest.approx(4.0)
    assert allot([Queued("new", LINEAR)], busy, {"0": 20.0}).first_choices == {"new": 0}


def test_a_shape_that_the_cluster_can_never_take_is_not_wanted() -> None:
    assert allot(queue(1), ledger(3), {}).first_choices == {"0": 1}
    assert allot([Queued("large", (Shape(1, 97, 9.0), Shape(2, 50, 8.0)))], ledger(3), {}).first_choices == {"large": 1}


def test_where_seconds_are_not_known_the_narrowest_shape_is_wanted() -> None:
    assert allot([Queued("a", (Shape(1, 10),))], ledger(4), {}).first_choices == {"a": 0}


times = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(times, min_size=1, max_size=6), st.integers(1, 8), st.floats(0, 50.0))
def test_the_target_is_the_least_that_leaves_no_trial_late_and_no_device_short(
    drawn: list[list[float]], num_devices: int, busy: float
) -> None:
    trials = [
        pareto(Shape(2**n, 1, seconds) for n, seconds in enumerate(seconds_of_widths)) for seconds_of_widths in drawn
    ]

    def is_enough(target: float) -> bool:
        area = busy
        for shapes in trials:
            in_time = [shape for shape in shapes if (shape.seconds or 0.0) <= target]
            if not in_time:
                return False
            area += min(shape.device_seconds or 0.0 for shape in in_time)
        return area <= num_devices * target * (1 + 1e-9)

    target = least_target(trials, num_devices, busy)
    assert is_enough(target * (1 + 1e-9))
    assert not is_enough(target / CLEARLY_MORE * 0.999)


def test_of_shapes_that_end_in_time_the_one_with_the_fewest_device_seconds_is_wanted() -> None:
    """Where two ranks are more than twice as fast, as without recompute, nobody wants one."""
    shapes = (Shape(1, 10, 9.0), Shape(2, 10, 4.0), Shape(4, 10, 3.0))
    assert allot([Queued(str(n), shapes) for n in range(9)], ledger(4), {}).first_choices == {
        str(n): 1 for n in range(9)
    }


def test_a_few_percent_of_device_seconds_do_not_make_the_others_wait_for_a_wide_gang() -> None:
    """On two cores four ranks take as many device-seconds as one, and predictions differ by chance."""
    shapes = (Shape(1, 10, 8.2), Shape(4, 10, 2.0))
    assert set(allot([Queued(str(n), shapes) for n in range(4)], ledger(4), {}).first_choices.values()) == {0}
