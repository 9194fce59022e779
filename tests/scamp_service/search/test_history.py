"""Samplers are shown results without a value where nothing worked, and a choice of a long history."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search import history
from scamp_service.search.history import Active, History, Observation, observation_of
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives
from tests.scamp_service.search.studies import Trial

MINIMIZE = Objectives((Objective(metric="m", direction="minimize"),))


def history_of(trials: list[Trial]) -> History:
    history_so_far = History(MINIMIZE)
    for trial in trials:
        history_so_far.learn(trial)
    return history_so_far


@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(Trial(0, {}, S.PRUNED, step=20, value=math.nan), id="diverged, as the controller stores it"),
        pytest.param(Trial(0, {}, S.COMPLETED, step=20, value=math.inf), id="infinite"),
        pytest.param(Trial(0, {}, S.INFEASIBLE), id="infeasible"),
    ],
)
def test_a_trial_that_diverged_or_could_not_run_is_shown_without_a_value(trial: Trial) -> None:
    assert observation_of(trial, MINIMIZE) == Observation(0, {}, None)


def test_a_pruned_trial_is_shown_with_its_value_and_the_step_of_its_end() -> None:
    trial = Trial(0, {}, S.PRUNED, step=20, value=0.1)
    assert observation_of(trial, MINIMIZE) == Observation(0, {}, (0.1,), pruned_at=20)


@pytest.mark.parametrize("trial", [Trial(0, {}, S.FAILED), Trial(0, {}, S.CANCELLED, step=5, value=9.0)])
def test_a_trial_that_failed_or_was_cancelled_is_not_shown(trial: Trial) -> None:
    assert observation_of(trial, MINIMIZE) is None


def test_a_trial_is_shown_as_it_was_learned_last_if_it_comes_before_what_is_asked_for() -> None:
    history_so_far = history_of([Trial(0, {}), Trial(1, {}, S.INFEASIBLE), Trial(2, {})])
    history_so_far.learn(Trial(0, {}, S.COMPLETED, value=1.0))
    history_so_far.learn(Trial(1, {}, S.WAITING))
    assert history_so_far.shown(2) == history.Shown([Observation(0, {}, (1.0,))], [Active(1, {})])


def test_a_long_history_is_thinned_but_keeps_its_best_and_its_live_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SHOWN", 40)
    trials = [Trial(number, {}, S.COMPLETED, 100, (number * 7919) % 1000) for number in range(1000)]
    trials[501] = replace(trials[501], state=S.RUNNING)
    shown = history_of(trials).shown(1000)
    assert [trial.number for trial in shown.active] == [501]
    best = sorted((trial for trial in trials if trial.number != 501), key=lambda trial: trial.value or 0.0)[:25]
    assert [trial.number for trial in shown.completed] == sorted(
        {*range(0, 1000, 32), *(trial.number for trial in best)}
    )
    assert shown == history_of(trials[::-1]).shown(1000)


def test_trials_that_are_learned_at_once_rank_as_those_that_are_learned_one_by_one() -> None:
    trials = [Trial(number, {}, S.COMPLETED, 100, (number * 7919) % 1000) for number in range(300)]
    at_once, one_by_one = history_of(trials), History(MINIMIZE)
    for trial in trials:
        one_by_one.learn(trial)
        one_by_one.shown(300, 10)
    for each in (at_once, one_by_one):
        each.learn(replace(trials[7], value=-1.0))
    assert at_once.shown(300, 10) == one_by_one.shown(300, 10)
    assert 7 in [trial.number for trial in at_once.shown(300, 10).completed]


def test_completed_trials_rank_before_pruned_ones_and_those_before_what_did_not_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "MOST_SHOWN", 1)
    ends = [(S.INFEASIBLE, 0, None), (S.PRUNED, 10, 0.1), (S.PRUNED, 20, 0.9), (S.COMPLETED, 100, 0.5)]
    trials = [Trial(number, {}, state, step, value) for number, (state, step, value) in enumerate(ends, 1)]
    for num_best, expected in ((1, [4]), (2, [3, 4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4])):
        monkeypatch.setattr(history, "NUM_BEST_SHOWN", num_best)
        assert [trial.number for trial in history_of(trials).shown(5).completed] == expected
