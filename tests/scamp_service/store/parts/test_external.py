"""Trials of other programs have numbers of their own, are counted by themselves, and never touch those of ScaMP."""

from __future__ import annotations

import math
from threading import Thread

import pytest

from scamp_service.errors import Conflict, NotFound
from scamp_service.lifecycle import Origin, StudyState, TrialState
from scamp_service.store.parts.external import Changes, NewTrial
from scamp_service.store.store import Store
from scamp_service.store.tallies import own_states
from tests.recounted import tally_study

SPEC = {"name": "digits", "objective": {"metric": "loss", "direction": "minimize"}}


def numbers(store: Store, study: int) -> list[tuple[int, Origin]]:
    return [(trial.number, trial.origin) for trial in store.trials.page(study)]


def test_trials_of_the_sampler_and_of_others_share_the_numbers_of_a_study(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(0, {}), (1, {})], now=1.0)
    store.external.create_trials(study, [NewTrial(TrialState.RUNNING)], now=1.0)
    for _ in range(2):  # a repetition changes nothing
        store.trials.create(study, [(1, {}), (2, {}), (3, {})], now=1.0)
    ours, theirs = Origin.SEARCH, Origin.EXTERNAL
    assert numbers(store, study) == [(0, ours), (1, ours), (2, theirs), (3, ours), (4, ours)]


def test_a_trial_of_another_program_is_counted_apart_and_not_followed(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(0, {})], now=1.0)
    running, failed = store.external.create_trials(
        study, [NewTrial(TrialState.RUNNING), NewTrial(TrialState.FAILED)], now=1.0
    )
    assert store.counts.states(study) == {TrialState.WAITING: 1, TrialState.RUNNING: 1, TrialState.FAILED: 1}
    assert own_states(store.counts.tallies(study)) == {TrialState.WAITING: 1}
    assert [trial.number for trial in store.trials.live()] == [0]
    store.external.move_trial(running, TrialState.COMPLETED, [0.5], now=2.0)
    assert store.counts.counted(study) == tally_study(store.trials.page(study), [])
    best = store.trials.get(running)
    assert (best.value, best.finished_at, store.trials.get(failed).finished_at) == (0.5, 2.0, 1.0)


def test_nobody_else_changes_a_trial_of_scamp_or_one_that_has_ended(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(0, {})], now=1.0)
    (own_trial,) = (trial.id for trial in store.trials.page(study))
    assert not store.external.move_trial(own_trial, TrialState.RUNNING, now=2.0), "as if somebody else had begun it"
    (ended,) = store.external.create_trials(study, [NewTrial(TrialState.COMPLETED, values=[1.0])], now=1.0)
    for trial_id, why in ((own_trial, "run by ScaMP"), (ended, "already ended")):
        for change in (
            lambda trial_id: store.external.move_trial(trial_id, TrialState.FAILED, now=3.0),
            lambda trial_id: store.external.change_trial(trial_id, Changes({"x": (1.0, 1.0, "{}")})),
            lambda trial_id: store.external.report(trial_id, 1, 1.0, metric="loss", now=3.0),
            lambda trial_id: store.external.change_trial(trial_id, Changes(attributes={(False, "a"): 1})),
        ):
            with pytest.raises(Conflict, match=why):
                change(trial_id)
    assert store.trials.get(own_trial).state is TrialState.WAITING


def test_a_study_of_another_program_has_a_name_of_its_own_and_is_deleted_with_all_it_holds(store: Store) -> None:
    study = store.external.create_study("theirs", SPEC, now=1.0)
    with pytest.raises(Conflict):
        store.external.create_study("theirs", SPEC, now=1.0)
    store.external.set_study_attribute(study, "a", math.inf, is_system=False)
    new = NewTrial(TrialState.RUNNING, {"x": math.nan}, {"x": (0.0, "{}")}, reports={3: 0.5}, user_attributes={"u": 1})
    (trial,) = store.external.create_trials(study, [new], now=1.0)
    assert store.external.study_state(study) is StudyState.EXTERNAL and store.studies.page(live=True) == []
    assert (store.trials.get(trial).params, store.external.reports([trial])) == ({"x": "nan"}, {trial: {3: 0.5}})
    assert store.external.trial_attributes([trial]) == {(trial, False): {"u": 1}}
    store.requests.delete(study, now=2.0)
    with pytest.raises(NotFound):
        store.external.create_trials(study, [new], now=1.0)
    with pytest.raises(NotFound):
        store.external.report(trial, 1, 1.0, metric="loss", now=3.0)
    assert store.external.study_attributes(study, is_system=False) == {}
    later = store.studies.create(SPEC, now=3.0).id
    store.trials.create(later, [(0, {})], now=3.0)
    assert store.removals.deleted_trials() == [trial] and store.removals.remove_trial(trial, limit=10)


def test_what_another_program_has_reported_is_its_learning_curve(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    new = [NewTrial(TrialState.RUNNING, reports={1: 0.5, 2: math.nan}), NewTrial(TrialState.RUNNING)]
    first, second = store.external.create_trials(study, new, now=1.0)
    store.external.report(second, 7, 0.25, metric="loss", now=2.0)
    assert [(row.step, list(row.values)) for row in store.reports.metrics(first)] == [(1, ["loss"]), (2, ["loss"])]
    assert [row.step for row in store.reports.metrics(first, after=1)] == [2]
    assert store.reports.curve_lengths([first, second]) == {first: 2, second: 1}
    assert [point.values for point in store.reports.curves([first, second])[first]] == [{"loss": 0.5}, {"loss": "nan"}]
    assert (store.trials.get(second).value, store.trials.get(second).step) == (0.25, 7)
    assert store.reports.rungs(study, ["loss"], [1, 7]) == {1: {}, 7: {}}, (
        "steps of others are not compared with ScaMP's"
    )


def test_scamp_and_others_that_create_trials_at_once_lose_none(shared_url: str) -> None:
    stores = Store(shared_url), Store(shared_url), Store(shared_url)
    study = stores[0].studies.create(SPEC, now=1.0).id

    def propose() -> None:
        for index in range(30):
            assert stores[0].trials.create(study, [(index, {"place": index})], now=1.0) == 1

    def others(store: Store) -> None:
        for _ in range(15):
            store.external.create_trials(study, [NewTrial(TrialState.RUNNING), NewTrial(TrialState.FAILED)], now=1.0)

    threads = [Thread(target=propose), *(Thread(target=others, args=[store]) for store in stores[1:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = stores[0].trials.page(study)
    assert [trial.number for trial in trials] == list(range(90))
    assert [trial.params["place"] for trial in trials if trial.origin is Origin.SEARCH] == list(range(30))
    for store in stores:
        store.close()
