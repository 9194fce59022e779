"""A plan asks for its ranks and memory, and a trial says what it was predicted and measured."""

from __future__ import annotations

from dataclasses import replace

from estimators.learning import AttemptPhase
from estimators.model import MIB, Plan, Prediction
from placement.model import Shape
from scamp_service.lifecycle import TrialState
from tests.values import attempt, changed, sized, trial


def test_a_plan_asks_for_its_ranks_and_whole_mib_for_each() -> None:
    sized_trial = sized(Plan(2, 4, tp=2, dp_shard=2))
    assert sized_trial.demand == Shape(4, 24)
    assert changed(sized_trial, prediction=Prediction(24 * MIB, margin_bytes=1)).demand == Shape(4, 25)


def test_ranks_with_unlike_shares_ask_for_unlike_mib() -> None:
    plan, prediction = Plan(5, dp_shard=2, tp=2, shares=(5, 3)), Prediction(24 * MIB, shares_mib=(24, 17))
    uneven = sized(plan)
    assert changed(uneven, prediction=prediction).demand == Shape(4, 24, mibs=(24, 24, 17, 17), samples=(5, 5, 3, 3))
    running = changed(attempt(), plan=plan, prediction=prediction, devices=("a", "b", "c", "d"))
    assert [running.mib_on(device) for device in "abcde"] == [24, 24, 17, 17, 0]


def test_a_trial_without_a_plan_predicts_nothing() -> None:
    new = trial(plan=None)
    assert (new.plan, new.prediction, new.predicted_step_seconds) == (None, Prediction(), None)
    planned = trial(sized=changed(sized(), step_seconds=0.5))
    assert (planned.plan, planned.prediction.reserved_mib, planned.predicted_step_seconds) == (Plan(8), 24, 0.5)


def test_a_trial_is_healed_that_ended_well_after_it_ran_out_of_memory() -> None:
    healed = {state for state in TrialState if trial(state=state, num_oom=1).is_healed}
    assert healed == {TrialState.COMPLETED, TrialState.PRUNED}
    assert not trial(state=TrialState.COMPLETED, num_oom=0).is_healed


def test_a_peak_is_compared_with_what_ran_out_of_memory() -> None:
    evaluated = replace(attempt(extra_bytes=5 * MIB, bias_bytes=2 * MIB).prediction, evaluation_bytes=30 * MIB)
    begun = attempt(prediction=evaluated)
    of_step = (20 - 5 + 2) * MIB
    phases = "", AttemptPhase.STEP, AttemptPhase.EVALUATION
    expected = [replace(begun, phase=phase).expected_bytes for phase in phases]
    assert expected == [of_step, of_step, 30 * MIB]
    unknown = changed(begun, prediction=replace(evaluated, evaluation_bytes=0), phase=AttemptPhase.EVALUATION)
    assert unknown.expected_bytes == of_step, "an evaluation's peak that is not known"


def test_who_ran_out_of_memory_needs_at_least_its_reservation_and_what_it_asked_for() -> None:
    assert attempt(measured_bytes=23 * MIB).least_bytes == 24 * MIB
    assert attempt(measured_bytes=25 * MIB).least_bytes == 25 * MIB


def test_a_gang_is_named_by_trial_and_attempt() -> None:
    assert attempt(trial_id=12, attempt=3).key == "12/3"
