"""Reads of attempts, and what they say about the past of a family; ``test_store`` has the rest."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from estimators.learning import AttemptPhase, Ending, PastAttempt
from estimators.model import MIB, Layout
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Report
from scamp_service.store import schema
from scamp_service.store.store import Store
from tests.scamp_service.store.trials import hold, measured, new_family, new_study
from tests.values import changed, new_attempt


def test_measured_attempts_come_with_the_number_of_their_trial_some_trials_at_a_time(store: Store) -> None:
    ids = new_study(store, 4)
    measured(store, new_study(store, 1)[0], 999)
    for trial_id, peak in zip(ids[1:], (110, 0, 120), strict=True):
        measured(store, trial_id, peak)
    assert store.reports.end(ids[1], 1, "t", Outcome.OUT_OF_MEMORY, "", now=2.0)
    attempts = store.attempts.measured(1)
    assert [(number, a.trial_id, a.measured_bytes) for number, a in attempts] == [(1, ids[1], 110), (3, ids[3], 120)]
    assert attempts[0][1].outcome is Outcome.OUT_OF_MEMORY
    assert [number for number, _ in store.attempts.measured(1, num_trials=1)] == [1]
    assert [number for number, _ in store.attempts.measured(1, after=ids[1])] == [3]


def test_measured_trials_of_a_chart_are_spread_over_their_errors_and_include_the_worst(store: Store) -> None:
    ids = new_study(store, 60)
    rows = [{"study_id": 1, "trial_id": trial_id, "peak_error_pct": float(at)} for at, trial_id in enumerate(ids)]
    for at in (3, 4, 5):
        rows[at] |= {"num_oom": 1, "least_excess_pct": 10.0 * at}
    for row in rows:
        with store._database.write() as connection:
            connection.execute(sa.insert(schema.measured).values(**row))
    chosen = [ids.index(trial_id) for trial_id in store.attempts.measured_trials(1, 20)]
    assert chosen == sorted(chosen) and len(chosen) <= 20
    assert {0, 3, 4, 5, 59} <= {*chosen}, "the least and the largest errors, and those that ran out of memory"
    assert max(after - before for before, after in pairwise(chosen)) <= 10
    assert len(store.attempts.measured_trials(1, 1000)) == 60
    assert store.attempts.measured_trials(2, 20) == []


def test_a_run_says_whether_it_was_an_evaluation_that_ran_out_of_memory(store: Store) -> None:
    for trial_id, phase in zip(
        ids := new_family(store, "aa"), (AttemptPhase.STEP, AttemptPhase.EVALUATION), strict=True
    ):
        hold(store, trial_id, "a", 1.0)
        assert store.reports.end(trial_id, 1, "t", Outcome.OUT_OF_MEMORY, "", now=2.0, phase=phase)
    endings = {run.trial_id: run.ending for run in store.attempts.family_runs("a", 9)}
    assert endings == {ids[0]: Ending.OUT_OF_MEMORY, ids[1]: Ending.EVALUATION_OUT_OF_MEMORY}


def test_the_past_of_a_family_is_that_of_its_newest_trials_in_all_studies(store: Store) -> None:
    old, new = new_family(store, "ff"), new_family(store, "gffff")
    measured(store, old[0], 1)
    measured(store, old[1], 2)
    assert store.trials.move(old[1], TrialState.RUNNING, 1, TrialState.QUEUED, now=2.0)
    hold(store, old[1], "a", 3.0, attempt=2)
    assert store.reports.add(Report(old[1], 2, "t", measured_bytes=3), now=3.0)
    measured(store, new[0], 4)
    measured(store, new[2], 5)
    runs = [(run.trial_id, run.measured_bytes) for run in store.attempts.family_runs("f", 10)]
    assert runs == [(old[0], 1), (old[1], 2), (old[1], 3), (new[2], 5)], "trials that have not begun teach nothing"
    assert [run.measured_bytes for run in store.attempts.family_runs("f", 2)] == [2, 3, 5], (
        "all attempts of a trial, or none"
    )
    assert store.attempts.family_runs("h", 10) == []


def test_the_past_of_a_family_has_its_step_times(store: Store) -> None:
    (trial_id,) = new_family(store, "f")
    timed = changed(new_attempt(trial_id), step_seconds=0.6, step_factor=1.5)
    assert store.attempts.begin(timed)
    assert store.reports.add(Report(trial_id, 1, "t", measured_bytes=9, step_seconds=0.8, timed_steps=4), now=3.0)
    (run,) = store.attempts.family_runs("f", 10)
    assert (run.predicted_step_seconds, run.step_factor, run.measured_step_seconds) == (0.6, 1.5, 0.8)
    assert run.step_ratio == pytest.approx(2.0), "over what was predicted without what was learned"


def test_an_attempt_is_told_in_the_words_of_the_estimators(store: Store) -> None:
    ids = new_family(store, "f" * (len(Outcome) + 1))
    kinds = ("H200", "L4")
    for trial_id, outcome in zip(ids, [None, *Outcome], strict=True):
        assert store.attempts.begin(new_attempt(trial_id, device_kinds=kinds, extra_bytes=3 * MIB))
        if outcome:
            words = "the gradient of a changes by 9 %"
            assert store.reports.end(trial_id, 1, "t", outcome, words, now=2.0)
    sizes: Any = {"micro_batch": 8, "evaluation_batch": 8}
    run = PastAttempt(0, Layout(), kinds, 17 * MIB, 3 * MIB, 24 * MIB, 0, Ending.OTHER, 1, **sizes)
    telling = (Outcome.DONE, Outcome.OUT_OF_MEMORY, Outcome.DEPENDS_ON_DIVISION)
    done, failed, divided = (ids[1 + list(Outcome).index(outcome)] for outcome in telling)
    evidence = [
        replace(run, trial_id=done, ending=Ending.FINISHED),
        replace(run, trial_id=failed, ending=Ending.OUT_OF_MEMORY),
        replace(run, trial_id=divided, ending=Ending.DEPENDS_ON_DIVISION, why="the gradient of a changes by 9 %"),
    ]
    assert store.attempts.trial_runs([ids[0], failed]) == {ids[0]: [], failed: evidence[1:2]}
    assert store.attempts.family_runs("f", 10) == evidence, (
        "the others have neither a measured peak nor an end that tells"
    )
    for trial_id in set(ids) - {done, failed, divided, ids[1 + list(Outcome).index(Outcome.RESUMES_DIFFERENTLY)]}:
        assert store.reports.add(Report(trial_id, 1, "t", measured_bytes=9), now=3.0)
    assert [run.ending for run in store.attempts.family_runs("f", len(ids))].count(Ending.OTHER) == len(ids) - 4


def test_all_attempts_of_a_study_are_listed(store: Store) -> None:
    first, second = new_study(store, 2)
    hold(store, second, "a", 1.0)
    hold(store, first, "a", 1.0, 2.0)
    hold(store, first, "a", 3.0, attempt=2)
    hold(store, new_study(store, 1)[0], "a", 1.0)
    assert [a.key for a in store.attempts.of_study(1)] == [f"{first}/1", f"{first}/2", f"{second}/1"]


def test_who_shares_a_process_at_the_same_time_is_found(store: Store) -> None:
    spans = [(1.0, 5.0), (2.0, 4.0), (4.5, None), (6.0, None)]
    for trial_id, (began, ended) in zip(new_study(store, 5), spans, strict=False):
        begun = replace(new_attempt(trial_id, now=began), pack="1/1", shared_mib=7)
        assert store.attempts.begin(begun)
        if ended is not None:
            assert store.attempts.move(trial_id, 1, [AttemptState.STARTING], AttemptState.ENDED, now=ended)
    attempts = store.attempts.of_study(1)
    numbers = [trial.number for trial in store.trials.page(1)]
    sharing = [store.attempts.sharing_with(each, 1) for each in attempts]
    assert sharing == [[numbers[place] for place in places] for places in ([0, 1, 2], [0, 1], [0, 2, 3], [2, 3])]
    assert store.attempts.sharing_with(replace(attempts[0], pack=""), 1) == []
