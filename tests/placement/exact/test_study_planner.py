"""Studies get refined plans where these are predicted to be faster, and only those that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from estimators.constraints import Limit, PlanConstraints
from estimators.devices.assumed import ASSUMED_CPU, ASSUMED_LINKS
from estimators.devices.kind import DeviceKind, Figure
from estimators.model import Divisions, Plan
from estimators.profile import ModelProfile
from placement.exact.study_planner import MOST_REFINED, StudyPlanner
from placement.option import Option
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.planner import choose
from placement.planning.question import Question
from tests.placement.exact.test_best_plans import V100, cluster
from tests.placement.exact.test_candidate_ways import gpt
from tests.placement.planning.test_planner import line


def on_slow_links() -> DeviceKind:
    """Devices between which only a pipeline is fast."""
    assert V100.links is not None
    slow = replace(V100.links.inside, bytes_per_second=Figure(1e7, "assumed", "test"))
    return replace(V100, links=replace(V100.links, inside=slow))


def question(profile: ModelProfile | None = None, count: int = 4) -> Question:
    """Devices on which no single rank fits."""
    return Question(profile or gpt(), 64, cluster(one=(count, 1_500)), on_slow_links())


def chosen(planner: Callable[[Question], Answer], question_asked: Question) -> tuple[ChosenPlan, Option]:
    """The answer, and its option, where by their traces only pipelines fit."""
    while isinstance(answer := planner(question_asked), Untraced):
        curve = line(100 if answer.layout.pp > 1 else 5_000, 1)
        question_asked = replace(question_asked, profile=question_asked.profile.with_curve(answer.layout, curve))
    assert isinstance(answer, ChosenPlan)
    return answer, next(option for option in answer.options if option.plan == answer.plan)


def test_a_study_takes_a_pipeline_of_another_order_or_cut_where_it_is_predicted_faster() -> None:
    _, plain = chosen(choose, question())
    answer, refined = chosen(StudyPlanner(), question())
    assert answer.plan.pp > 1 and (answer.plan.schedule != "1f1b" or answer.plan.cut)
    assert refined.device_seconds
    assert plain.device_seconds
    assert refined.device_seconds < plain.device_seconds


def test_refined_plans_fit_by_their_units_and_are_few_and_the_fastest() -> None:
    refined = StudyPlanner().refined(question()).refined
    assert refined and all(option.fits and option.plan.pp > 1 and option.trained for option in refined)
    for num in (2, 4):
        seconds = [option.comparable_seconds for option in refined if option.plan.world_size == num]
        assert len(seconds) <= MOST_REFINED and seconds == sorted(seconds)


def test_models_that_cannot_be_cut_and_hints_against_stages_leave_nothing_to_refine() -> None:
    uncut = replace(gpt(), divisions=Divisions())
    limits = PlanConstraints((Limit("pp", 1, 1, "default", "the model"),))
    hinted = replace(gpt(), divisions=replace(gpt().divisions, constraints=limits))
    with_plan = replace(question(), plan=Plan(16, 4))
    for asking in (question(uncut), question(hinted), with_plan):
        assert StudyPlanner().refined(asking).refined == ()


def test_candidates_of_one_structure_share_the_search() -> None:
    planner = StudyPlanner()
    first, again = planner.refined(question()), planner.refined(question())
    assert first.refined is again.refined
    assert planner.refined(question(count=2)).refined is not first.refined


@pytest.mark.full
def test_links_that_are_not_known_are_assumed_as_for_all_other_ways() -> None:
    without = replace(question(), kind=replace(V100, links=None))
    assumed = replace(question(), kind=replace(V100, links=ASSUMED_LINKS))
    assert StudyPlanner().refined(without).refined == StudyPlanner().refined(assumed).refined
    slow, cpu = (replace(question(), kind=kind) for kind in (None, ASSUMED_CPU))
    assert StudyPlanner().refined(slow).refined == StudyPlanner().refined(cpu).refined
