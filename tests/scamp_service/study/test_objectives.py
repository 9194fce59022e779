"""The values of trials in several objectives, measured and predicted, and the words about studies that have them."""

from __future__ import annotations

import math

import pytest

from estimators.model import MIB
from scamp_service.lifecycle import TrialState as S
from scamp_service.study.objectives import Objectives
from scamp_service.study.parse import parse_study
from tests.studies import refusal, study
from tests.values import trial

ACCURACY, PEAK = {"metric": "accuracy"}, {"metric": "predicted.peak_mib", "direction": "minimize"}
BOTH = {**study(), "objectives": [PEAK, ACCURACY]}
del BOTH["objective"]
EVERY = parse_study(BOTH).every_objective


def test_the_leading_objective_is_the_first_that_is_measured() -> None:
    spec = parse_study(BOTH)
    assert spec.objective.metric == "accuracy" and spec.to_json()["objective"]["metric"] == "accuracy"
    assert parse_study(spec.to_json()) == parse_study(spec.as_given()) == spec
    assert Objectives.of_spec(spec.to_json()) == EVERY and str(EVERY) == (
        "minimize predicted.peak_mib and maximize accuracy"
    )
    single = parse_study({**study(objectives=[ACCURACY]), "objective": None} | {"objective": ACCURACY})
    assert single.every_objective == parse_study(study(objective=ACCURACY)).every_objective


def test_values_are_measured_or_those_of_the_plan() -> None:
    measured = trial(value=0.5, values=(None, 0.5), predicted_bytes=20 * MIB)
    assert EVERY.values_of(measured) == (20.0, 0.5)
    assert EVERY.each_of(trial(predicted_bytes=20 * MIB)) == [20.0, None]
    assert EVERY.values_of(trial(plan=None, value=0.5, values=(None, 0.5))) is None
    assert EVERY.values_of(trial(value=math.nan, values=(None, 0.5))) is None, "it diverged"
    assert EVERY.broken(trial(value=math.inf, values=(None, math.inf))) == ("accuracy", math.inf)
    assert Objectives(EVERY.items[:1]).values_of(trial(predicted_bytes=20 * MIB)) == (20.0,)
    assert Objectives(EVERY.items[1:]).values_of(trial(value=0.25)) == (0.25,)


def test_the_front_is_that_of_completed_trials_while_there_are_any() -> None:
    def ended(number: int, accuracy: float, mib: int, state: S = S.COMPLETED) -> object:
        return trial(number=number, state=state, value=accuracy, values=(None, accuracy), predicted_bytes=mib * MIB)

    trials = [ended(0, 0.9, 30), ended(1, 0.8, 20), ended(2, 0.7, 25), ended(3, 1.0, 10, S.RUNNING)]
    assert [row.number for row in EVERY.front_of(trials)] == [0, 1]  # type: ignore[type-var, attr-defined]
    assert [row.number for row in EVERY.front_of(trials[3:])] == [3]  # type: ignore[type-var, attr-defined]
    assert EVERY.dominates((20.0, 0.8), (25.0, 0.7)) and not EVERY.dominates((20.0, 0.8), (20.0, 0.8))
    assert Objectives(EVERY.items[1:]).front_of(trials) == []  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objectives": [ACCURACY, {**PEAK, "metric": "predicted.peak"}]}, "did you mean predicted.peak_mib?"),
        ({"objectives": [ACCURACY, ACCURACY]}, "objectives: each must have another metric"),
        ({"objective": {"metric": "loss"}, "objectives": [ACCURACY, PEAK]}, "give objective or objectives, not both"),
        ({"objectives": 3}, "objectives: must be a valid list"),
        (
            {"objectives": [ACCURACY, {"metrik": "loss"}]},
            "objectives.1.metric is missing; objectives.1.metrik: unknown",
        ),
        ({"search": {"sampler": "cmaes"}}, "search.sampler: cmaes knows one objective, and this study has 2;"),
        ({"search": {"sampler": {"name": "tune", "searcher": "hyperopt"}}}, "search.sampler: tune knows one objective"),
        ({"stopping": {"rule": "patience"}}, "stopping: patience judges a trial by one value"),
        ({"stopping": [{"rule": "asha"}, {"rule": "threshold", "upper": 3}]}, "stopping: threshold judges a trial by"),
        (
            {"budget": {"target": 0.9}},
            "budget.target: give a value for each objective that matters, such as {predicted.",
        ),
    ],
)
def test_what_makes_no_sense_with_several_objectives_is_refused_in_words(change: dict[str, object], words: str) -> None:
    assert words in refusal({**BOTH, **change})
