"""No simulated pipeline is faster or smaller than its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.pipelining.schedules import IN_PARTS, SCHEDULES, holders_of
from placement.pipelining.bounds import least_bytes, least_seconds
from placement.pipelining.simulator import StageCost, simulate_step

BOUNDED = sorted(SCHEDULES)
SECONDS = st.floats(0.0, 9.0)
COSTS = st.builds(
    StageCost,
    SECONDS,
    SECONDS,
    SECONDS,
    kept_bytes=st.integers(0, 99),
    output_bytes=st.integers(0, 99),
    state_bytes=st.integers(0, 99),
    update_seconds=SECONDS,
)


@given(st.data(), st.sampled_from(BOUNDED), st.integers(1, 5), st.integers(1, 3), SECONDS, st.sampled_from([0.0, 0.1]))
def test_no_simulation_takes_less_time_or_memory_than_its_bounds(
    data: st.DataObject, name: str, num_ranks: int, rounds: int, latency: float, per_byte: float
) -> None:
    schedule = SCHEDULES[name](num_ranks, 2 * num_ranks * rounds)
    assert schedule.holders == holders_of(name, num_ranks)
    num_stages = schedule.num_stages
    costs = data.draw(st.lists(COSTS, min_size=num_stages, max_size=num_stages))

    def message_seconds(sender: int, receiver: int, num_bytes: int) -> float:
        return latency + per_byte * num_bytes * abs(sender - receiver)

    simulated = simulate_step(schedule, costs, message_seconds)
    least = least_seconds(name, costs, num_ranks, schedule.num_micro_batches, message_seconds)
    assert least <= simulated.makespan_seconds * (1 + 1e-12)
    assert least_bytes(name, costs, num_ranks, schedule.num_micro_batches) <= max(simulated.peak_bytes)


@pytest.mark.parametrize("name", sorted({"1f1b", "gpipe", "zb-h1", "zbv"}))
@given(num_ranks=st.integers(1, 6), rounds=st.integers(1, 3))
def test_equal_stages_take_no_more_than_the_bounds(name: str, num_ranks: int, rounds: int) -> None:
    """So these bounds are as good as they can be."""
    num = 2 * num_ranks * rounds
    cost = StageCost(1.0, 1.0, 1.0, kept_bytes=1, state_bytes=1)
    costs = [cost] * len(holders_of(name, num_ranks))
    simulated = simulate_step(SCHEDULES[name](num_ranks, num), costs)
    assert least_seconds(name, costs, num_ranks, num) == simulated.makespan_seconds
    assert least_bytes(name, costs, num_ranks, num) == max(simulated.peak_bytes)


@given(st.lists(COSTS, min_size=1, max_size=5), st.integers(1, 9))
def test_a_step_of_gpipe_without_messages_and_updates_takes_its_formula(costs: list[StageCost], num: int) -> None:
    """Σf + (m − 1) · max f for forward passes, and the same for backward passes."""
    plain = [StageCost(cost.forward_seconds, cost.input_seconds, cost.weight_seconds) for cost in costs]
    simulated = simulate_step(SCHEDULES["gpipe"](len(plain), num), plain)
    assert least_seconds("gpipe", plain, len(plain), num) == pytest.approx(simulated.makespan_seconds)


def test_schedules_that_run_backward_passes_in_parts_are_known() -> None:
    in_parts = {
        name
        for name, make in SCHEDULES.items()
        if any(action.kind == "backward of the weights" for order in make(4, 8).orders for action in order)
    }
    assert in_parts == IN_PARTS
