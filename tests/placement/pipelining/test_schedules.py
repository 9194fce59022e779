from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.pipelining.passes import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Pass, Schedule
from placement.pipelining.schedules import SCHEDULES, dual_pipe_v, interleaved, one_f_one_b, zbv
from placement.pipelining.simulator import StageCost, simulate

EQUAL = StageCost(1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", SCHEDULES)
@given(num_ranks=st.integers(1, 8), rounds=st.integers(1, 4))
def test_every_schedule_is_valid_and_runs_every_pass_once(name: str, num_ranks: int, rounds: int) -> None:
    num = 2 * num_ranks * rounds
    schedule = SCHEDULES[name](num_ranks, num)  # checked when it is made
    assert schedule == SCHEDULES[name](num_ranks, num) and schedule.name == name
    forward = [action for order in schedule.orders for action in order if action.kind == FORWARD]
    assert len(forward) == num * schedule.num_forwards * sum(map(len, schedule.holders))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zbv", "interlaced", "3f1b"])
@given(num_ranks=st.integers(1, 6), num_micro_batches=st.integers(1, 15))
def test_most_schedules_take_any_number_of_micro_batches(name: str, num_ranks: int, num_micro_batches: int) -> None:
    assert SCHEDULES[name](num_ranks, num_micro_batches).num_micro_batches == num_micro_batches


def test_others_say_which_numbers_they_take() -> None:
    with pytest.raises(ValueError, match="DualPipeV needs at least 8 micro-batches, got 7"):
        dual_pipe_v(4, 7)
    with pytest.raises(ValueError, match="9 cannot be divided so, use 8"):
        interleaved(4, 9)
    with pytest.raises(ValueError, match="at least 1 rank and 1 micro-batch"):
        one_f_one_b(4, 0)


def in_flight(name: str, num_ranks: int, num_micro_batches: int) -> list[int]:
    """Most stages' activations at once, by rank."""
    schedule = SCHEDULES[name](num_ranks, num_micro_batches)
    kept = StageCost(1.0, 1.0, 1.0, kept_bytes=1)
    return list(simulate(schedule, [kept] * schedule.num_stages).peak_bytes)


def test_schedules_hold_as_many_micro_batches_as_their_papers_say() -> None:
    assert in_flight("gpipe", 4, 12) == [12] * 4
    assert in_flight("1f1b", 4, 12) == [4, 3, 2, 1]
    assert in_flight("zb-h1", 4, 12) == [4] * 4
    assert in_flight("zbv", 4, 12) == [8] * 4  # of stages that are half as large
    assert in_flight("3f1b", 4, 12)[3] <= 2  # one, and the forward pass of an earlier turn


def makespan(name: str, num_ranks: int, num_micro_batches: int, cost: StageCost = EQUAL) -> float:
    schedule = SCHEDULES[name](num_ranks, num_micro_batches)
    return simulate(schedule, [cost] * schedule.num_stages).makespan_seconds


def test_schedules_have_the_bubbles_that_their_papers_say() -> None:
    assert makespan("gpipe", 4, 8) == makespan("1f1b", 4, 8) == 3 * (8 + 3)
    assert makespan("interleaved", 4, 8) == 2 * 3 * 8 + 3 * 3  # stages of half the size: half the bubble
    assert makespan("zb-h1", 4, 8) == 3 * 8 + 3
    assert makespan("zbv", 4, 8) == 2 * 3 * 8 + 3


def torch_order(name: str, num_ranks: int, num: int, rank: int) -> list[Action]:
    """The order of torch's own schedule, made without the process group that its constructor wants."""
    from torch.distributed.pipelining import schedules as torchs
    from torch.distributed.pipelining.schedules import _ComputationType as Kind

    made: Any = object.__new__(getattr(torchs, name))
    made.pp_group_size, made._n_microbatches, made.n_local_stages = num_ranks, num, 2
    made.number_of_rounds = max(1, num // num_ranks)
    made._num_stages, made.microbatches_per_round = 2 * num_ranks, num // made.number_of_rounds
    made.num_stages = 2 * num_ranks
    kinds = {
        Kind.FORWARD: FORWARD,
        Kind.FULL_BACKWARD: BACKWARD,
        Kind.BACKWARD_INPUT: BACKWARD_INPUT,
        Kind.BACKWARD_WEIGHT: BACKWARD_WEIGHT,
    }
    found = [one for one in made._calculate_single_rank_operations(rank) if one is not None]
    flat = [part for one in found for part in (one.sub_actions or [one])]
    return [
        Action(one.stage_index, one.microbatch_index, kinds[one.computation_type])
        for one in flat
        if one.computation_type in kinds
    ]


@pytest.mark.parametrize("num_micro_batches", [8, 12])
@pytest.mark.parametrize("rank", range(4))
def test_orders_are_those_of_torch(rank: int, num_micro_batches: int) -> None:
    made = {"ScheduleZBVZeroBubble": zbv, "ScheduleDualPipeV": dual_pipe_v, "ScheduleInterleaved1F1B": interleaved}
    for name, maker in made.items():
        ours = maker(4, num_micro_batches).orders[rank]
        assert list(ours) == torch_order(name, 4, num_micro_batches, rank), name


# --- the check ----------------------------------------------------------------------------------------------------

F0, B0 = Action(0, 0), Action(0, 0, BACKWARD)
F1, B1 = Action(1, 0), Action(1, 0, BACKWARD)


def made(*orders: list[Action], num_micro_batches: int = 1, num_forwards: int = 1) -> Schedule:
    holders = tuple((rank,) for rank in range(len(orders)))
    return Schedule("mine", tuple(map(tuple, orders)), holders, num_micro_batches, num_forwards)


def test_any_order_that_can_run_is_a_schedule() -> None:
    assert made([F0, B0], [F1, B1]).in_flight(0, 0) == 1
    parts = [Action(0, 0, BACKWARD_INPUT), Action(0, 0, BACKWARD_WEIGHT)]
    assert made([F0, *parts], [F1, B1]).num_stages == 2


@pytest.mark.parametrize(
    ("orders", "complaint"),
    [
        (([F0, B0], [F1]), "rank 1 never runs backward of micro-batch 0 on stage 1"),
        (([B0], [F1, B1]), "rank 0 never runs forward of micro-batch 0 on stage 0"),
        (([F0, F0, B0], [F1, B1]), r"rank 0 runs forward of micro-batch 0 on stage 0 more than once, at \[0, 1\]"),
        (([F0, B0, F1], [F1, B1]), "rank 0 at 2 runs forward of micro-batch 0 on stage 1, but does not hold"),
        (([F0, B0, Action(0, 1)], [F1, B1]), "rank 0 at 2 runs forward of micro-batch 1 on stage 0, which does not"),
        (([F0, B0, Action(0, 0, turn=1)], [F1, B1]), "which does not exist"),
        (([F0, B0, Action(0, 0, BACKWARD_INPUT)], [F1, B1]), "both whole and in parts"),
        (([F0, Action(0, 0, BACKWARD_INPUT)], [F1, B1]), "rank 0 never runs backward of the weights of micro-batch 0"),
        (([B0, F0], [F1, B1]), r"wrong order on rank 0: backward .* \(at 0\) needs forward .* \(at 1\)"),
    ],
)
def test_an_order_that_cannot_run_says_what_is_wrong_and_where(orders: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        made(*orders)


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
        [action._replace(kind=data.draw(st.sampled_from([one for one in Pass if one != action.kind])))],
        [action._replace(stage=data.draw(st.sampled_from([-1, schedule.num_stages])))],
        [action._replace(micro_batch=data.draw(st.sampled_from([-1, 2 * num_ranks])))],
        [action._replace(turn=data.draw(st.sampled_from([-1, 3])))],
    ]
    order[place : place + 1] = data.draw(st.sampled_from(changed))
    with pytest.raises(ValueError, match=name):
        Schedule(name, tuple(map(tuple, orders)), schedule.holders, 2 * num_ranks, schedule.num_forwards)


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    first = [Action(0, 0), Action(0, 0, BACKWARD), Action(0, 1), Action(0, 1, BACKWARD)]
    second = [Action(1, 0), Action(1, 1), Action(1, 0, BACKWARD), Action(1, 1, BACKWARD)]
    with pytest.raises(ValueError) as error:
        made(first, second, num_micro_batches=2)
    assert str(error.value) == (
        "mine: deadlock: rank 0 waits at 1 (backward of micro-batch 0 on stage 0) for rank 1 at 2 (backward of "
        "micro-batch 0 on stage 1); rank 1 waits at 1 (forward of micro-batch 1 on stage 1) for rank 0 at 2 (forward "
        "of micro-batch 1 on stage 0)"
    )


def test_ranks_run_the_passes_of_a_stage_that_they_share_in_one_order() -> None:
    up = [Action(0, 0), Action(0, 1)]
    down = [Action(0, 0, BACKWARD), Action(0, 1, BACKWARD)]
    Schedule("mine", (tuple(up + down), tuple(up + down)), ((0, 1),), 2)
    with pytest.raises(ValueError, match="ranks 0 and 1 share stages but run their passes in different orders"):
        Schedule("mine", (tuple(up + down), tuple(up[::-1] + down)), ((0, 1),), 2)
    with pytest.raises(ValueError, match="stage 0 needs different ranks of 0 to 1, got "):
        Schedule("mine", (tuple(up + down), ()), ((0, 5),), 2)


@given(st.integers(2, 5), st.integers(2, 8), st.randoms(use_true_random=False))
def test_a_shuffled_order_runs_or_is_refused(num_ranks: int, num_micro_batches: int, chance: Any) -> None:
    """Whatever passes the check can be simulated to its end."""
    schedule = one_f_one_b(num_ranks, num_micro_batches)
    orders = [list(order) for order in schedule.orders]
    order = chance.choice(orders)
    one, other = chance.randrange(len(order)), chance.randrange(len(order))
    order[one], order[other] = order[other], order[one]
    try:
        shuffled = Schedule("shuffled", tuple(map(tuple, orders)), schedule.holders, num_micro_batches)
    except ValueError:
        return
    simulated = simulate(shuffled, [EQUAL] * num_ranks)
    assert len(simulated.computing) == sum(map(len, orders))
