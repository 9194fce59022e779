from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.devices.communication import StepTime, message_seconds, ring_seconds, step_time
from estimators.devices.kind import DeviceKind, Figure, Link, Links, Rate
from estimators.work import Work, WorkCounter


def made_up(value: float) -> Figure:
    return Figure(value, "assumed", "made up")


LINKS = Links(
    Link(made_up(2e-6), made_up(100e9)), Link(made_up(10e-6), made_up(50e9)), made_up(4), made_up(5e-6)
)  # nodes of four
KIND = DeviceKind("a GPU", {"matmul": Rate(0.0, 1e-12, 0.0)}, "made up", verified=False, links=LINKS)


def test_a_hundred_megabytes_among_four_ranks_of_a_node() -> None:
    assert ring_seconds(100e6, 4, LINKS) == pytest.approx(5e-6 + 3 * 2e-6 + 3 / 4 * 1e-3)


def test_two_nodes_pay_for_the_hop_between_them_and_its_speed() -> None:
    assert ring_seconds(100e6, 8, LINKS) == pytest.approx(5e-6 + 6 * 2e-6 + 10e-6 + 7 / 8 * 2e-3)


@given(st.integers(1, 64))
def test_more_bytes_or_ranks_never_take_less(num_ranks: int) -> None:
    once = ring_seconds(1e6, num_ranks, LINKS)
    assert once <= ring_seconds(2e6, num_ranks, LINKS) and once <= ring_seconds(1e6, num_ranks + 1, LINKS)
    assert ring_seconds(1e6, 1, LINKS) == 0


def test_a_message_takes_the_link_between_its_two_ranks() -> None:
    assert message_seconds(100e6, 1, 3, LINKS) == pytest.approx(5e-6 + 2e-6 + 1e-3)
    assert message_seconds(100e6, 4, 3, LINKS) == pytest.approx(5e-6 + 10e-6 + 2e-3)


def sharded(flops: float, units: int, parameter_bytes: float, num_ranks: int) -> Work:
    """As a trace of FSDP2 counts it: two gathers of each unit, and a reduction."""
    counter = WorkCounter()
    counter.add("matmul", flops)
    for _ in range(units):
        for _ in range(2):
            counter.add("gather", 0, parameter_bytes * (2 + 1 / num_ranks))
        counter.add("reduce", 0, parameter_bytes * (1 + 2 / num_ranks))
    return counter.work


def test_collectives_are_hidden_behind_enough_computation_but_for_the_first_and_the_last() -> None:
    one = ring_seconds(100e6, 4, LINKS)
    time = step_time(KIND, sharded(1e12, 10, 100e6, 4), 4, 1)
    assert time is not None
    assert time.compute_seconds == pytest.approx(1.0) and time.communication_seconds == pytest.approx(30 * one)
    assert time.exposed_seconds == pytest.approx(2 * one) and time.seconds == pytest.approx(1 + 2 * one)
    assert time.communication_share == pytest.approx(2 * one / (1 + 2 * one))


def test_what_computation_cannot_hide_is_waited_for() -> None:
    time = step_time(KIND, sharded(1e9, 10, 100e6, 4), 4, 1)
    assert time is not None
    assert time.seconds == pytest.approx(2 * ring_seconds(100e6, 4, LINKS) + 28 / 30 *
                                         time.communication_seconds)  # fmt: skip
    assert time.communication_share > 0.9


def test_a_rank_alone_waits_for_nobody_and_nothing_is_told_of_a_gang_without_known_links() -> None:
    assert step_time(KIND, sharded(1e12, 0, 0, 1), 1, 1) == StepTime(1.0)
    without = DeviceKind("a CPU", KIND.rates, "made up")
    assert step_time(without, sharded(1e12, 10, 1e6, 4), 4, 1) is None
    assert StepTime(0.0).communication_share == 0.0
