"""Seconds of collectives follow the links between ranks, and never fall with more bytes or ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.axes import Spread
from estimators.devices.communication import (
    Group,
    StepTime,
    collective_seconds,
    group_of,
    message_seconds,
    step_time,
)
from estimators.devices.kind import DeviceKind, Figure, Link, Links, Pace, Rate
from estimators.work import COLLECTIVES, Work, WorkCounter


def made_up(value: float) -> Figure:
    return Figure(value, "assumed", "made up")


LINKS = Links(
    Link(made_up(2e-6), made_up(100e9)), Link(made_up(10e-6), made_up(50e9)), made_up(4), made_up(5e-6)
)  # nodes of four
KIND = DeviceKind("a GPU", {"matmul": Rate(0.0, 1e-12, 0.0)}, "made up", verified=False, links=LINKS)
FSDP4 = Spread(dp_shard=4)


def test_a_hundred_megabytes_among_four_ranks_of_a_node() -> None:
    gather = 5e-6 + 3 * 2e-6 + 3 / 4 * 1e-3
    group = Group(4)
    for kind in ("all_gather", "reduce_scatter", "all_to_all", "new_all_gather"):
        assert collective_seconds(kind, 100e6, group, LINKS) == pytest.approx(gather)
    for kind in ("all_reduce", "new_all_reduce", "queued_all_reduce"):  # a reduce-scatter and an all-gather
        assert collective_seconds(kind, 100e6, group, LINKS) == pytest.approx(2 * gather - 5e-6)
    assert collective_seconds("broadcast", 100e6, group, LINKS) == pytest.approx(5e-6 + 3 * 2e-6 + 1e-3)
    assert collective_seconds("message", 100e6, group, LINKS) == pytest.approx(5e-6 + 2e-6 + 1e-3)


def test_two_nodes_pay_for_the_hop_between_them_and_its_speed() -> None:
    assert collective_seconds("all_gather", 100e6, Group(8), LINKS) == pytest.approx(
        5e-6 + 6 * 2e-6 + 10e-6 + 7 / 8 * 2e-3
    )


def test_ranks_of_different_nodes_share_the_link_with_the_groups_beside_them() -> None:
    # Tensor parallelism fills the nodes, so each of the four groups of replicas has one rank in each of two nodes.
    spread = Spread(dp_replicate=2, tp=4)
    group = group_of(spread, "replicate")
    assert group == Group(2, 4)
    assert group_of(spread, "tp") == Group(4)
    assert group_of(spread, "") == Group(8)
    assert collective_seconds("all_gather", 100e6, group, LINKS) == pytest.approx(5e-6 + 10e-6 + 1 / 2 * 100e6 / 12.5e9)


@given(st.sampled_from(COLLECTIVES), st.integers(1, 64), st.integers(1, 16))
def test_more_bytes_or_ranks_never_take_less(kind: str, num_ranks: int, stride: int) -> None:
    def seconds(num_bytes: float, num_ranks: int) -> float:
        return collective_seconds(kind, num_bytes, Group(num_ranks, stride), LINKS)

    assert seconds(1e6, num_ranks) <= seconds(2e6, num_ranks)
    assert seconds(1e6, num_ranks) <= seconds(1e6, num_ranks + 1) + 1e-12
    assert seconds(1e6, 1) == 0


def test_a_message_takes_the_link_between_its_two_ranks() -> None:
    assert message_seconds(100e6, 1, 3, LINKS) == pytest.approx(5e-6 + 2e-6 + 1e-3)
    assert message_seconds(100e6, 4, 3, LINKS) == pytest.approx(5e-6 + 10e-6 + 2e-3)


def test_a_measured_pace_is_used_inside_a_domain_alone() -> None:
    pace = Pace(made_up(1e-3), made_up(1e-4), made_up(1e9))
    measured = replace(LINKS, paces={"all_reduce": pace, "message": pace})
    assert collective_seconds("all_reduce", 4e6, Group(4), measured) == pytest.approx(1e-3 + 6e-4 + 6e6 / 1e9)
    assert message_seconds(4e6, 0, 1, measured) == pytest.approx(1e-3 + 1e-4 + 4e-3)
    for kind, group in (("all_gather", Group(4)), ("all_reduce", Group(8))):
        assert collective_seconds(kind, 4e6, group, measured) == collective_seconds(kind, 4e6, group, LINKS)
    assert message_seconds(4e6, 3, 4, measured) == message_seconds(4e6, 3, 4, LINKS)
    with pytest.raises(ValueError, match="unknown kinds of collective: shout"):
        replace(LINKS, paces={"shout": pace})


def sharded(flops: float, units: int, parameter_bytes: float) -> Work:
    """As a trace of FSDP2 counts it: two gathers of each unit, and a reduction."""
    counter = WorkCounter()
    counter.add("matmul", flops)
    for _ in range(units):
        for _ in range(2):
            counter.communicate("all_gather", "dp", parameter_bytes, overlaps=True)
        counter.communicate("reduce_scatter", "dp", parameter_bytes, overlaps=True)
    return counter.work


def test_collectives_are_hidden_behind_enough_computation_but_for_the_first_and_the_last() -> None:
    gather_seconds = collective_seconds("all_gather", 100e6, Group(4), LINKS)
    time = step_time(KIND, FSDP4, sharded(1e12, 10, 100e6), 1)
    assert time is not None
    assert time.compute_seconds == pytest.approx(1.0) and time.communication_seconds == pytest.approx(
        30 * gather_seconds
    )
    assert time.exposed_seconds == pytest.approx(2 * gather_seconds) and time.seconds == pytest.approx(
        1 + 2 * gather_seconds
    )
    assert time.communication_share == pytest.approx(2 * gather_seconds / (1 + 2 * gather_seconds))


def test_what_computation_cannot_hide_is_waited_for() -> None:
    time = step_time(KIND, FSDP4, sharded(1e9, 10, 100e6), 1)
    assert time is not None
    gather_seconds = collective_seconds("all_gather", 100e6, Group(4), LINKS)
    assert time.seconds == pytest.approx(2 * gather_seconds + 28 / 30 * time.communication_seconds)
    assert time.communication_share > 0.9


def test_links_that_do_not_overlap_hide_nothing() -> None:
    kind = replace(KIND, links=replace(LINKS, overlap=False))
    time = step_time(kind, FSDP4, sharded(1e12, 10, 100e6), 1)
    assert time is not None and time.exposed_seconds == time.communication_seconds


def waiting(kind: str, dimension: str, num: int, num_bytes: float) -> Work:
    counter = WorkCounter()
    counter.add("matmul", 1e12)
    for _ in range(num):
        counter.communicate(kind, dimension, num_bytes)
    return counter.work


def test_ranks_wait_for_what_does_not_overlap_however_much_they_compute() -> None:
    spread = Spread(dp_shard=2, tp=2)
    time = step_time(KIND, spread, waiting("new_all_reduce", "tp", 7, 1e6), 1)
    assert time is not None
    assert time.exposed_seconds == pytest.approx(7 * collective_seconds("new_all_reduce", 1e6, Group(2), LINKS))


def test_a_slab_in_the_middle_exchanges_halos_with_both_sides() -> None:
    two, four = (step_time(KIND, Spread(spatial=num), waiting("message", "spatial", 3, 1e6), 1) for num in (2, 4))
    assert two is not None and four is not None
    assert four.exposed_seconds == pytest.approx(2 * two.exposed_seconds)


def test_ranks_that_share_cores_slow_each_other() -> None:
    host = replace(KIND, cores=made_up(2))
    for num_ranks, slower in ((1, 1), (2, 1), (4, 2)):
        spread = Spread(tp=num_ranks)
        work = waiting("new_all_reduce", "tp", 7, 1e6)
        alone, shared = (step_time(kind, spread, work, 1) for kind in (KIND, host))
        assert alone is not None and shared is not None
        assert shared.compute_seconds == pytest.approx(slower * alone.compute_seconds)
        assert shared.seconds == pytest.approx(slower * alone.seconds)


def test_a_rank_alone_waits_for_nobody_and_nothing_is_told_of_a_gang_without_known_links() -> None:
    assert step_time(KIND, Spread(), sharded(1e12, 0, 0), 1) == StepTime(1.0)
    without = DeviceKind("a CPU", KIND.rates, "made up")
    assert step_time(without, FSDP4, sharded(1e12, 10, 1e6), 1) is None
    assert StepTime(0.0).communication_share == 0.0


def test_figures_of_paces_and_cores_are_listed_with_the_others() -> None:
    pace = Pace(made_up(1e-3), made_up(1e-4), made_up(1e9))
    kind = replace(KIND, links=replace(LINKS, paces={"all_reduce": pace}), cores=made_up(2))
    values = {name: figure.value for name, figure in kind.figures()}
    assert values["all_reduce_start_seconds"] == 1e-3 and values["all_reduce_hop_seconds"] == 1e-4
    assert values["all_reduce_bytes_per_second"] == 1e9 and values["cores"] == 2
