"""Samplers with several objectives: what they are shown, and that a restart changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from optuna.trial import TrialState as OptunaState

from scamp_service.lifecycle import TrialState as S
from scamp_service.search import history
from scamp_service.search.proposals import Search
from scamp_service.search.samplers.optuna_study import OptunaStudy
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec
from tests.scamp_service.search.studies import Trial, distance, live, study

SPACE = {"lr": {"low": 1e-4, "high": 1e-1, "log": True}, "depth": {"low": 1, "high": 9}}
GRID = {"lr": {"choice": [1e-4, 1e-3, 1e-2, 1e-1]}, "depth": {"low": 1, "high": 9}}
SAMPLERS = [
    "tpe", "random", "grid", "qmc", "brute_force", {"name": "nsga2", "population_size": 8},
    {"name": "nsga3", "population_size": 8}, {"name": "evolution", "population_size": 8, "sample_size": 4},
]  # fmt: skip


def several(sampler: str | dict[str, object], **more: object) -> StudySpec:
    objective = {"metric": "m", "direction": "minimize"}
    other = {"metric": "predicted.parameters", "direction": "minimize"}
    space = GRID if sampler in ("grid", "brute_force") else SPACE
    return study(space, sampler, objective=objective, objectives=[objective, other], **more)


def ended(trial: Trial) -> Trial:
    """Deep candidates are near the best loss, and large; every fourth is stopped early, every fifth does not fit."""
    quantities = {"parameters": float(trial.params["depth"])}
    if trial.number % 5 == 4:
        return replace(trial, state=S.INFEASIBLE, quantities=quantities)
    value = distance(trial.params)
    state = S.PRUNED if trial.number % 4 == 3 else S.COMPLETED
    return replace(trial, state=state, value=value, values=(value, None), step=10, quantities=quantities)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_a_restart_proposes_the_same_with_several_objectives(sampler: str | dict[str, object]) -> None:
    spec = several(sampler)
    trials = live(Search(spec), ended, 30, at_once=1)
    again = Search(spec).propose(trials[:-1], len(trials) - 1, 1)
    assert again == [trials[-1].params] and len(trials) == 30


def test_a_trial_that_was_stopped_early_is_shown_with_its_values_and_one_without_has_none() -> None:
    spec = several("tpe", predicted={"parameters": {"max": 4}})
    optuna = [OptunaStudy(Space(spec.space), spec.every_objective, ranks_infeasible=ranks) for ranks in (False, True)]
    quantities = {"parameters": 6.0}
    stopped = Trial(0, {"lr": 0.01, "depth": 3}, S.PRUNED, 10, 0.5, (0.5, None), quantities={"parameters": 3.0})
    refused = Trial(1, {"lr": 0.01, "depth": 6}, S.INFEASIBLE, quantities=quantities)
    shown = [history.observation_of(trial, spec.every_objective, spec.predicted) for trial in (stopped, refused)]
    assert all(shown)
    for optuna_study, state in zip(optuna, (OptunaState.PRUNED, OptunaState.COMPLETE), strict=True):
        early, late = (optuna_study.frozen(observation) for observation in shown if observation is not None)
        assert (early.state, early.values) == (OptunaState.COMPLETE, [0.5, 3.0])
        assert late.state is state and late.constraints == {"predicted.parameters.max": 0.5}
