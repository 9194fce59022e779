"""The bound on what is left to gain: Optuna's, and the same after a restart."""

from __future__ import annotations

from dataclasses import replace

import optuna
import pytest
from optuna.terminator import RegretBoundEvaluator

from scamp_service.lifecycle import TrialState
from scamp_service.search.proposals import Search, needs_own_process, reads_history
from scamp_service.search.running.remote_search import RemoteSearch
from scamp_service.search.samplers.optuna_study import optuna_is_silent
from scamp_service.search.space import Space
from tests.scamp_service.search.studies import Trial, distance, live, study
from tests.studies import refusal
from tests.studies import study as plain

SPEC = study(sampler="random", budget={"trials": 100, "terminator": {"regret": 0.5, "min_trials": 10}})


def ended(trial: Trial) -> Trial:
    return replace(trial, state=TrialState.COMPLETED, value=distance(trial.params), step=100)


def test_the_bound_is_that_of_optuna_and_falls_as_trials_end() -> None:
    assert needs_own_process(SPEC), "it needs torch"
    assert reads_history(SPEC), "it needs results, also where the sampler needs none"
    trials = live(Search(study(sampler="random")), ended, 40, at_once=1)
    bounds = []
    for num in (9, 12, 40):
        search = Search(SPEC)
        search.propose(trials[:num], num, 1)
        bounds.append(search.regret)
    few, first, last = bounds
    assert few is None
    assert first is not None
    assert last is not None
    assert 0 < last < first
    space = Space(SPEC.space)
    shown = [
        optuna.trial.create_trial(
            value=trial.value, params=space.encoded(trial.params), distributions=space.distributions
        )
        for trial in trials[:12]
    ]
    with optuna_is_silent():
        theirs = RegretBoundEvaluator(seed=SPEC.search.seed)
    assert first == pytest.approx(theirs.evaluate(shown, optuna.study.StudyDirection.MINIMIZE))
    restarted = Search(SPEC)
    restarted.propose(trials[:12], 12, 1)
    assert restarted.regret == first
    restarted.propose([], 12, 1)
    assert restarted.regret is None, "there is nothing new"


@pytest.mark.full
def test_a_process_answers_with_the_bound_too() -> None:
    trials = live(Search(study(sampler="random")), ended, 12, at_once=1)
    search, here = RemoteSearch(SPEC, None), Search(SPEC)
    try:
        search.propose(trials, 12, 1)
    finally:
        search.close()
    here.propose(trials, 12, 1)
    assert search.regret == here.regret is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objectives": [{"metric": "a"}, {"metric": "b"}], "objective": {"metric": "a"}}, "bounds the regret of one"),
        (
            {
                "space": {
                    "on": {"choice": [True, False], "when": {"off": 1}},
                    "off": {"choice": [1], "when": {"on": True}},
                }
            },
            "",
        ),
    ],
)
def test_a_terminator_that_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    assert words in refusal({**plain(budget={"terminator": {"regret": 0.1}}), **change})
