"""Candidates are enqueued once for each key and besides the budget; a limit that has ended a study can be raised, and
then its study runs again; a study can have another priority."""

from __future__ import annotations

import pytest

from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.lifecycle import Origin, StudyState, TrialState, WaitsFor
from scamp_service.model import Json, TrialChanges
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
WHY = "the study has used up its 60 s (budget.seconds)"


def all_tried(store: Store) -> int:
    """A study that is COMPLETED since all its trials are; the first one reported a loss of 0.25."""
    study = store.create_study(SPEC, now=1.0).id
    store.create_trials(study, [(place, {}) for place in range(4)], now=1.0)
    for trial in store.trials(study):
        end(store, trial.id, TrialState.COMPLETED, value=0.25 + trial.number)
    assert store.move_study(study, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    return study


def ended_by_time(store: Store) -> int:
    """A study that ran out of seconds: one trial is COMPLETED, one was cancelled for that, one for something else."""
    study = store.create_study(SPEC, now=1.0).id
    store.create_trials(study, [(place, {}) for place in range(3)], now=1.0)
    first, second, third = store.trials(study)
    end(store, first.id, TrialState.COMPLETED, value=0.25)
    end(store, second.id, TrialState.CANCELLED, WHY)
    end(store, third.id, TrialState.CANCELLED, "stopped by the user")
    assert store.move_study(study, [StudyState.RUNNING], StudyState.COMPLETED, reason=WHY, now=62.0)
    return study


def stopped(store: Store) -> int:
    """A study that its user has stopped."""
    study = store.create_study(SPEC, now=1.0).id
    store.move_study(study, [StudyState.RUNNING], StudyState.STOPPING, now=5.0)
    return study


def end(store: Store, trial_id: int, state: TrialState, reason: str = "", value: float | None = None) -> None:
    """Move a WAITING trial to a state in which it has ended."""
    changes = TrialChanges() if value is None else TrialChanges(value=value)
    assert store.move_trial(trial_id, TrialState.WAITING, 0, state, reason=reason, changes=changes, now=2.0)


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


def test_a_completed_study_runs_again_for_an_enqueued_candidate_unless_it_has_reached_a_limit(store: Store) -> None:
    study = all_tried(store)
    for _ in range(2):
        assert store.enqueue(study, [{"lr": 0.01}], "k", now=6.0) == [4]
    again = store.study(study)
    assert (again.state, again.finished_at, again.spec) == (StudyState.RUNNING, None, SPEC)
    assert store.counted(study) == tally_study(store.trials(study), [])
    with pytest.raises(Conflict, match="clone it"):
        store.enqueue(stopped(store), [{"lr": 0.01}], "k", now=6.0)
    late = all_tried(store)
    with pytest.raises(Conflict, match=r"would end at once: .* its 60 s .*; extend it first: .* 61 s ago"):
        store.enqueue(late, [{"lr": 0.01}], "k", now=62.0)
    assert store.study(late).state is StudyState.COMPLETED and len(store.trials(late)) == 4


def test_a_completed_study_runs_again_with_a_larger_budget(store: Store) -> None:
    study = all_tried(store)
    for _ in range(2):
        store.extend_study(study, {"trials": 9}, now=3.0)
    reopened = store.study(study)
    assert (reopened.state, reopened.finished_at, reopened.spec["budget"]["trials"]) == (StudyState.RUNNING, None, 9)
    assert reopened.spec == {**SPEC, "budget": {**SPEC["budget"], "trials": 9}}
    for limits, words in (
        ({"trials": 8}, "at least 9"),
        ({"steps": 900}, "only trials, seconds, device_hours, target, max_concurrent"),
        ({"trials": None}, "cannot be dropped later; only seconds"),
        ({"device_hours": -1.0}, "device_hours"),
        ({"target": {"accuracy": 0.9}}, "target"),
    ):
        with pytest.raises(InvalidInput, match=words):
            store.extend_study(study, limits, now=4.0)
    with pytest.raises(Conflict, match="clone it"):
        store.extend_study(stopped(store), {"trials": 12}, now=6.0)


def test_trials_that_a_limit_has_cancelled_continue_once_it_is_raised_or_dropped(store: Store) -> None:
    for limits in ({"seconds": 600}, {"seconds": None}):
        study = ended_by_time(store)
        with pytest.raises(Conflict, match=r"has used up its 61 s .* 69 s ago: name more, or drop seconds"):
            store.extend_study(study, {"seconds": 61}, now=70.0)
        for _ in range(2):
            store.extend_study(study, limits, now=70.0)
        again = store.study(study)
        assert (again.state, again.reason) == (StudyState.RUNNING, "")
        assert again.spec["budget"]["seconds"] == limits["seconds"]
        trials = store.trials(study)
        states = [TrialState.COMPLETED, TrialState.WAITING, TrialState.CANCELLED]
        assert [trial.state for trial in trials] == states, "what something else has cancelled stays"
        assert (trials[1].waits_for, trials[1].finished_at) == (WaitsFor.NEW_PLAN, None)
        assert store.counted(study) == tally_study(trials, [])
        events = store.events(study_id=study)
        assert [(event.kind, event.data["state"]) for event in events[-2:]] == [
            ("trial", TrialState.WAITING),
            ("study", StudyState.RUNNING),
        ]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"seconds": 600}, "has tried all its 4 trials .*; raise trials, too"),
        ({"max_concurrent": 2}, "has tried all its 4 trials"),
        ({"trials": 9, "target": 0.5}, "would end at once: trial 0 has reached the target of 0.5, with 0.25; name a"),
    ],
)
def test_a_study_that_would_have_nothing_to_do_is_not_extended(store: Store, limits: Json, words: str) -> None:
    study = all_tried(store)
    with pytest.raises(Conflict, match=words):
        store.extend_study(study, limits, now=6.0)
    assert store.study(study).state is StudyState.COMPLETED and store.study(study).spec == SPEC


