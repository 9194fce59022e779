"""Reads of the API and the dashboard, on each kind of database."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest

from estimators.learning import AttemptPhase, Ending, PastAttempt
from estimators.model import MIB, Layout
from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Metric, Report, Totals, TrialChanges
from scamp_service.store.store import Store
from scamp_service.study.objective import Objective
from tests.scamp_service.store.trials import run
from tests.services.serving import SECRET, fill
from tests.values import changed, new_attempt, sized


def new_study(store: Store, num_trials: int) -> list[int]:
    """A study's queued trials."""
    study = store.create_study({"name": "digits"}, now=0.0)
    store.create_trials(study.id, [(number, {}) for number in range(num_trials)], now=0.0)
    ids = [trial.id for trial in store.trials(study.id)]
    for trial_id in ids:
        assert store.move_trial(trial_id, TrialState.WAITING, 0, TrialState.QUEUED, sized=sized(), now=0.0)
    return ids


def hold(store: Store, trial_id: int, devices: str, began: float, ended: float | None = None, attempt: int = 1) -> None:
    """An attempt on the devices (one letter each) from ``began`` to ``ended``; an ended one queues the trial again."""
    assert store.begin_attempt(new_attempt(trial_id, attempt, devices=tuple(devices), predicted_bytes=100, now=began))
    if ended is not None:
        assert store.move_trial(trial_id, TrialState.RUNNING, attempt, TrialState.QUEUED, now=ended)
        assert store.move_attempt(trial_id, attempt, [AttemptState.STARTING], AttemptState.ENDED, now=ended)


def value(store: Store, trial_id: int, acc: float, state: TrialState = TrialState.COMPLETED) -> None:
    hold(store, trial_id, "a", 1.0)
    rows = [Metric(trial_id, 1, 1, 10, {"acc": acc}, 2.0)]
    assert store.report(Report(trial_id, 1, "t", metrics=rows, objectives=["acc"]), now=2.0)
    assert store.move_trial(trial_id, TrialState.RUNNING, 1, state, now=3.0)


def best(store: Store, direction: Literal["maximize", "minimize"]) -> int | None:
    trial = store.best_trial(1, Objective(metric="acc", direction=direction))
    return trial.number if trial else None


def test_the_best_trial_is_a_completed_one(store: Store) -> None:
    ids = new_study(store, 6)
    assert best(store, "maximize") is None
    value(store, ids[0], 0.9, TrialState.RUNNING)
    value(store, ids[1], 0.2, TrialState.RUNNING)
    value(store, ids[2], 0.99, TrialState.PRUNED)
    assert (best(store, "maximize"), best(store, "minimize")) == (0, 1)
    value(store, ids[3], 0.5)
    value(store, ids[4], 0.5)
    assert (best(store, "maximize"), best(store, "minimize")) == (3, 3)
    value(store, ids[5], 0.4)
    assert (best(store, "maximize"), best(store, "minimize")) == (3, 5)


def test_a_trial_whose_objective_is_not_finite_is_never_the_best(store: Store) -> None:
    ids = new_study(store, 4)
    for trial_id, state, broken in zip(
        ids,
        [TrialState.COMPLETED, TrialState.COMPLETED, TrialState.RUNNING],
        [math.nan, math.inf, -math.inf],
        strict=False,
    ):
        value(store, trial_id, broken, state)
    assert best(store, "maximize") is best(store, "minimize") is None
    value(store, ids[3], -1e300)
    assert best(store, "maximize") == best(store, "minimize") == 3


def test_totals_count_all_studies(store: Store) -> None:
    assert store.study_totals() == Totals({}, {}, 0)
    first, second = new_study(store, 2), new_study(store, 1)
    hold(store, first[0], "a", 1.0)
    hold(store, second[0], "a", 1.0, ended=2.0)
    assert store.move_study(2, [StudyState.RUNNING], StudyState.COMPLETED, now=3.0)
    states = {StudyState.RUNNING: 1, StudyState.COMPLETED: 1}
    assert store.study_totals() == Totals(states, {TrialState.RUNNING: 1, TrialState.QUEUED: 2}, 1)


def test_device_seconds_are_held_devices_times_time(store: Store) -> None:
    first, second = new_study(store, 2)
    other = new_study(store, 1)[0]
    assert store.device_seconds(1, now=100.0) == 0.0
    hold(store, first, "ab", 10.0, 15.0)
    hold(store, first, "abcd", 20.0, attempt=2)
    hold(store, second, "c", 20.0, 21.5)
    hold(store, other, "a", 0.0, 1000.0)
    assert store.device_seconds(1, now=22.0) == 2 * 5.0 + 4 * 2.0 + 1.5
    mib = store.study_attempts(1)[0].mib_per_rank
    assert mib and store.mib_seconds() == {1: mib * (2 * 5.0 + 1.5), 2: mib * 1000.0}, "of attempts that have ended"
    assert store.project(1) == store.study(1).spec.get("project", "") and store.project(77) == ""


