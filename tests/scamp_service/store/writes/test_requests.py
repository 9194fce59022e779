"""Candidates are enqueued once for each key and besides the budget; a budget only grows, and its study runs again."""

from __future__ import annotations

import pytest

from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.lifecycle import Origin, StudyState, TrialState
from scamp_service.store.store import Store
from scamp_service.store.tallies import tally_study
from scamp_service.store.writes.external import NewTrial
from scamp_service.study.parse import parse_study

SPEC = parse_study(
    {
        "name": "digits",
        "workload": "vit_digits",
        "objective": {"metric": "loss", "direction": "minimize"},
        "space": {"lr": {"low": 0.001, "high": 0.1}},
        "budget": {"trials": 4, "seconds": 60},
    }
).to_json()


def test_candidates_are_enqueued_once_beside_those_of_the_sampler(store: Store) -> None:
    study = store.create_study(SPEC, now=1.0).id
    store.create_trials(study, [(0, {})], now=1.0)
    for _ in range(2):
        assert store.enqueue(study, [{"lr": 0.01}, {"lr": 0.02}], "k", now=2.0) == [1, 2]
    assert store.enqueue(study, [{"lr": 0.01}], "other", now=2.0) == [3]
    store.create_trials(study, [(1, {})], now=3.0)
    origins = [Origin.SEARCH, *[Origin.ENQUEUED] * 3, Origin.SEARCH]
    assert [(trial.number, trial.origin) for trial in store.trials(study)] == list(enumerate(origins))
    assert store.counted(study) == tally_study(store.trials(study), [])
    assert len(store.live_trials()) == 5 and store.external.study_attributes(study, is_system=False) == {}


def test_a_study_is_not_completed_while_an_enqueued_candidate_waits(store: Store) -> None:
    study = store.create_study(SPEC, now=1.0).id
    store.external.create_trials(study, [NewTrial(TrialState.RUNNING)], now=1.0)
    store.enqueue(study, [{"lr": 0.01}], "k", now=2.0)
    assert not store.move_study(study, [StudyState.RUNNING], StudyState.COMPLETED, now=3.0)
    (trial,) = store.live_trials()
    assert store.move_trial(trial.id, TrialState.WAITING, 0, TrialState.FAILED, now=4.0)
    assert store.move_study(study, [StudyState.RUNNING], StudyState.COMPLETED, now=5.0), "others may go on"
    with pytest.raises(Conflict, match="only a running study"):
        store.enqueue(study, [{"lr": 0.01}], "other", now=6.0)
    assert store.enqueue(study, [{"lr": 0.01}], "k", now=6.0) == [1]


def test_a_completed_study_runs_again_with_a_larger_budget(store: Store) -> None:
    study = store.create_study(SPEC, now=1.0).id
    store.move_study(study, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    for _ in range(2):
        store.extend_study(study, {"trials": 9}, now=3.0)
    reopened = store.study(study)
    assert (reopened.state, reopened.finished_at, reopened.spec["budget"]["trials"]) == (StudyState.RUNNING, None, 9)
    assert reopened.spec == {**SPEC, "budget": {**SPEC["budget"], "trials": 9}}
    for limits, words in (
        ({"trials": 8}, "at least 9"),
        ({"steps": 900}, "only trials, seconds, device_hours"),
        ({"device_hours": 1.0}, "no limit budget.device_hours"),
    ):
        with pytest.raises(InvalidInput, match=words):
            store.extend_study(study, limits, now=4.0)
    store.move_study(study, [StudyState.RUNNING], StudyState.STOPPING, now=5.0)
    with pytest.raises(Conflict, match="clone it"):
        store.extend_study(study, {"trials": 12}, now=6.0)


def test_a_study_of_other_programs_takes_no_requests(store: Store) -> None:
    study = store.external.create_study("theirs", {**SPEC, "directions": ["minimize"]}, now=1.0)
    for ask in (lambda: store.enqueue(study, [{}], "k", now=2.0), lambda: store.extend_study(study, {}, now=2.0)):
        with pytest.raises(Conflict, match="run by other programs"):
            ask()
    with pytest.raises(NotFound):
        store.extend_study(99, {"trials": 9}, now=2.0)
