"""A plan that the study gives is the answer, or the reason says why it is not possible."""

from __future__ import annotations

from estimators.model import Plan
from placement.model import Cluster
from placement.option import NoPlan
from placement.planning.answers import ChosenPlan, Untraced
from placement.planning.planner import choose
from placement.planning.question import Question
from tests.placement.planning.test_planner import FOUR, Model, cluster


def answer(plan: Plan, model: Model, batch: int = 8, devices: Cluster = FOUR) -> ChosenPlan | NoPlan:
    profile = model.profile
    while True:
        choice = choose(Question(profile, batch, devices, plan=plan))
        if not isinstance(choice, Untraced):
            return choice
        profile.curves[choice.layout] = model.curve(choice.layout)  # type: ignore[index]


def test_the_plan_that_a_study_gives_is_chosen_if_it_fits() -> None:
    plan = Plan(1, 8, pp=2, cut=(3, 1), recompute=True, recomputed=(0,))
    choice = answer(plan, Model(30, 1))
    assert isinstance(choice, ChosenPlan)
    assert choice.plan == plan
    assert "the study gives this plan" in choice.reason


def test_each_rank_of_unlike_shares_must_fit_a_device_of_its_own() -> None:
    plan, model = Plan(5, dp_shard=2, shares=(3, 5)), Model(0, 10)
    fitting = answer(plan, model, devices=cluster(900, 900))
    assert isinstance(fitting, ChosenPlan) and fitting.plan == plan
    small, large = fitting.prediction.shares_mib
    assert large == fitting.prediction.reserved_mib > small
    assert isinstance(answer(plan, model, devices=cluster(small, large)), ChosenPlan)
    for sizes, needed in (((small, large - 1), large), ((small - 1, large), small)):
        refused = answer(plan, model, devices=cluster(*sizes))
        assert isinstance(refused, NoPlan) and f"needs {needed} MiB" in refused.reason


def test_a_given_plan_that_is_not_possible_is_refused_with_its_reason() -> None:
    for plan, model, words in (
        (Plan(4), Model(30, 1), "trains 4 samples in a step, and the candidate's batch has 8"),
        (Plan(1, dp_shard=8), Model(30, 1), "needs 8 devices, and there are 4"),
        (Plan(8), Model(300, 1), "needs 401 MiB|needs 4"),
    ):
        choice = answer(plan, model)
        assert isinstance(choice, NoPlan) and any(
            words_of_reason in choice.reason for words_of_reason in words.split("|")
        ), choice