def test_measured_attempts_come_with_the_number_of_their_trial_some_trials_at_a_time(store: Store) -> None:
    ids = new_study(store, 4)
    measured(store, new_study(store, 1)[0], 999)
    for trial_id, peak in zip(ids[1:], (110, 0, 120), strict=True):
        measured(store, trial_id, peak)
    assert store.report_outcome(ids[1], 1, "t", Outcome.OUT_OF_MEMORY, "", now=2.0)
    attempts = store.measured_attempts(1)
    assert [(number, a.trial_id, a.measured_bytes) for number, a in attempts] == [(1, ids[1], 110), (3, ids[3], 120)]
    assert attempts[0][1].outcome is Outcome.OUT_OF_MEMORY
    assert [number for number, _ in store.measured_attempts(1, num_trials=1)] == [1]
    assert [number for number, _ in store.measured_attempts(1, after=ids[1])] == [3]


def test_a_run_says_whether_it_was_an_evaluation_that_ran_out_of_memory(store: Store) -> None:
    for trial_id, phase in zip(
        ids := new_family(store, "aa"), (AttemptPhase.STEP, AttemptPhase.EVALUATION), strict=True
    ):
        hold(store, trial_id, "a", 1.0)
        assert store.report_outcome(trial_id, 1, "t", Outcome.OUT_OF_MEMORY, "", now=2.0, phase=phase)
    endings = {run.trial_id: run.ending for run in store.family_runs("a", 9)}
    assert endings == {ids[0]: Ending.OUT_OF_MEMORY, ids[1]: Ending.EVALUATION_OUT_OF_MEMORY}


def measured(store: Store, trial_id: int, peak: int) -> None:
    hold(store, trial_id, "a", 1.0)
    assert store.report(Report(trial_id, 1, "t", measured_bytes=peak), now=2.0)


def new_family(store: Store, names: str) -> list[int]:
    """A study with a trial of each family, planned."""
    study = store.create_study({"name": "digits"}, now=0.0)
    store.create_trials(study.id, [(number, {}) for number in range(len(names))], now=0.0)
    ids = [trial.id for trial in store.trials(study.id)]
    for trial_id, name in zip(ids, names, strict=True):
        assert store.move_trial(
            trial_id,
            TrialState.WAITING,
            0,
            TrialState.QUEUED,
            sized=sized(),
            changes=TrialChanges(family=name),
            now=0.0,
        )
    return ids


def test_the_past_of_a_family_is_that_of_its_newest_trials_in_all_studies(store: Store) -> None:
    old, new = new_family(store, "ff"), new_family(store, "gffff")
    measured(store, old[0], 1)
    measured(store, old[1], 2)
    assert store.move_trial(old[1], TrialState.RUNNING, 1, TrialState.QUEUED, now=2.0)
    hold(store, old[1], "a", 3.0, attempt=2)
    assert store.report(Report(old[1], 2, "t", measured_bytes=3), now=3.0)
    measured(store, new[0], 4)
    measured(store, new[2], 5)
    runs = [(run.trial_id, run.measured_bytes) for run in store.family_runs("f", 10)]
    assert runs == [(old[0], 1), (old[1], 2), (old[1], 3), (new[2], 5)], "trials that have not begun teach nothing"
    assert [run.measured_bytes for run in store.family_runs("f", 2)] == [2, 3, 5], "all attempts of a trial, or none"
    assert store.family_runs("h", 10) == []


def test_the_past_of_a_family_has_its_step_times(store: Store) -> None:
    (trial_id,) = new_family(store, "f")
    timed = changed(new_attempt(trial_id), step_seconds=0.6, step_factor=1.5)
    assert store.begin_attempt(timed)
    assert store.report(Report(trial_id, 1, "t", measured_bytes=9, step_seconds=0.8, timed_steps=4), now=3.0)
    (run,) = store.family_runs("f", 10)
    assert (run.predicted_step_seconds, run.step_factor, run.measured_step_seconds) == (0.6, 1.5, 0.8)
    assert run.step_ratio == pytest.approx(2.0), "over what was predicted without what was learned"


