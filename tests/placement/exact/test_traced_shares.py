"""Ranks take different shares where equal ones do not fit, or where devices differ in speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimators.devices.kind import DeviceKind, Rate
from estimators.memory import NO_EXTRA, Extra
from estimators.model import Layout, Plan
from estimators.work import StepWork, Work
from placement.exact.study_planner import StudyPlanner
from placement.model import Cluster, Device
from placement.option import NoPlan
from placement.planning.answers import ChosenPlan, Untraced
from placement.planning.planner import choose
from placement.planning.question import Question
from tests.placement.planning.test_planner import SPEED, Model, cluster, flops, line

HALF = replace(SPEED, name="half", rates={"matmul": Rate(0.0, 2.0, 0.0)})


def answered(question: Question, model: Model) -> ChosenPlan | NoPlan:
    planner = StudyPlanner()
    while isinstance(answer := planner(question), Untraced):
        question.profile.curves[answer.layout] = model.curve(answer.layout)  # type: ignore[index]
        question.profile.work[answer.layout] = StepWork(Work(), flops(1e6), Work())  # type: ignore[index]
    return answer


def question_of(model: Model, batch: int, devices: Cluster, extra: Extra = NO_EXTRA, **kinds: DeviceKind) -> Question:
    return Question(model.profile, batch, devices, SPEED, extra=extra, kinds=kinds)


def of_kinds(**numbers: int) -> Cluster:
    kinds = [kind for kind, number in numbers.items() for _ in range(number)]
    return Cluster(tuple(Device(f"d{n}", kind, n, kind, 2000) for n, kind in enumerate(kinds)))


def test_ranks_take_unlike_shares_where_equal_ones_do_not_fit_the_smaller_device() -> None:
    model, devices = (
        Model(120, 20),
        cluster(150, 107),
    )  # gradients of a micro-batch before are held by those that follow
    choice = answered(question_of(model, 6, devices), model)
    assert isinstance(choice, ChosenPlan)
    assert choice.plan.shares
    assert choice.plan.batch == 6
    assert choice.plan.shares[0] > choice.plan.shares[1] and choice.plan.num_micro_batches == 1
    large, small = choice.prediction.shares_mib
    assert small <= 107 < large <= 150 and large == choice.prediction.reserved_mib
    assert "ranks take unlike shares of the batch" in choice.reason and "With equal shares: needs" in choice.reason
    assert isinstance(answered(question_of(model, 6, cluster(107, 107)), model), NoPlan)


def test_a_batch_that_ranks_do_not_divide_equally_is_trained_on_any_number_of_unlike_devices() -> None:
    model = Model(150, 1)
    choice = answered(question_of(model, 7, cluster(90, 100, 95)), model)
    assert isinstance(choice, ChosenPlan)
    assert choice.plan.world_size == 3
    assert sum(choice.plan.shares) == 7


def test_what_an_attempt_lacked_is_held_on_each_rank_as_far_as_its_device_has_room() -> None:
    model, devices = Model(120, 20), cluster(150, 107)
    held = answered(question_of(model, 6, devices, Extra(rank_bytes=1, held_bytes=2**60)), model)
    assert isinstance(held, ChosenPlan) and held.prediction.shares_mib == (150, 107)


@pytest.mark.parametrize(("num_fast", "num_slow"), [(2, 2), (4, 1)])
def test_shares_follow_the_speed_of_devices_where_no_speed_has_enough_of_them(num_fast: int, num_slow: int) -> None:
    model = Model(3000, 1)  # on four devices
    devices = of_kinds(half=num_slow, test=num_fast)
    choice = answered(question_of(model, 12, devices, test=SPEED, half=HALF), model)
    assert isinstance(choice, ChosenPlan) and choice.plan.world_size == 4
    assert choice.plan.shares == ((4, 4, 2, 2) if num_fast == 2 else ())


def test_devices_that_are_all_equal_and_plans_that_a_study_gives_keep_their_answer() -> None:
    model = Model(60, 10)
    for question in (
        question_of(model, 6, cluster(65, 65)),
        question_of(model, 6, cluster(110, 110)),
        replace(question_of(model, 6, cluster(110, 65)), plan=Plan(3, dp_shard=2)),
    ):
        assert answered(question, model) == choose(question)


def test_ranks_that_divide_layers_are_traced_with_the_shares_of_others_and_reserve_what_these_say() -> None:
    model, plan = Model(30, 1), Plan(5, dp_shard=2, divided=True, shares=(5, 3))
    question, traced = replace(question_of(model, 8, cluster(100, 100)), plan=plan), list[Layout]()
    while isinstance(answer := choose(question), Untraced):
        traced.append(answer.layout)
        question.profile.curves[answer.layout] = line(20 * len(traced), 1)  # type: ignore[index]
    assert traced == [Layout(), *plan.traced_layouts]
    assert isinstance(answer, ChosenPlan)
    large, small = answer.prediction.shares_mib
    assert small > large + 10, "the share of three samples was traced last, with the highest peak"
