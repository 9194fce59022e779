"""Complete workloads train under plans that divide a batch, and every alarm of theirs is a false one."""

from __future__ import annotations

from typing import Any

from benchmarks.curves.complete import MANY, Complete, complete, figures
from benchmarks.features.papers import PAPERS
from benchmarks.features.table import FEATURES


def test_features_examples_and_the_live_study_divide_a_batch() -> None:
    cases = list(complete())
    assert all(case.plan.layout.divides_batch for case in cases)
    assert len(cases) <= 150
    of_few_steps = {case.plan for case in cases if case.steps < MANY}
    every = {plan for feature in (*FEATURES, *PAPERS) for plan in feature.plans if plan.layout.divides_batch}
    assert of_few_steps == every
    names = {case.feature.name for case in cases}
    assert {"weights of classes", "DLRM", "convnext.yaml", "ports/gan/study.yaml", "live study, trial 0"} <= names


def test_only_trainings_of_many_steps_count_for_the_cost_and_every_alarm_is_false() -> None:
    cases = list(complete())
    few, many = (next(case for case in cases if (case.steps == MANY) is is_long) for is_long in (False, True))
    other = next(case for case in cases if case is not few and case is not many)
    answers: dict[Complete, dict[str, Any]] = {
        few: {"check_share": 0.5},
        many: {"check_share": 0.01},
        other: {"alarm": "the loss changes"},
    }
    assert figures(answers) == {
        "complete_trained": 2, "false_alarms": 1, "complete_failed": 0, "guard_cost_pct": 1.0,
    }  # fmt: skip