def test_an_attempt_is_told_in_the_words_of_the_estimators(store: Store) -> None:
    ids = new_family(store, "f" * (len(Outcome) + 1))
    kinds = ("H200", "L4")
    for trial_id, outcome in zip(ids, [None, *Outcome], strict=True):
        assert store.begin_attempt(new_attempt(trial_id, device_kinds=kinds, extra_bytes=3 * MIB))
        if outcome:
            words = "the gradient of a changes by 9 %"
            assert store.report_outcome(trial_id, 1, "t", outcome, words, now=2.0)
    sizes: Any = {"micro_batch": 8, "evaluation_batch": 8}
    run = PastAttempt(0, Layout(), kinds, 17 * MIB, 3 * MIB, 24 * MIB, 0, Ending.OTHER, 1, **sizes)
    telling = (Outcome.DONE, Outcome.OUT_OF_MEMORY, Outcome.DEPENDS_ON_DIVISION)
    done, failed, divided = (ids[1 + list(Outcome).index(outcome)] for outcome in telling)
    evidence = [
        replace(run, trial_id=done, ending=Ending.FINISHED),
        replace(run, trial_id=failed, ending=Ending.OUT_OF_MEMORY),
        replace(run, trial_id=divided, ending=Ending.DEPENDS_ON_DIVISION, why="the gradient of a changes by 9 %"),
    ]
    assert store.trial_runs([ids[0], failed]) == {ids[0]: [], failed: evidence[1:2]}
    assert store.family_runs("f", 10) == evidence, "the others have neither a measured peak nor an end that tells"
    for trial_id in set(ids) - {done, failed, divided, ids[1 + list(Outcome).index(Outcome.RESUMES_DIFFERENTLY)]}:
        assert store.report(Report(trial_id, 1, "t", measured_bytes=9), now=3.0)
    assert [run.ending for run in store.family_runs("f", len(ids))].count(Ending.OTHER) == len(ids) - 4


def test_the_families_of_a_study_begin_with_the_largest(store: Store) -> None:
    new_family(store, "a")
    new_family(store, "baab")
    new_family(store, "bcc")
    assert store.families(2) == ["a", "b"] and store.families(3) == ["c", "b"]
    new_study(store, 1)
    assert store.families(4) == [], "not planned yet, or by a version that knew no families"


def test_all_attempts_of_a_study_are_listed(store: Store) -> None:
    first, second = new_study(store, 2)
    hold(store, second, "a", 1.0)
    hold(store, first, "a", 1.0, 2.0)
    hold(store, first, "a", 3.0, attempt=2)
    hold(store, new_study(store, 1)[0], "a", 1.0)
    assert [a.key for a in store.study_attempts(1)] == [f"{first}/1", f"{first}/2", f"{second}/1"]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_of_a_curve_have_each_step_once_however_often_it_was_reported(store: Store, limit: int) -> None:
    study = fill(store)
    trial_id = store.trials(study.id)[1].id
    steps = [1, 1, 1, 1, 1, 2, 3, 3, 4, 5, 5, 5]
    rows = [Metric(trial_id, 1, seq, step, {"accuracy": float(seq)}, 1.0) for seq, step in enumerate(steps)]
    assert store.report(Report(trial_id, 1, SECRET, metrics=rows, objectives=["accuracy"]), now=1.0)
    curve: list[Metric] = []
    while page := store.metrics(trial_id, after=curve[-1].step if curve else -1, limit=limit):
        assert len(page) <= limit
        curve += page
    assert [(row.step, row.seq) for row in curve] == [(1, 4), (2, 5), (3, 7), (4, 8), (5, 11)], "the newest row counts"
    assert [point.values["accuracy"] for point in store.curves([trial_id])[trial_id]] == [4.0, 5.0, 7.0, 8.0, 11.0]


@pytest.mark.parametrize(
    ("best_of", "expected"), [("", {"acc": 0.6, "loss": None}), ("maximize", {"acc": 0.7, "loss": 0.3})]
)
def test_the_metrics_of_a_trial_are_those_of_the_evaluation_that_it_counts_by(
    store: Store, best_of: Literal["", "maximize"], expected: dict[str, float | None]
) -> None:
    trial_id = run(store)
    assert store.counted_metrics([trial_id]) == {}
    curve = [(10, 0.5, 0.9), (20, 0.7, 0.3), (30, 0.6, math.nan)]
    metrics = [Metric(trial_id, 1, step, step, {"acc": acc, "loss": loss}, 1.0) for step, acc, loss in curve]
    report = Report(trial_id, 1, "token-1", metrics=metrics, objectives=["acc"], best_of=best_of)
    assert store.report(report, now=6.0)
    assert store.counted_metrics([trial_id]) == {trial_id: expected}
