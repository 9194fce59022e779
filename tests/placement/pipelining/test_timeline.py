"""A drawn pipeline has the passes, messages and bubbles of its schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.model import Plan
from estimators.pipelining.schedules import SCHEDULES
from placement.pipelining.timeline import Passed, PassTime, PipelineStep, StageRow, StageStep

EVEN = StageStep(PassTime(1.0), PassTime(2.0), 0.0)


def step(plan: Plan, stage: StageStep = EVEN, cores: float | None = None, factor: float = 1.0) -> PipelineStep:
    return PipelineStep(plan, (stage,) * plan.pp, cores, factor)


def names(row: StageRow) -> list[str]:
    return [f"{pass_.kind[0]}{'' if pass_.micro_batch is None else pass_.micro_batch}" for pass_ in row.passes]


def span(passed: Passed) -> tuple[float, float]:
    return passed.start_seconds, passed.end_seconds


def test_each_stage_has_its_passes_in_the_order_of_the_schedule_and_the_update_at_the_end() -> None:
    timeline = step(Plan(1, 3, pp=2), replace(EVEN, update_seconds=0.5)).timeline()
    assert names(timeline.rows[0]) == ["f0", "f1", "b0", "f2", "b1", "b2", "u"]
    assert names(timeline.rows[1]) == ["f0", "b0", "f1", "b1", "f2", "b2", "u"]
    gpipe = step(Plan(1, 3, pp=2, schedule="gpipe")).timeline()
    assert names(gpipe.rows[1]) == ["f0", "f1", "f2", "b0", "b1", "b2"]


@pytest.mark.parametrize(("pp", "num"), [(2, 2), (2, 8), (4, 8)])
def test_a_pipeline_of_equal_stages_has_the_bubble_of_the_literature(pp: int, num: int) -> None:
    timeline = step(Plan(1, num, pp=pp)).timeline()
    assert timeline.makespan_seconds == pytest.approx(3.0 * (num + pp - 1))
    assert timeline.bubble_share == pytest.approx((pp - 1) / (num + pp - 1))
    assert timeline.communication_share == 0.0
    waited = sum(end - start for row in timeline.rows for start, end in timeline.waits(row))
    assert waited == pytest.approx(timeline.bubble_share * timeline.makespan_seconds * pp)


def test_a_message_ends_with_the_pass_whose_result_it_has_and_the_next_stage_waits_for_it() -> None:
    first = StageStep(PassTime(1.0, waiting_seconds=0.25, sending_seconds=0.5), PassTime(2.0), 0.0)
    last = StageStep(PassTime(1.0), PassTime(2.0, sending_seconds=0.75), 0.0)
    timeline = PipelineStep(Plan(1, 2, pp=2), (first, last)).timeline()
    forward, backward = timeline.messages[0], next(message for message in timeline.messages if message.sender == 1)
    assert (forward.receiver, forward.micro_batch) == (1, 0)
    assert (forward.start_seconds, forward.end_seconds) == (1.25, 1.75)
    assert (backward.receiver, backward.micro_batch) == (0, 0)
    assert (backward.start_seconds, backward.end_seconds) == (1.75 + 1 + 2, 1.75 + 1 + 2.75)
    sent, received = timeline.rows[0].passes[0], timeline.rows[1].passes[0]
    assert span(sent) == (0.0, 1.75) and sent.communicating_from_seconds == 1.0
    assert received.start_seconds == sent.end_seconds
    assert timeline.communication_share == pytest.approx(2 * (0.75 + 0.75) / (2 * timeline.makespan_seconds))


def test_passes_take_longer_while_more_ranks_compute_than_there_are_cores() -> None:
    alone, shared = (step(Plan(1, 4, pp=2), cores=cores).timeline() for cores in (2, 1))
    assert alone.makespan_seconds == pytest.approx(3.0 * 5)
    assert shared.makespan_seconds == pytest.approx(2 * 3.0 * 4), "one core does the work of both"
    assert span(shared.rows[0].passes[0]) == (0.0, 1.0), "the other rank waits for its input"
    start, end = span(shared.rows[0].passes[1])
    assert end - start == pytest.approx(2.0)
    wide = step(Plan(1, 4, pp=2, dp_shard=2), cores=2).timeline()
    assert wide.makespan_seconds == pytest.approx(shared.makespan_seconds), "two ranks of a stage compute at a time"


def test_what_was_learned_stretches_the_whole_step() -> None:
    plain, slow = (step(Plan(1, 4, pp=2), factor=factor).timeline() for factor in (1.0, 1.5))
    assert slow.makespan_seconds == pytest.approx(1.5 * plain.makespan_seconds)
    assert slow.messages[3].end_seconds == pytest.approx(1.5 * plain.messages[3].end_seconds)
    assert slow.bubble_share == pytest.approx(plain.bubble_share)


def test_memory_rises_with_each_micro_batch_in_flight_and_falls_to_the_states() -> None:
    stage = replace(EVEN, state_bytes=100, kept_bytes=10, passing_bytes=1)
    first, last = step(Plan(1, 3, pp=2), stage).timeline().rows
    # It waits before its first and its last backward pass, and passes need nothing then.
    assert [held for _, held in first.memory] == [111, 121, 120, 121, 110, 111, 100]
    assert first.peak_bytes == 121
    assert last.peak_bytes == 111
    assert first.memory[-1][1] == last.memory[-1][1] == 100


def test_ranks_that_divide_a_stage_share_its_row() -> None:
    timeline = step(Plan(1, 4, pp=2, dp_shard=2, tp=2)).timeline()
    plan = Plan(1, 4, pp=2, dp_shard=2, tp=2)
    assert [row.ranks for row in timeline.rows] == [
        tuple(rank for rank in range(8) if plan.layout_of(rank).stage_index == stage) for stage in (0, 1)
    ]
    assert sorted(rank for row in timeline.rows for rank in row.ranks) == list(range(8))


_seconds = st.floats(0.01, 10)
_passes = st.builds(PassTime, _seconds, st.floats(0, 3), st.floats(0, 3))
_bytes = st.integers(0, 10**9)
_stages = st.builds(StageStep, _passes, _passes, st.floats(0, 3), _bytes, _bytes, _bytes)


@st.composite
def steps(draw: st.DrawFn) -> PipelineStep:
    pp = draw(st.integers(2, 4))
    plan = Plan(1, draw(st.integers(pp, 7)), pp=pp, schedule=draw(st.sampled_from(["1f1b", "gpipe"])))
    cores, factor = draw(st.none() | st.floats(1, 6)), draw(st.floats(0.5, 3))
    return PipelineStep(plan, tuple(draw(st.lists(_stages, min_size=pp, max_size=pp))), cores, factor)


@given(steps())
def test_a_rank_does_one_thing_at_a_time_and_no_pass_starts_before_its_input(pipeline: PipelineStep) -> None:
    timeline, close = pipeline.timeline(), 1e-9 * pipeline.seconds
    for row in timeline.rows:
        for interval, following in zip(row.passes, row.passes[1:], strict=False):
            assert interval.start_seconds <= interval.communicating_from_seconds <= interval.end_seconds + close
            assert interval.end_seconds <= following.start_seconds + close
        assert row.passes[-1].end_seconds <= timeline.makespan_seconds + close
        busy = sum(pass_.end_seconds - pass_.start_seconds for pass_ in row.passes)
        waited = sum(end - start for start, end in timeline.waits(row))
        assert busy + waited == pytest.approx(timeline.makespan_seconds)
    ends = {
        (stage, pass_.kind, pass_.micro_batch): span(pass_)
        for stage, row in enumerate(timeline.rows)
        for pass_ in row.passes
    }
    for message in timeline.messages:
        kind: Literal["forward", "backward"] = "forward" if message.receiver > message.sender else "backward"
        assert message.end_seconds == pytest.approx(ends[message.sender, kind, message.micro_batch][1])
        assert ends[message.receiver, kind, message.micro_batch][0] >= message.end_seconds - close
    assert len(timeline.messages) == 2 * (pipeline.plan.pp - 1) * pipeline.plan.num_micro_batches


@given(steps())
def test_the_peak_is_that_of_the_most_micro_batches_in_flight(pipeline: PipelineStep) -> None:
    schedule = SCHEDULES[pipeline.plan.schedule](pipeline.plan.pp, pipeline.plan.num_micro_batches)
    for number, (row, stage) in enumerate(zip(pipeline.timeline().rows, pipeline.stages, strict=True)):
        in_flight = schedule.in_flight(number, number)
        assert row.peak_bytes == stage.state_bytes + in_flight * stage.kept_bytes + stage.passing_bytes
        assert row.memory[0][0] == 0.0 and row.memory[-1][1] == stage.state_bytes
        assert [now for now, _ in row.memory] == sorted(now for now, _ in row.memory)


@pytest.mark.parametrize("seconds", [0.1, 1 / 3, 0.7])
def test_rounding_makes_no_wait_and_no_dip_of_memory(seconds: float) -> None:
    stage = StageStep(PassTime(seconds), PassTime(2 * seconds), 0.0, 100, 10, 1)
    timeline = step(Plan(1, 64, pp=4), stage).timeline()
    last = timeline.rows[-1]
    assert [held for _, held in last.memory] == [100, 111, 100], "the last stage never waits between its passes"
    assert len(list(timeline.waits(last))) == 2


@given(steps())
def test_a_stored_step_has_the_same_timeline(pipeline: PipelineStep) -> None:
    stored = PipelineStep.from_json(json.loads(json.dumps(pipeline.to_json())))
    assert stored == pipeline and stored.timeline() == pipeline.timeline()
