"""A study ends at the first of its limits, with the reason in words."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.limits import Used, limit_reached
from scamp_service.study.spec import StudySpec
from tests.values import trial


def study(*metrics: str, **budget: Any) -> StudySpec:
    objectives = [{"metric": metric, "direction": "minimize"} for metric in metrics]
    return StudySpec.model_validate(
        {
            "name": "s",
            "workload": "file.py:W",
            "space": {"lr": {"low": 0.1, "high": 1.0}},
            "budget": {"trials": 9, **budget},
            **({"objectives": objectives} if len(objectives) > 1 else {"objective": objectives[0]}),
        }
    )


@pytest.mark.parametrize(
    ("budget", "used", "why"),
    [
        ({"seconds": 60}, Used(59.9), ""),
        ({"seconds": 60}, Used(60), "its 60 s (budget.seconds)"),
        ({"device_hours": 2}, Used(1e9, device_hours=1.99), ""),
        ({"device_hours": 2}, Used(0, device_hours=2), "its 2 device-hours"),
    ],
)
def test_each_limit_of_the_budget_ends_it(budget: dict[str, Any], used: Used, why: str) -> None:
    reached = limit_reached(study("loss", **budget), used)
    assert bool(reached) is bool(why)
    assert reached is None or why in reached.why


def test_a_target_of_several_is_reached_by_one_trial_that_lives_or_has_completed() -> None:
    spec = study("loss", "seconds", target={"loss": 0.5, "seconds": 10.0})
    far = {0: (S.COMPLETED, (0.4, 11.0)), 1: (S.COMPLETED, (0.6, 9.0)), 2: (S.PRUNED, (0.4, 9.0))}
    assert not limit_reached(spec, Used(0, scores=far))
    reached = limit_reached(spec, Used(0, scores={**far, 3: (S.PAUSED, (0.5, 10.0))}))
    assert reached and reached.why.startswith("trial 3 has reached") and "drop the target" in reached.remedy


def test_the_target_of_a_study_with_repeats_is_reached_by_their_mean() -> None:
    spec = study("loss", target=0.5).model_copy(update={"repeats": 3})
    once, often = trial(state=S.PAUSED, value=0.4), trial(state=S.COMPLETED, value=0.45)
    assert not limit_reached(spec, Used(0, leaders=[once]))
    assert limit_reached(spec, Used(0, leaders=[once, often]))
    several = study("loss", "seconds", target={"loss": 0.5}).model_copy(update={"repeats": 3})
    assert not limit_reached(several, Used(0, scores={0: (S.PAUSED, (0.4, 1.0))}))
