"""Times of plans whose traces are made up: a device takes a second for each FLOP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from estimators.axes import Spread
from estimators.devices.communication import step_time
from estimators.devices.kind import DeviceKind, Figure, Link, Links, Rate
from estimators.learned_seconds import SlowDown
from estimators.model import Layout, Plan
from estimators.profile import ModelProfile
from estimators.work import StepWork, Work, WorkCounter
from scamp_service.sizing.sizer import timed
from scamp_service.sizing.step_seconds import predicted_step_seconds
from tests.values import sized


def made_up(value: float) -> Figure:
    return Figure(value, "assumed", "made up")


LINK = Link(made_up(0.0), made_up(1e18))
LINKS = Links(LINK, LINK, made_up(8), made_up(0.0))
KIND = DeviceKind("test", {"matmul": Rate(0.0, 1.0, 0.0)}, "test", links=LINKS)
TWO_CORES = replace(KIND, cores=made_up(2))


def flops(number: float) -> Work:
    counter = WorkCounter()
    counter.add("matmul", number)
    return counter.work


def profile(*seconds: tuple[Layout, float]) -> ModelProfile:
    """Layouts that take so many seconds for each sample, and one for the update."""
    work = {layout: StepWork(Work(), flops(each), flops(1.0)) for layout, each in seconds}
    return ModelProfile("s", 1, 1, {}, work)


def of_plan(plan: Plan, *seconds: float) -> ModelProfile:
    return profile(*zip(plan.layouts, seconds, strict=True))


def test_a_rank_takes_what_its_trace_says() -> None:
    plan = Plan(4, 3)
    assert predicted_step_seconds(of_plan(plan, 2.0), plan, KIND) == 2.0 * 4 * 3 + 1


def test_nothing_is_predicted_without_a_speed_a_trace_or_the_links_of_a_gang() -> None:
    plan, pair, pipeline = Plan(4), Plan(4, dp_shard=2), Plan(1, 4, pp=2)
    assert predicted_step_seconds(of_plan(plan, 2.0), plan, None) is None
    assert predicted_step_seconds(of_plan(plan, 2.0), pair, KIND) is None
    for gang in (pair, pipeline):
        known = of_plan(gang, *([2.0] * gang.pp))
        assert predicted_step_seconds(known, gang, KIND) is not None
        assert predicted_step_seconds(known, gang, replace(KIND, links=None)) is None


def test_a_gang_shares_the_cores_of_its_host_with_itself_alone() -> None:
    plan = Plan(4, dp_shard=4)
    known = of_plan(plan, 2.0)
    alone, shared = (predicted_step_seconds(known, plan, kind) for kind in (KIND, TWO_CORES))
    assert alone == 9.0 and shared == 18.0


@pytest.mark.parametrize(("schedule", "ends"), [("1f1b", 1 / 3 + 2 / 3), ("gpipe", 1 + 1)])
def test_a_pipeline_waits_for_its_slowest_stage_and_to_fill_and_drain(schedule: str, ends: float) -> None:
    """``ends``: passes of the other stages before, between and after those of the slowest."""
    even = Plan(1, 6, pp=3, schedule=schedule)
    assert predicted_step_seconds(of_plan(even, 2.0, 2.0, 2.0), even, KIND) == pytest.approx(2.0 * (6 + 3 - 1) + 1)
    uneven = predicted_step_seconds(of_plan(even, 1.0, 4.0, 1.0), even, KIND)
    assert uneven == pytest.approx(4.0 * 6 + ends + 1)


def test_stages_that_wait_leave_their_cores_to_others() -> None:
    plan = Plan(1, 6, pp=3)
    known = of_plan(plan, 2.0, 2.0, 2.0)
    free, shared = (predicted_step_seconds(known, plan, kind) for kind in (KIND, TWO_CORES))
    assert free is not None and shared is not None and free < shared < 1.5 * free
    wide = Plan(1, 6, pp=3, dp_shard=2)
    times = (predicted_step_seconds(of_plan(wide, 2.0, 2.0, 2.0), wide, kind) for kind in (KIND, TWO_CORES))
    lone, crowded = times
    assert lone is not None and crowded is not None and 2 * lone < crowded < 3 * lone, "two ranks for each stage"


def test_what_was_learned_corrects_the_prediction_and_is_said() -> None:
    plan = Plan(4, dp_shard=4)
    learned: Mapping[str, SlowDown] = {"FSDP": SlowDown(2.6, 5)}
    found = timed(sized(plan), of_plan(plan, 2.0), TWO_CORES, learned)
    assert found.step_seconds == pytest.approx(18.0 * 1.3) and found.step_factor == pytest.approx(1.3)
    assert found.reason == "fits; step times × 1.3 as measured on 5 trials of this family (FSDP)"


def test_a_prediction_that_was_right_is_not_worth_a_word() -> None:
    found = timed(sized(Plan(4)), of_plan(Plan(4), 2.0), KIND, {"one rank": SlowDown(1.02, 5)})
    assert (found.step_seconds, found.reason) == (9.0 * 1.02, "fits")


def test_what_was_learned_from_other_kinds_of_ways_does_not_change_the_prediction() -> None:
    plan = Plan(4, dp_shard=4)
    found = timed(sized(plan), of_plan(plan, 2.0), TWO_CORES, {"pipeline": SlowDown(2.6, 5)})
    assert (found.step_seconds, found.step_factor, found.reason) == (18.0, 1.0, "fits")
    assert timed(sized(plan), of_plan(plan, 2.0), None, {}) == sized(plan)


def test_a_single_stage_is_priced_like_scamp_estimate() -> None:
    plan = Plan(4, 2, dp_shard=2)
    work = of_plan(plan, 2.0).work[plan.layout].step(4, 2)
    time = step_time(KIND, Spread(dp_shard=2), work, 2)
    assert time is not None and predicted_step_seconds(of_plan(plan, 2.0), plan, KIND) == time.seconds
