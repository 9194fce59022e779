"""Ranks that share cores take as long as their sharing says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.devices.kind import DeviceKind, Figure
from estimators.pipelining.schedules import SCHEDULES
from placement.pipelining.shared_cores import seconds_on
from placement.pipelining.simulator import Simulation, StageCost, simulate_step


def host(cores: float) -> DeviceKind:
    return DeviceKind("a CPU", {}, "made up", cores=Figure(cores, "assumed", "made up"))


def simulated(num_ranks: int, num: int, message: float = 0.0) -> Simulation:
    cost = StageCost(1.0, 1.0, 1.0, update_seconds=0.5)
    return simulate_step(SCHEDULES["gpipe"](num_ranks, num), [cost] * num_ranks, lambda *_: message)


def test_ranks_with_a_core_each_take_as_long_as_simulated() -> None:
    step = simulated(4, 4, message=0.25)
    assert seconds_on(step, host(4)) == pytest.approx(step.makespan_seconds)
    assert seconds_on(step, DeviceKind("a GPU", {}, "made up")) == pytest.approx(step.makespan_seconds)


def test_one_core_takes_the_work_of_all_ranks() -> None:
    assert seconds_on(simulated(3, 4), host(1)) == pytest.approx(3 * (4 * 3 + 0.5))


def test_a_pipeline_that_fills_and_empties_loses_nothing_while_few_ranks_compute() -> None:
    step = simulated(2, 1)  # one rank computes at a time, and then both update
    assert seconds_on(step, host(1)) == pytest.approx(step.makespan_seconds + 0.5)


@given(st.integers(2, 4), st.integers(1, 6), st.floats(0, 2))
def test_fewer_cores_never_take_less_and_never_less_than_the_work(num_ranks: int, num: int, message: float) -> None:
    step = simulated(num_ranks, num, message)
    taken = [seconds_on(step, host(cores)) for cores in (1, 2, 3, 8)]
    assert taken == sorted(taken, reverse=True) and taken[-1] == pytest.approx(step.makespan_seconds)
    for cores, seconds in zip((1, 2, 3), taken, strict=False):
        assert seconds >= num_ranks * (3 * num + 0.5) / cores - 1e-9
