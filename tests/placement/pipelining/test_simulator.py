"""Simulated steps have the bubbles and the memory that schedules are known for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.pipelining.passes import PipelineSchedule, starts
from estimators.pipelining.schedules import SCHEDULES, gpipe, interlaced, one_f_one_b, zero_bubble
from placement.pipelining.simulator import MessageSeconds, StageCost, simulate_step

EIGHTHS = st.integers(0, 40).map(lambda number: number / 8)  # sums of which are exact
COSTS = st.builds(
    StageCost,
    EIGHTHS,
    EIGHTHS,
    EIGHTHS,
    kept_bytes=st.integers(0, 9),
    output_bytes=st.integers(0, 9),
    state_bytes=st.integers(0, 9),
    update_seconds=EIGHTHS,
)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[PipelineSchedule, list[StageCost], MessageSeconds]:
    num_ranks = draw(st.integers(1, 4))
    schedule = SCHEDULES[draw(st.sampled_from(sorted(SCHEDULES)))](num_ranks, 2 * num_ranks * draw(st.integers(1, 2)))
    latency, per_byte = draw(EIGHTHS), draw(EIGHTHS)
    costs = draw(st.lists(COSTS, min_size=schedule.num_stages, max_size=schedule.num_stages))
    return schedule, costs, lambda sender, receiver, num_bytes: latency + per_byte * num_bytes


def work_of(schedule: PipelineSchedule, costs: Sequence[StageCost], rank: int) -> float:
    passes = sum(costs[action.stage].seconds(action.kind) for action in schedule.orders[rank])
    held = [stage for stage, holders in enumerate(schedule.holders) if rank in holders]
    return passes + sum(costs[stage].update_seconds for stage in held)


def critical_path(schedule: PipelineSchedule, costs: Sequence[StageCost], message_seconds: MessageSeconds) -> float:
    """Longest chain of passes and messages, each of which needs the one before it."""
    graph, begun, ended = schedule.graph, starts(schedule), {-1: 0.0}
    for number in sorted(range(len(begun)), key=lambda number: begun[number]):
        action, rank = graph.actions[number], graph.ranks[number]
        ready = [ended[number - 1 if number > graph.bounds[rank] else -1]]
        for needed in graph.needs[number]:
            on_its_way, before = 0.0, graph.actions[needed]
            if graph.ranks[needed] != rank:
                num_bytes = costs[min(before.stage, action.stage)].output_bytes // len(schedule.holders[before.stage])
                on_its_way = message_seconds(graph.ranks[needed], rank, num_bytes)
            ready.append(ended[needed] + on_its_way)
        ended[number] = max(ready) + costs[action.stage].seconds(action.kind)
    return max(ended.values())


@given(pipelines())
def test_a_step_takes_at_least_the_critical_path_and_the_work_of_the_busiest_rank(
    pipeline: tuple[PipelineSchedule, list[StageCost], MessageSeconds],
) -> None:
    schedule, costs, _ = pipeline
    simulated = simulate_step(*pipeline)
    busiest = max(work_of(schedule, costs, rank) for rank in range(schedule.num_ranks))
    assert simulated.makespan_seconds >= max(busiest, critical_path(*pipeline)) - 1e-9


@given(pipelines(), st.sampled_from([0.25, 3.0]))
def test_scaling_all_costs_scales_the_step_and_nothing_else(
    pipeline: tuple[PipelineSchedule, list[StageCost], MessageSeconds], factor: float
) -> None:
    schedule, costs, message_seconds = pipeline
    scaled = [
        replace(
            cost,
            forward_seconds=factor * cost.forward_seconds,
            input_seconds=factor * cost.input_seconds,
            weight_seconds=factor * cost.weight_seconds,
            update_seconds=factor * cost.update_seconds,
        )
        for cost in costs
    ]
    once = simulate_step(*pipeline)
    slower = simulate_step(schedule, scaled, lambda *message: factor * message_seconds(*message))
    assert slower.makespan_seconds == factor * once.makespan_seconds
    assert slower.bubble_share == pytest.approx(once.bubble_share)
    assert slower.peak_bytes == once.peak_bytes


@given(pipelines())
def test_simulations_are_deterministic_and_their_shares_add_up(
    pipeline: tuple[PipelineSchedule, list[StageCost], MessageSeconds],
) -> None:
    schedule, costs, _ = pipeline
    once, again = simulate_step(*pipeline), simulate_step(*pipeline)
    assert once == again
    rank_seconds = once.makespan_seconds * schedule.num_ranks
    work = sum(work_of(schedule, costs, rank) for rank in range(schedule.num_ranks))
    assert work + rank_seconds * (once.bubble_share + once.communication_share) == pytest.approx(rank_seconds)
    assert min(once.bubble_share, once.communication_share) >= 0


@given(pipelines())
def test_streams_do_one_thing_at_a_time_and_give_all_memory_back(
    pipeline: tuple[PipelineSchedule, list[StageCost], MessageSeconds],
) -> None:
    schedule, costs, _ = pipeline
    simulated = simulate_step(*pipeline)
    for rank in range(schedule.num_ranks):
        computing = [interval for interval in simulated.computing if interval.rank == rank]
        messages = [message for message in simulated.messages if rank in (message.rank, message.receiver)]
        for stream in (computing, messages):
            for interval, following in itertools.pairwise(stream):
                assert interval.end_seconds <= following.start_seconds
        states = sum(cost.state_bytes for cost, holders in zip(costs, schedule.holders, strict=True) if rank in holders)
        assert simulated.memory[rank][-1][1] == states <= simulated.peak_bytes[rank]


@given(num_ranks=st.integers(1, 6), num_micro_batches=st.integers(1, 12), forward=EIGHTHS, backward=EIGHTHS)
def test_equal_stages_have_the_known_bubble(
    num_ranks: int, num_micro_batches: int, forward: float, backward: float
) -> None:
    cost = StageCost(forward + 1, backward, 1.0)
    for make in (gpipe, one_f_one_b):
        simulated = simulate_step(make(num_ranks, num_micro_batches), [cost] * num_ranks)
        bubble = (num_ranks - 1) / (num_micro_batches + num_ranks - 1)
        assert simulated.bubble_share == pytest.approx(bubble, abs=1e-12)
        assert simulated.communication_share == 0


def test_a_bubble_of_zb_h1_lacks_the_time_of_the_weights() -> None:
    simulated = simulate_step(zero_bubble(4, 8), [StageCost(1.0, 1.0, 1.0)] * 4)
    assert simulated.makespan_seconds == 8 * 3 + 3 * (1 + 1 - 1)


def test_a_result_on_its_way_is_communication_and_one_not_computed_is_a_bubble() -> None:
    cost = StageCost(1.0, 0.5, 0.5, output_bytes=4)
    simulated = simulate_step(one_f_one_b(2, 1), [cost] * 2, lambda sender, receiver, num_bytes: num_bytes / 2)
    assert simulated.makespan_seconds == 1 + 2 + 1 + 1 + 2 + 1
    assert [(wait.rank, wait.start_seconds, wait.end_seconds) for wait in simulated.late] == [
        (1, 1.0, 3.0),
        (0, 5.0, 7.0),
    ]
    assert (simulated.communication_share, simulated.bubble_share) == (4 / 16, 8 / 16)
    assert [
        (message.rank, message.receiver, message.start_seconds, message.end_seconds) for message in simulated.messages
    ] == [
        (0, 1, 1.0, 3.0),
        (1, 0, 5.0, 7.0),
    ]


def test_messages_hide_behind_computation_that_does_not_need_them() -> None:
    cost = StageCost(1.0, 1.0, 1.0, output_bytes=1)
    free = simulate_step(gpipe(2, 16), [cost] * 2)
    sent = simulate_step(gpipe(2, 16), [cost] * 2, lambda *_: 0.25)
    assert sent.makespan_seconds - free.makespan_seconds == 2 * 0.25  # only the first forward, the last backward


def test_memory_is_that_of_the_micro_batches_in_flight_with_their_inputs() -> None:
    cost = StageCost(1.0, 1.0, 1.0, kept_bytes=100, output_bytes=7, state_bytes=1000)
    simulated = simulate_step(one_f_one_b(3, 6), [cost] * 3)
    assert simulated.peak_bytes == (1000 + 3 * 100, 1000 + 2 * 107 + 7, 1000 + 107 + 7)


def test_shared_stages_are_held_by_all_ranks() -> None:
    schedule = interlaced(2, 4)
    shared, unshared = StageCost(0.5, 0.5, 0.0, state_bytes=10), StageCost(1.0, 1.0, 1.0, state_bytes=1)
    simulated = simulate_step(schedule, [shared, unshared, unshared, shared])
    assert [held[0][1] for held in simulated.memory] == [21, 21]
    assert simulated.makespan_seconds >= 4 * (3 + 2 * 1)


def test_a_stage_without_a_cost_is_an_error() -> None:
    with pytest.raises(ValueError, match="1f1b has 3 stages, got costs of 2"):
        simulate_step(one_f_one_b(3, 3), [StageCost(1.0, 1.0, 1.0)] * 2)


def test_many_micro_batches_fill_many_ranks() -> None:
    simulated = simulate_step(SCHEDULES["zbv"](16, 128), [StageCost(1.0, 1.0, 1.0)] * 32)
    assert simulated.bubble_share < 0.1
