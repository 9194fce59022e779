"""Deleting a study and removing its rows, on each database."""

from __future__ import annotations

import pytest

from scamp_service.errors import Conflict, NotFound
from scamp_service.lifecycle import AttemptState, StudyState, TrialState
from scamp_service.store.store import Store
from tests.services.serving import end, fill


def finish(store: Store, study_id: int) -> None:
    """End the study's running trial and the study."""
    end(store, store.trials.page(study_id)[1].id)
    assert store.studies.move(study_id, [StudyState.RUNNING], StudyState.COMPLETED, now=5.0)


def remove_all(store: Store) -> None:
    """Remove as the sweeper does, two rows at a time."""
    while trials := store.removals.deleted_trials():
        for trial_id in trials:
            while not store.removals.remove_trial(trial_id, limit=2):
                pass
    for study_id in store.removals.deleted_studies_with_events():
        while store.removals.remove_events(study_id, limit=2):
            pass


def test_a_deleted_study_is_gone_at_once_and_deleting_it_again_changes_nothing(store: Store) -> None:
    study = fill(store)
    finish(store, study.id)
    store.requests.delete(study.id, now=6.0)
    for read in (lambda: store.studies.get(study.id), lambda: store.trials.numbered(study.id, 0)):
        with pytest.raises(NotFound):
            read()
    assert store.studies.page() == []
    assert store.counts.totals().studies == {}
    assert store.counts.states(study.id) == {}
    last = store.events.page(after=store.events.last_id() - 1)[0]
    assert (last.kind, last.study_id, last.data["state"]) == ("study", study.id, "DELETED")
    store.requests.delete(study.id, now=7.0)
    assert store.events.last_id() == last.id


def test_a_study_that_has_not_ended_is_not_deleted(store: Store) -> None:
    study = fill(store)
    with pytest.raises(Conflict, match=f"scamp stop {study.id}"):
        store.requests.delete(study.id, now=6.0)
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.STOPPING, now=6.0)
    with pytest.raises(Conflict, match="is STOPPING"):
        store.requests.delete(study.id, now=6.0)
    running = store.trials.page(study.id)[1]
    assert store.trials.move(running.id, TrialState.RUNNING, 1, TrialState.CANCELLED, now=6.0)
    assert store.studies.move(study.id, [StudyState.STOPPING], StudyState.STOPPED, now=6.0)
    with pytest.raises(Conflict, match="still being stopped"):
        store.requests.delete(study.id, now=6.0)
    assert store.attempts.move(running.id, 1, [AttemptState.RUNNING], AttemptState.ENDED, now=6.0)
    store.requests.delete(study.id, now=6.0)


def test_a_study_that_never_was_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="no study 7"):
        store.requests.delete(7, now=1.0)


def test_rows_go_a_few_at_a_time_and_those_of_other_studies_stay(store: Store) -> None:
    gone, kept = fill(store), fill(store)
    finish(store, gone.id)
    ids = [trial.id for trial in store.trials.page(gone.id)]
    store.requests.delete(gone.id, now=6.0)
    assert not store.removals.remove_trial(ids[0], limit=2), "it has three evaluations"
    remove_all(store)
    assert store.trials.page(gone.id) == []
    assert store.reports.metrics(ids[0]) == []
    assert store.attempts.of_trial(ids[0]) == []
    assert [event.data["state"] for event in store.events.page(study_id=gone.id)] == ["DELETED"], (
        "the newest of all stays"
    )
    assert len(store.trials.page(kept.id)) == 3 and len(store.reports.metrics(store.trials.page(kept.id)[0].id)) == 3


def test_the_key_of_a_deleted_study_may_be_used_again(store: Store) -> None:
    spec = {"name": "a", "objective": {"metric": "m", "direction": "maximize"}}
    first = store.studies.create(spec, idempotency_key="key", now=1.0)
    assert store.studies.move(first.id, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    store.requests.delete(first.id, now=3.0)
    second = store.studies.create({**spec, "name": "b"}, idempotency_key="key", now=4.0)
    assert second.id > first.id


def test_files_go_with_the_last_study_that_uses_them(store: Store) -> None:
    spec = {"name": "a", "objective": {"metric": "m", "direction": "maximize"}}
    code = store.blobs.put(b"a zip")
    first, second = (store.studies.create(spec, code=code, now=1.0) for _ in range(2))
    for study in (first, second):
        assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    store.requests.delete(first.id, now=3.0)
    assert store.removals.remove_unused_code() == [] and store.blobs.get(code) == b"a zip"
    store.requests.delete(second.id, now=3.0)
    assert store.removals.remove_unused_code() == [code]
    with pytest.raises(NotFound):
        store.blobs.get(code)
