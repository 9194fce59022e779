"""Schedules are valid, and have the bubbles and the memory that their papers say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from estimators.pipelining.passes import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action
from estimators.pipelining.schedules import (
    SCHEDULES,
    dual_pipe_v,
    given,
    holders_of,
    in_parts,
    interleaved,
    one_f_one_b,
    schedule_of,
    zbv,
)
from placement.pipelining.simulator import StageCost, simulate_step

EQUAL = StageCost(1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", SCHEDULES)
@drawn(num_ranks=st.integers(1, 8), rounds=st.integers(1, 4))
def test_every_schedule_is_valid_and_runs_every_pass_once(name: str, num_ranks: int, rounds: int) -> None:
    num = 2 * num_ranks * rounds
    schedule = SCHEDULES[name](num_ranks, num)  # checked when it is made
    assert schedule == SCHEDULES[name](num_ranks, num) and schedule.name == name
    forward = [action for order in schedule.orders for action in order if action.kind == FORWARD]
    assert len(forward) == num * sum(map(len, schedule.holders))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zbv", "interlaced"])
@drawn(num_ranks=st.integers(1, 6), num_micro_batches=st.integers(1, 15))
def test_most_schedules_take_any_number_of_micro_batches(name: str, num_ranks: int, num_micro_batches: int) -> None:
    assert SCHEDULES[name](num_ranks, num_micro_batches).num_micro_batches == num_micro_batches


def test_others_say_which_numbers_they_take() -> None:
    with pytest.raises(ValueError, match="DualPipeV needs at least 8 micro-batches, got 7"):
        dual_pipe_v(4, 7)
    with pytest.raises(ValueError, match="9 cannot be divided so, use 8"):
        interleaved(4, 9)
    with pytest.raises(ValueError, match="num_micro_batches must be at least 1"):
        one_f_one_b(4, 0)


def in_flight(name: str, num_ranks: int, num_micro_batches: int) -> list[int]:
    """Most stages' activations at once, by rank."""
    schedule = SCHEDULES[name](num_ranks, num_micro_batches)
    kept = StageCost(1.0, 1.0, 1.0, kept_bytes=1)
    return list(simulate_step(schedule, [kept] * schedule.num_stages).peak_bytes)


def test_schedules_hold_as_many_micro_batches_as_their_papers_say() -> None:
    assert in_flight("gpipe", 4, 12) == [12] * 4
    assert in_flight("1f1b", 4, 12) == [4, 3, 2, 1]
    assert in_flight("zb-h1", 4, 12) == [4] * 4
    assert in_flight("zbv", 4, 12) == [8] * 4  # of stages that are half as large


def makespan(name: str, num_ranks: int, num_micro_batches: int, cost: StageCost = EQUAL) -> float:
    schedule = SCHEDULES[name](num_ranks, num_micro_batches)
    return simulate_step(schedule, [cost] * schedule.num_stages).makespan_seconds


def test_schedules_have_the_bubbles_that_their_papers_say() -> None:
    assert makespan("gpipe", 4, 8) == makespan("1f1b", 4, 8) == 3 * (8 + 3)
    assert makespan("interleaved", 4, 8) == 2 * 3 * 8 + 3 * 3  # stages of half the size: half the bubble
    assert makespan("zb-h1", 4, 8) == 3 * 8 + 3
    assert makespan("zbv", 4, 8) == 2 * 3 * 8 + 3


def torch_order(name: str, num_ranks: int, num: int, rank: int) -> list[Action]:
    """The order of torch's own schedule, made without the process group that its constructor wants."""
    from torch.distributed.pipelining import schedules as torchs
    from torch.distributed.pipelining.schedules import _ComputationType as Kind

    torch_schedule: Any = object.__new__(getattr(torchs, name))
    torch_schedule.pp_group_size, torch_schedule._n_microbatches, torch_schedule.n_local_stages = num_ranks, num, 2
    torch_schedule.number_of_rounds = max(1, num // num_ranks)
    torch_schedule._num_stages, torch_schedule.microbatches_per_round = (
        2 * num_ranks,
        num // torch_schedule.number_of_rounds,
    )
    torch_schedule.num_stages = 2 * num_ranks
    kinds = {
        Kind.FORWARD: FORWARD,
        Kind.FULL_BACKWARD: BACKWARD,
        Kind.BACKWARD_INPUT: BACKWARD_INPUT,
        Kind.BACKWARD_WEIGHT: BACKWARD_WEIGHT,
    }
    operations = [
        operation for operation in torch_schedule._calculate_single_rank_operations(rank) if operation is not None
    ]
    flat = [part for operation in operations for part in (operation.sub_actions or [operation])]
    return [
        Action(operation.stage_index, operation.microbatch_index, kinds[operation.computation_type])
        for operation in flat
        if operation.computation_type in kinds
    ]


@pytest.mark.parametrize("num_micro_batches", [8, 12])
@pytest.mark.parametrize("rank", range(4))
def test_orders_are_those_of_torch(rank: int, num_micro_batches: int) -> None:
    orders = {"ScheduleZBVZeroBubble": zbv, "ScheduleDualPipeV": dual_pipe_v, "ScheduleInterleaved1F1B": interleaved}
    for name, maker in orders.items():
        ours = maker(4, num_micro_batches).orders[rank]
        assert list(ours) == torch_order(name, 4, num_micro_batches, rank), name


LETTERS = {FORWARD: "F", BACKWARD: "B", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W"}


def written(order: tuple[Action, ...]) -> str:
    return " ".join(f"{action.stage}{LETTERS[action.kind]}{action.micro_batch}" for action in order)


@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - {"interlaced"}))
def test_an_order_that_is_written_down_is_the_schedule_that_it_was_written_from(name: str) -> None:
    schedule = SCHEDULES[name](3, 6)
    text = "; ".join(map(written, schedule.orders))
    assert (
        (given(text).orders, given(text).holders)
        == (schedule.orders, schedule.holders)
        == (
            schedule_of(text, 3, 6).orders,
            holders_of(text, 3),
        )
    )
    assert in_parts(text) == in_parts(name)
    assert given(text.replace("; ", "\n").replace(" ", ",")).orders == schedule.orders, "as torch writes files"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0 0X0; 1F0 1B0", "'0X0' is no pass"),
        ("0F0 0B0; 1F0", "rank 1 never runs backward of micro-batch 0 on stage 1"),
        ("0F0 0B0; 1B0 1F0", "wrong order on rank 1"),
        ("0F0 0B0 0F1 0B1; 1F1 1B1 1F0 1B0", "deadlock: rank 0 waits at 1 .* for rank 1 at 3"),
        ("0F0 0B0; 0F0 0B0 1F0 1B0", "ranks 0 and 1 run stage 0"),
        ("0F0 0B0 1F0 1B0;", "rank 1 has no passes"),
        ("0F1 0B1; 1F1 1B1", "no micro-batch 0"),
        ("0F0 0B0; 999999F0 999999B0", "no stage 1"),
    ],
)
def test_an_order_that_ranks_cannot_run_is_refused_with_the_pass_that_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        given(text)
