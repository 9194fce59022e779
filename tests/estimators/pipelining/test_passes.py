"""Which orders of passes can run, and what is wrong with those that cannot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.pipelining.passes import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Pass,
    PipelineSchedule,
    starts,
)
from estimators.pipelining.schedules import SCHEDULES, one_f_one_b
from placement.pipelining.simulator import StageCost, simulate_step

EQUAL = StageCost(1.0, 1.0, 1.0)
F0, B0 = Action(0, 0), Action(0, 0, BACKWARD)
F1, B1 = Action(1, 0), Action(1, 0, BACKWARD)


def schedule_of(*orders: list[Action], num_micro_batches: int = 1) -> PipelineSchedule:
    holders = tuple((rank,) for rank in range(len(orders)))
    return PipelineSchedule("mine", tuple(map(tuple, orders)), holders, num_micro_batches)


def test_any_order_that_can_run_is_a_schedule() -> None:
    assert schedule_of([F0, B0], [F1, B1]).in_flight(0, 0) == 1
    parts = [Action(0, 0, BACKWARD_INPUT), Action(0, 0, BACKWARD_WEIGHT)]
    assert schedule_of([F0, *parts], [F1, B1]).num_stages == 2


def test_activations_are_held_until_the_gradients_of_the_weights_are_there() -> None:
    late = [Action(0, number, kind) for number in range(3) for kind in (FORWARD, BACKWARD_INPUT)]
    late += [Action(0, number, BACKWARD_WEIGHT) for number in range(3)]
    soon = [Action(0, number, kind) for number in range(3) for kind in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)]
    assert [schedule_of(order, num_micro_batches=3).in_flight(0, 0) for order in (late, soon)] == [3, 1]


def test_a_stage_after_a_shared_one_needs_all_parts_and_all_parts_need_its_gradients() -> None:
    schedule = PipelineSchedule("mine", ((F0, B0), (F0, B0), (F1, B1)), ((0, 1), (2,)), 1)
    graph = schedule.graph
    assert list(graph.needs) == [(), (0, 5), (), (2, 5), (0, 2), (4,)]
    assert list(graph.wanted_here) == [(1,), (), (3,), (), (5,), ()]
    assert list(graph.wanted_by) == [((2, (4,)),), (), ((2, (4,)),), (), (), ((0, (1,)), (1, (3,)))]
    assert starts(schedule, {FORWARD: 1.0, BACKWARD: 2.0}) == [0.0, 4.0, 0.0, 4.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("orders", "complaint"),
    [
        (([F0, B0], [F1]), "rank 1 never runs backward of micro-batch 0 on stage 1"),
        (([B0], [F1, B1]), "rank 0 never runs forward of micro-batch 0 on stage 0"),
        (([F0, F0, B0], [F1, B1]), r"rank 0 runs forward of micro-batch 0 on stage 0 more than once, at \[0, 1\]"),
        (([F0, B0, F1], [F1, B1]), "rank 0 at 2 runs forward of micro-batch 0 on stage 1, but does not hold"),
        (([F0, B0, Action(0, 1)], [F1, B1]), "rank 0 at 2 runs forward of micro-batch 1 on stage 0, which does not"),
        (([F0, B0, Action(0, 0, BACKWARD_INPUT)], [F1, B1]), "both whole and in parts"),
        (([F0, Action(0, 0, BACKWARD_INPUT)], [F1, B1]), "rank 0 never runs backward of the weights of micro-batch 0"),
        (([B0, F0], [F1, B1]), r"wrong order on rank 0: backward .* \(at 0\) needs forward .* \(at 1\)"),
    ],
)
def test_an_order_that_cannot_run_says_what_is_wrong_and_where(orders: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        schedule_of(*orders)


@given(st.data(), st.sampled_from(sorted(SCHEDULES)), st.integers(1, 3))
def test_an_order_with_a_pass_too_many_too_few_or_of_another_kind_is_refused(
    data: st.DataObject, name: str, num_ranks: int
) -> None:
    schedule = SCHEDULES[name](num_ranks, 2 * num_ranks)
    orders = [list(order) for order in schedule.orders]
    order = orders[data.draw(st.integers(0, num_ranks - 1))]
    place = data.draw(st.integers(0, len(order) - 1))
    action = order[place]
    changed = [
        [],
        [action, action],
        [action._replace(kind=data.draw(st.sampled_from([kind for kind in Pass if kind != action.kind])))],
        [action._replace(stage=data.draw(st.sampled_from([-1, schedule.num_stages])))],
        [action._replace(micro_batch=data.draw(st.sampled_from([-1, 2 * num_ranks])))],
    ]
    order[place : place + 1] = data.draw(st.sampled_from(changed))
    with pytest.raises(ValueError, match=name):
        PipelineSchedule(name, tuple(map(tuple, orders)), schedule.holders, 2 * num_ranks)


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    first = [Action(0, 0), Action(0, 0, BACKWARD), Action(0, 1), Action(0, 1, BACKWARD)]
    second = [Action(1, 0), Action(1, 1), Action(1, 0, BACKWARD), Action(1, 1, BACKWARD)]
    with pytest.raises(ValueError) as error:
        schedule_of(first, second, num_micro_batches=2)
    assert str(error.value) == (
        "mine: deadlock: rank 0 waits at 1 (backward of micro-batch 0 on stage 0) for rank 1 at 2 (backward of "
        "micro-batch 0 on stage 1); rank 1 waits at 1 (forward of micro-batch 1 on stage 1) for rank 0 at 2 (forward "
        "of micro-batch 1 on stage 0)"
    )


def test_ranks_run_the_passes_of_a_stage_that_they_share_in_one_order() -> None:
    up = [Action(0, 0), Action(0, 1)]
    down = [Action(0, 0, BACKWARD), Action(0, 1, BACKWARD)]
    PipelineSchedule("mine", (tuple(up + down), tuple(up + down)), ((0, 1),), 2)
    with pytest.raises(ValueError, match="ranks 0 and 1 share stages but run their passes in different orders"):
        PipelineSchedule("mine", (tuple(up + down), tuple(up[::-1] + down)), ((0, 1),), 2)
    with pytest.raises(ValueError, match="stage 0 needs different ranks of 0 to 1, got "):
        PipelineSchedule("mine", (tuple(up + down), ()), ((0, 5),), 2)


@given(st.integers(2, 5), st.integers(2, 8), st.randoms(use_true_random=False))
def test_a_shuffled_order_runs_or_is_refused(num_ranks: int, num_micro_batches: int, chance: Any) -> None:
    """Whatever passes the check can be simulated to its end."""
    schedule = one_f_one_b(num_ranks, num_micro_batches)
    orders = [list(order) for order in schedule.orders]
    order = chance.choice(orders)
    first, other = chance.randrange(len(order)), chance.randrange(len(order))
    order[first], order[other] = order[other], order[first]
    try:
        shuffled = PipelineSchedule("shuffled", tuple(map(tuple, orders)), schedule.holders, num_micro_batches)
    except ValueError:
        return
    simulated = simulate_step(shuffled, [EQUAL] * num_ranks)
    assert len(simulated.computing) == sum(map(len, orders))
