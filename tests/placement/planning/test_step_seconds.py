"""Times of plans whose traces are made up: a device takes a second for each FLOP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from estimators.axes import Spread
from estimators.devices.communication import step_time
from estimators.devices.kind import DeviceKind, Figure, Link, Links, Rate
from estimators.learned_seconds import SlowDown
from estimators.memory import predict_stages
from estimators.model import Layout, Plan
from estimators.peaks.envelope import Line, PeakTable, constant_peak
from estimators.peaks.units import PassWork, Unit
from estimators.profile import ModelProfile
from estimators.work import Collectives, StepWork, Work, WorkCounter
from placement.option import Option
from placement.planning.step_seconds import (
    comparable_step,
    pipeline_step,
    predicted_step,
    with_memory,
)
from scamp_service.sizing.sizer import choice_of, learned_in_words, recorded_pipeline
from tests.values import prediction, sized


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
    """Layouts that take this many seconds for each sample, and one for the update."""
    work = {layout: StepWork(Work(), flops(step_flops), flops(1.0)) for layout, step_flops in seconds}
    return ModelProfile("s", 1, 1, {}, work)


def of_plan(plan: Plan, *seconds: float) -> ModelProfile:
    return profile(*zip(plan.layouts, seconds, strict=True))


def predicted_step_seconds(profile: ModelProfile, plan: Plan, kind: DeviceKind | None) -> float | None:
    step = predicted_step(profile, plan, kind)
    return step.seconds if step else None


def test_a_rank_takes_what_its_trace_says() -> None:
    plan = Plan(4, 3)
    assert predicted_step_seconds(of_plan(plan, 2.0), plan, KIND) == 2.0 * 4 * 3 + 1


def test_nothing_is_predicted_without_a_speed_a_trace_or_the_links_of_a_gang() -> None:
    plan, pair, pipeline = Plan(4), Plan(4, dp_shard=2), Plan(1, 4, pp=2)
    assert predicted_step_seconds(of_plan(plan, 2.0), plan, None) is None
    assert predicted_step_seconds(of_plan(plan, 2.0), pair, KIND) is None
    for gang in (pair, pipeline):
        gang_profile = of_plan(gang, *([2.0] * gang.pp))
        assert predicted_step_seconds(gang_profile, gang, KIND) is not None
        assert predicted_step_seconds(gang_profile, gang, replace(KIND, links=None)) is None


def test_a_gang_shares_the_cores_of_its_host_with_itself_alone() -> None:
    plan = Plan(4, dp_shard=4)
    plan_profile = of_plan(plan, 2.0)
    alone, shared = (predicted_step_seconds(plan_profile, plan, kind) for kind in (KIND, TWO_CORES))
    assert alone == 9.0
    assert shared == 18.0


@pytest.mark.parametrize(("schedule", "ends"), [("1f1b", 1 / 3 + 2 / 3), ("gpipe", 1 + 1)])
def test_a_pipeline_waits_for_its_slowest_stage_and_to_fill_and_drain(schedule: str, ends: float) -> None:
    """``ends``: passes of the other stages before, between and after those of the slowest."""
    even = Plan(1, 6, pp=3, schedule=schedule)
    assert predicted_step_seconds(of_plan(even, 2.0, 2.0, 2.0), even, KIND) == pytest.approx(2.0 * (6 + 3 - 1) + 1)
    uneven = predicted_step_seconds(of_plan(even, 1.0, 4.0, 1.0), even, KIND)
    assert uneven == pytest.approx(4.0 * 6 + ends + 1)


def test_a_rank_of_a_pipeline_computes_or_waits_for_other_stages() -> None:
    plan = Plan(1, 6, pp=3)
    step = predicted_step(of_plan(plan, 2.0, 2.0, 2.0), plan, KIND)
    assert step is not None and step.communication_share == 0.0
    assert step.seconds == pytest.approx(2.0 * (6 + 3 - 1) + 1) and step.compute_seconds == pytest.approx(2.0 * 6 + 1)
    assert step.bubble_share == pytest.approx(1 - step.compute_seconds / step.seconds)


def test_the_share_that_is_compared_with_the_measured_one_is_that_of_the_busiest_stage() -> None:
    """Ranks report how long the one that waits least waits: the others wait for it."""
    plan = Plan(1, 6, pp=3)
    even, uneven = (predicted_step(of_plan(plan, *work), plan, KIND) for work in ((2.0, 2.0, 2.0), (1.0, 4.0, 1.0)))
    assert even is not None and even.waiting_share == pytest.approx(even.bubble_share)
    assert uneven is not None and uneven.waiting_share == pytest.approx(1 - (4.0 * 6 + 1) / uneven.seconds)
    assert uneven.bubble_share > 2 * uneven.waiting_share


def test_to_compare_plans_flops_stand_for_seconds_and_unknown_links_take_no_time() -> None:
    for plan in (Plan(4, dp_shard=2), Plan(1, 4, pp=2)):
        plan_profile = of_plan(plan, *([2.0] * plan.pp))
        for kind in (None, replace(KIND, links=None)):
            assert predicted_step(plan_profile, plan, kind) is None
            assert comparable_step(plan_profile, plan, kind) == predicted_step(plan_profile, plan, KIND)


def test_stages_that_wait_leave_their_cores_to_others() -> None:
    plan = Plan(1, 6, pp=3)
    plan_profile = of_plan(plan, 2.0, 2.0, 2.0)
    free, shared = (predicted_step_seconds(plan_profile, plan, kind) for kind in (KIND, TWO_CORES))
    assert free is not None
    assert shared is not None
    assert free < shared < 1.5 * free
    wide = Plan(1, 6, pp=3, dp_shard=2)
    times = (predicted_step_seconds(of_plan(wide, 2.0, 2.0, 2.0), wide, kind) for kind in (KIND, TWO_CORES))
    lone, crowded = times
    assert lone is not None and crowded is not None and 2 * lone < crowded < 3 * lone, "two ranks for each stage"


def test_what_was_learned_corrects_the_prediction_and_is_said() -> None:
    plan = Plan(4, dp_shard=4)
    learned: Mapping[str, SlowDown] = {"FSDP": SlowDown(2.6, 5)}
    timed = choice_of(plan, prediction(), of_plan(plan, 2.0), TWO_CORES, learned)
    assert timed.step_seconds == pytest.approx(18.0 * 1.3) and timed.step_factor == pytest.approx(1.3)
    assert learned_in_words(timed, learned) == "; step times × 1.3 as measured on 5 trials of this family (FSDP)"


def test_a_prediction_that_was_right_is_not_worth_a_word() -> None:
    learned: Mapping[str, SlowDown] = {"one rank": SlowDown(1.02, 5)}
    timed = choice_of(Plan(4), prediction(), of_plan(Plan(4), 2.0), KIND, learned)
    assert (timed.step_seconds, learned_in_words(timed, learned)) == (9.0 * 1.02, "")


def test_a_way_in_which_the_family_has_not_run_is_as_slow_as_its_slowest_one() -> None:
    plan = Plan(4, dp_shard=4)
    learned: Mapping[str, SlowDown] = {"pipeline": SlowDown(2.6, 5)}
    timed = choice_of(plan, prediction(), of_plan(plan, 2.0), TWO_CORES, learned)
    assert timed.step_seconds == pytest.approx(18.0 * 1.3) and timed.step_factor == pytest.approx(1.3)
    words = learned_in_words(timed, learned)
    assert words == "; step times × 1.3 as measured in the slowest way in which this family has run"
    unknown = choice_of(plan, prediction(), of_plan(plan, 2.0), None, {})
    assert unknown == sized(plan).choice and not learned_in_words(unknown, {})


def test_a_stage_sends_its_results_at_the_end_of_its_passes() -> None:
    """Each message of 8 bytes takes 2 seconds. The stage in the middle sends outputs and gradients."""
    plan, slow = Plan(1, 6, pp=3), replace(KIND, links=replace(LINKS, inside=Link(made_up(0.0), made_up(4.0))))
    sent = [6, 12, 6]
    plan_profile = profile(*((layout, 3.0) for layout in plan.layouts))
    work = {
        layout: replace(plan_profile.work[layout], fixed=messages(num / 6))
        for layout, num in zip(plan.layouts, sent, strict=True)
    }
    step = pipeline_step(replace(plan_profile, work=work), plan, slow)
    assert step is not None and step.cores is None
    assert [(stage.forward.computing_seconds, stage.backward.computing_seconds) for stage in step.stages] == [
        (1.0, 2.0)
    ] * 3
    assert [stage.forward.sending_seconds for stage in step.stages] == [2.0, 2.0, 0.0]
    assert [stage.backward.sending_seconds for stage in step.stages] == [0.0, 2.0, 2.0]
    assert {stage.forward.waiting_seconds + stage.backward.waiting_seconds for stage in step.stages} == {0.0}
    assert step.seconds == predicted_step_seconds(replace(plan_profile, work=work), plan, slow)


def messages(num: float) -> Work:
    return Work(collectives=(Collectives("message", "pp", False, num, 8 * num),))


def test_ranks_of_a_stage_wait_for_each_other_in_both_passes() -> None:
    plan, slow = Plan(1, 6, pp=2, tp=2), replace(KIND, links=replace(LINKS, inside=Link(made_up(0.0), made_up(4.0))))
    plan_profile = of_plan(plan, 3.0, 3.0)
    sums = Work(collectives=(Collectives("all_reduce", "tp", False, 1.0, 12.0),))
    step = pipeline_step(
        replace(
            plan_profile, work={layout: replace(plan_profile.work[layout], fixed=sums) for layout in plan_profile.work}
        ),
        plan,
        slow,
    )
    assert step is not None
    assert [stage.forward.waiting_seconds for stage in step.stages] == pytest.approx([1.0, 1.0])
    assert [stage.backward.waiting_seconds for stage in step.stages] == pytest.approx([2.0, 2.0])
    assert {stage.forward.sending_seconds for stage in step.stages} == {0.0}


def test_recompute_makes_the_backward_pass_longer_and_not_the_step() -> None:
    plan, again, light = (
        Plan(1, 4, pp=2, recompute=recompute, selective=selective)
        for recompute, selective in [(False, False), (True, False), (True, True)]
    )
    shares = []
    for compared in (plan, again, light):
        step = pipeline_step(of_plan(compared, 12.0, 12.0), compared, KIND)
        assert step is not None and step.seconds == pytest.approx(12.0 * 5 + 1)
        shares.append(step.stages[0].forward.seconds)
    assert shares == [4.0, 3.0, 4.0]


def test_a_step_holds_at_most_what_each_stage_holds_at_its_traced_peak() -> None:
    plan = Plan(1, 4, pp=2)
    plan_profile = with_peaks(of_plan(plan, 3.0, 3.0), plan)
    step = pipeline_step(plan_profile, plan, KIND)
    assert step is not None
    rows = with_memory(step, plan_profile, extra_bytes=7).timeline().rows
    peaks = [stage.peak_bytes for stage in predict_stages(plan_profile, plan, 7)]
    assert [row.peak_bytes for row in rows] == peaks == [100 + 21 + 5 + 7, 100 + 10 + 5 + 7]
    first, last = with_memory(step, plan_profile, extra_bytes=7).stages
    assert (first.state_bytes, first.kept_bytes, first.passing_bytes) == (107, 9, 8), "two are in flight"
    assert (last.state_bytes, last.kept_bytes, last.passing_bytes) == (107, 8, 7)


def test_activations_are_never_more_than_the_peak_has_room_for() -> None:
    plan = Plan(1, 4, pp=2)
    plan_profile = with_peaks(of_plan(plan, 3.0, 3.0), plan)
    step = pipeline_step(plan_profile, plan, KIND)
    huge = replace(plan_profile, units=tuple(replace(unit, activations=Line(1000, 0)) for unit in plan_profile.units))
    assert step is not None
    first, last = with_memory(step, huge, extra_bytes=0).stages
    assert (first.kept_bytes, first.passing_bytes) == (13, 0), "half of the 26 bytes that are not states"
    assert (last.kept_bytes, last.passing_bytes) == (15, 0)


def with_peaks(model_profile: ModelProfile, plan: Plan) -> ModelProfile:
    """Peaks of 100 bytes of states, 5 of scratch, and 21 or 10 of activations; blocks keep 4 bytes of a sample, the
    part before them 1 byte."""
    names = ("parameters", "optimizer", "activations", "scratch")
    curves = {}
    for layout, kept in zip(plan.layouts, (21, 10), strict=True):
        curves[layout] = PeakTable(((1, constant_peak(list(enumerate((30, 70, kept, 5))), names)),))
    nothing = PassWork(Work(), Work())
    sizes = (("before", 1, 1), ("block", 4, 4), ("after", 0, 1))
    units = tuple(Unit(name, 1, 1, nothing, nothing, Line(kept, 0), Line(0, 0), num) for name, kept, num in sizes)
    work = {**model_profile.work, Layout(): StepWork(Work(), Work(), Work())}
    return replace(model_profile, curves={**curves, Layout(): curves[plan.layout]}, work=work, units=units)


def test_a_trial_keeps_the_step_of_its_pipeline_as_it_is_predicted() -> None:
    plan = Plan(1, 4, pp=2)
    plan_profile = with_peaks(of_plan(plan, 3.0, 3.0), plan)
    options = (Option(Plan(4), prediction(), 1), Option(plan, prediction(), 96))
    learned = choice_of(plan, prediction(extra_bytes=7), plan_profile, TWO_CORES, {"pipeline": SlowDown(1.5, 5)})
    kept = recorded_pipeline(replace(sized(plan), options=options, choice=learned), plan_profile, TWO_CORES)
    assert kept is not None and (kept.unit, kept.communicates, kept.offered_mib) == ("s", True, 96)
    assert kept.step.seconds == learned.step_seconds and kept.step.timeline().rows[1].peak_bytes == 122


def test_where_no_speed_is_known_the_step_is_in_flops_and_without_links_it_has_no_communication() -> None:
    plan = Plan(1, 4, pp=2)
    plan_profile = with_peaks(of_plan(plan, 3.0, 3.0), plan)
    in_flops, without_links = (
        recorded_pipeline(sized(plan), plan_profile, kind) for kind in (None, replace(KIND, links=None))
    )
    assert in_flops is not None and without_links is not None
    assert (in_flops.unit, in_flops.communicates, in_flops.offered_mib) == ("FLOP", False, None)
    assert in_flops.step.seconds == pytest.approx(3.0 * 5 + 1)
    assert (without_links.unit, without_links.communicates) == ("s", False)


def test_a_plan_without_a_pipeline_or_without_traced_work_has_no_step_to_keep() -> None:
    plan, pipeline = Plan(4), Plan(1, 4, pp=2)
    assert recorded_pipeline(sized(plan), of_plan(plan, 2.0), KIND) is None
    assert recorded_pipeline(sized(pipeline), of_plan(plan, 2.0), KIND) is None


def test_a_single_stage_is_priced_like_scamp_estimate() -> None:
    plan = Plan(4, 2, dp_shard=2)
    work = of_plan(plan, 2.0).work[plan.layout].step(4, 2)
    time = step_time(KIND, Spread(dp_shard=2), work, 2)
    assert time is not None and predicted_step_seconds(of_plan(plan, 2.0), plan, KIND) == time.seconds


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zbv", "dualpipev"])
def test_the_step_of_any_order_takes_at_least_as_long_as_its_busiest_rank_and_has_a_row_for_each_rank(
    schedule: str,
) -> None:
    plan = Plan(1, 4, pp=2, schedule=schedule)
    peaks = with_peaks(of_plan(Plan(1, 4, pp=2), 12.0, 12.0), Plan(1, 4, pp=2))  # for its units
    work = {layout: peaks.work[first] for layout, first in zip(plan.layouts, peaks.work, strict=False)}
    plan_profile = replace(peaks, work={**work, Layout(): StepWork(Work(), Work(), Work())})
    step = pipeline_step(plan_profile, plan, KIND)
    assert step is not None and len(step.stages) == plan.num_stages
    assert 12.0 * 4 + 1 <= step.seconds <= 12.0 * 5 + 1, "the bubble is at most that of 1F1B"
    timeline = step.timeline()
    assert [row.ranks for row in timeline.rows] == [(0,), (1,)]
    busy = [sum(pass_.end_seconds - pass_.start_seconds for pass_ in row.passes) for row in timeline.rows]
    assert busy == pytest.approx([12.0 * 4 + 1] * 2)