def test_a_study_whose_sampler_had_nothing_left_is_not_extended(store: Store) -> None:
    study = store.create_study(SPEC, now=1.0).id
    store.move_study(study, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    with pytest.raises(Conflict, match="no candidates left after 0 trials; enqueue"):
        store.extend_study(study, {"trials": 9}, now=6.0)


def test_a_study_that_is_just_ending_at_a_limit_is_extended_a_moment_later(store: Store) -> None:
    study = store.create_study(SPEC, now=1.0).id
    completed = StudyState.COMPLETED
    store.move_study(study, [StudyState.RUNNING], StudyState.STOPPING, reason=WHY, ends_as=completed, now=61.0)
    with pytest.raises(Conflict, match="try again in a few seconds"):
        store.extend_study(study, {"seconds": 600}, now=62.0)


def test_limits_that_were_never_set_are_added_and_those_that_only_bound_others_are_replaced(store: Store) -> None:
    study = store.create_study({**SPEC, "budget": {**SPEC["budget"], "terminator": {"regret": 0.1}}}, now=1.0).id
    store.note_regret(study, 0.05, now=2.0)
    with pytest.raises(Conflict, match="drop the terminator"):
        store.extend_study(study, {"trials": 8}, now=2.0)
    store.extend_study(study, {"terminator": None, "device_hours": 2.0, "target": 0.1, "max_concurrent": 3}, now=2.0)
    store.extend_study(study, {"target": 0.05, "max_concurrent": 1, "device_hours": None}, now=2.0)
    limits = {name: store.study(study).spec["budget"][name] for name in ("target", "max_concurrent", "device_hours")}
    assert limits == {"target": 0.05, "max_concurrent": 1, "device_hours": None}


def test_a_study_has_another_priority(store: Store) -> None:
    study = store.create_study(SPEC, now=1.0).id
    for _ in range(2):
        store.prioritize_study(study, 7, now=2.0)
    assert store.study(study).spec == {**SPEC, "priority": 7}
    assert [event.kind for event in store.events(study_id=study)] == ["study", "study"], "a repeated request is none"
    with pytest.raises(InvalidInput, match="priority"):
        store.prioritize_study(study, 101, now=2.0)


def test_a_study_of_other_programs_takes_no_requests(store: Store) -> None:
    study = store.external.create_study("theirs", {**SPEC, "directions": ["minimize"]}, now=1.0)
    for ask in (
        lambda: store.enqueue(study, [{}], "k", now=2.0),
        lambda: store.extend_study(study, {}, now=2.0),
        lambda: store.prioritize_study(study, 1, now=2.0),
    ):
        with pytest.raises(Conflict, match="run by other programs"):
            ask()
    with pytest.raises(NotFound):
        store.extend_study(99, {"trials": 9}, now=2.0)
