"""JSON of trials and attempts, from values alone; how the API finds them is in ``routes/test_trials``."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from api.views.trials import (
    AttemptView,
    OptionView,
    TrialView,
    attempt_view,
    log_view,
    metric_view,
    peaks_view,
    trial_detail,
    trial_view,
)
from api.views.view import View
from estimators.learning import AttemptPhase
from estimators.model import MIB, Plan, Prediction
from placement.option import Option
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import LogLine, Metric
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives
from tests.values import attempt, changed, sized, trial

ONE = Objectives((Objective(metric="accuracy"),))


def as_json(view: View) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(view.model_dump_json())
    return loaded


def test_a_trial_without_a_plan_has_empty_words_and_no_ranks() -> None:
    shown = as_json(trial_view(trial(plan=None, state=TrialState.WAITING, attempt=0), ONE, {}))
    empty = ("plan", "plan_text", "plan_short", "plan_reason", "num_ranks", "batch", "reserved_mib", "learned_bytes")
    assert [shown[name] for name in empty] == [None, "", "", "", 0, 0, 0, 0]
    assert (shown["state"], shown["step_factor"], shown["predicted_step_seconds"]) == ("WAITING", 1.0, None)


def test_a_planned_trial_has_the_plan_and_its_prediction() -> None:
    sized_trial = sized(
        Plan(2, 4, tp=2, pp=2), extra_bytes=3 * MIB, bias_bytes=MIB, reason="the fastest", learned_bytes=7
    )
    shown = as_json(trial_view(trial(sized=changed(sized_trial, step_seconds=0.5, step_factor=1.5)), ONE, {}))
    assert shown["plan"] == sized_trial.plan.to_json() and Plan.from_json(shown["plan"]) == sized_trial.plan
    names = ("plan_reason", "num_ranks", "batch", "predicted_bytes", "extra_bytes", "expected_bytes", "learned_bytes")
    assert [shown[name] for name in names] == ["the fastest", 4, 8, 20 * MIB, 3 * MIB, 18 * MIB, 7]
    assert (shown["predicted_step_seconds"], shown["step_factor"]) == (0.5, 1.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null(value: float) -> None:
    assert as_json(trial_view(trial(value=value), ONE, {}))["value"] is None
    shown = as_json(metric_view(Metric(1, 2, 3, 4, {"loss": value, "accuracy": 0.5}, 5.0)))
    assert shown == {"step": 4, "attempt": 2, "values": {"loss": None, "accuracy": 0.5}, "time": 5.0}


def test_an_attempt_is_shown_with_all_its_fields_but_the_token() -> None:
    begun = attempt(token="a secret", devices=("n/0", "n/1"), plan=Plan(4, dp_shard=2))
    shown = as_json(attempt_view(begun))
    assert "a secret" not in json.dumps(shown)
    inside = {"trial_id", "token", "choice", "device_kinds"}
    assert {field.name for field in fields(begun)} - inside <= set(AttemptView.model_fields) == set(shown)
    assert (shown["devices"], shown["num_ranks"], shown["mib_per_rank"]) == (["n/0", "n/1"], 2, 24)


def test_a_detailed_trial_has_its_attempts_and_the_compared_plans_in_their_order() -> None:
    option = {
        "plan": Plan(8).to_json(), "plan_text": "1 rank, micro-batch 8", "num_ranks": 1, "chosen": True, "fits": True,
        "reserved_mib": 24, "offered_mib": 96, "at_least": False, "traced": True, "evidence": "traced",
        "seconds": None,
        "communication_share": 0.0, "relative_device_seconds": 1.0,
    }  # fmt: skip
    assert set(option) == set(OptionView.model_fields)
    chosen = Option(Plan(8), Prediction(24 * MIB), 96, communication_share=0.0, relative_device_seconds=1.0)
    other = replace(chosen, plan=Plan(4))
    attempts = [attempt(attempt=1, state=AttemptState.ENDED, outcome=Outcome.LOST), attempt(attempt=2)]
    shown = as_json(trial_detail(trial(attempt=2), ONE, {}, attempts, [5], [chosen, other], 17))
    assert [shown_attempt["attempt"] for shown_attempt in shown["attempts"]] == [1, 2] and shown["last_event_id"] == 17
    another = {**option, "plan": Plan(4).to_json(), "plan_text": "1 rank, micro-batch 4", "chosen": False}
    assert shown["options"] == [option, another]
    assert (
        shown.keys() - {"attempts", "shared_with", "options", "unstored", "last_event_id"}
        == TrialView.model_fields.keys()
    )


def test_an_out_of_memory_is_a_lower_bound_and_one_of_an_evaluation_has_the_peak_of_evaluations() -> None:
    done = attempt(outcome=Outcome.DONE, measured_bytes=19 * MIB)
    evaluated = changed(
        attempt(attempt=2, outcome=Outcome.OUT_OF_MEMORY, measured_bytes=31 * MIB, phase=AttemptPhase.EVALUATION),
        prediction=replace(done.prediction, evaluation_bytes=30 * MIB),
    )
    shown = peaks_view(5, TrialState.FAILED, [done, evaluated, replace(evaluated, measured_bytes=0)])
    assert (shown.trial_id, shown.number, shown.state) == (done.trial_id, 5, TrialState.FAILED)
    peaks = [
        (shown_attempt.predicted_bytes // MIB, shown_attempt.measured_bytes // MIB, shown_attempt.lower_bound)
        for shown_attempt in shown.attempts
    ]
    reserved_mib = evaluated.mib_per_rank
    assert peaks == [(20, 19, False), (30, max(31, reserved_mib), True), (30, reserved_mib, True)]


def test_a_log_line_has_the_id_of_its_row() -> None:
    shown = as_json(log_view((9, LogLine(1, 2, 3, 4, 5.0, "step 1"))))
    assert shown == {"id": 9, "attempt": 2, "rank": 3, "time": 5.0, "text": "step 1"}
