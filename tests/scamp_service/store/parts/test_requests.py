"""Candidates are enqueued once for each key and besides the budget; a limit that has ended a study can be raised, and
then its study runs again; failed trials are retried; a study can have another priority."""

from __future__ import annotations

import pytest

from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.lifecycle import Origin, Outcome, StudyState, TrialState, WaitsFor
from scamp_service.model import Json, TrialChanges
from scamp_service.store.parts.external import NewTrial
from scamp_service.store.store import Store
from scamp_service.study.parse import parse_study
from tests.recounted import tally_study
from tests.values import new_attempt, sized

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
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(place, {}) for place in range(4)], now=1.0)
    for trial in store.trials.page(study):
        end(store, trial.id, TrialState.COMPLETED, value=0.25 + trial.number)
    assert store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    return study


def ended_by_time(store: Store) -> int:
    """A study that ran out of seconds: one trial is COMPLETED, one was cancelled for that, one for something else."""
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(place, {}) for place in range(3)], now=1.0)
    first, second, third = store.trials.page(study)
    end(store, first.id, TrialState.COMPLETED, value=0.25)
    end(store, second.id, TrialState.CANCELLED, WHY)
    end(store, third.id, TrialState.CANCELLED, "stopped by the user")
    store.studies.note_ran({study: 61.0})
    assert store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, reason=WHY, now=62.0)
    return study


def stopped(store: Store) -> int:
    """A study that its user has stopped."""
    study = store.studies.create(SPEC, now=1.0).id
    store.studies.move(study, [StudyState.RUNNING], StudyState.STOPPING, now=5.0)
    return study


def end(store: Store, trial_id: int, state: TrialState, reason: str = "", value: float | None = None) -> None:
    """Move a WAITING trial to a state in which it has ended."""
    changes = TrialChanges() if value is None else TrialChanges(value=value)
    assert store.trials.move(trial_id, TrialState.WAITING, 0, state, reason=reason, changes=changes, now=2.0)


def test_candidates_are_enqueued_once_beside_those_of_the_sampler(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(0, {})], now=1.0)
    for _ in range(2):
        assert store.requests.enqueue(study, [{"lr": 0.01}, {"lr": 0.02}], "k", now=2.0) == [1, 2]
    assert store.requests.enqueue(study, [{"lr": 0.01}], "other", now=2.0) == [3]
    store.trials.create(study, [(1, {})], now=3.0)
    origins = [Origin.SEARCH, *[Origin.ENQUEUED] * 3, Origin.SEARCH]
    assert [(trial.number, trial.origin) for trial in store.trials.page(study)] == list(enumerate(origins))
    assert store.counts.counted(study) == tally_study(store.trials.page(study), [])
    assert len(store.trials.live()) == 5 and store.external.study_attributes(study, is_system=False) == {}


def test_a_study_is_not_completed_while_an_enqueued_candidate_waits(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    store.external.create_trials(study, [NewTrial(TrialState.RUNNING)], now=1.0)
    store.requests.enqueue(study, [{"lr": 0.01}], "k", now=2.0)
    assert not store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, now=3.0)
    (trial,) = store.trials.live()
    assert store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.FAILED, now=4.0)
    assert store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, now=5.0), "others may go on"


def test_a_completed_study_runs_again_for_an_enqueued_candidate_unless_it_has_reached_a_limit(store: Store) -> None:
    study = all_tried(store)
    for _ in range(2):
        assert store.requests.enqueue(study, [{"lr": 0.01}], "k", now=6.0) == [4]
    again = store.studies.get(study)
    assert (again.state, again.finished_at, again.spec) == (StudyState.RUNNING, None, SPEC)
    assert store.counts.counted(study) == tally_study(store.trials.page(study), [])
    with pytest.raises(Conflict, match="clone it"):
        store.requests.enqueue(stopped(store), [{"lr": 0.01}], "k", now=6.0)
    late = all_tried(store)
    store.studies.note_ran({late: 60.5})
    with pytest.raises(Conflict, match=r"would end at once: .* its 60 s .*; extend it first: it has run for 60 s"):
        store.requests.enqueue(late, [{"lr": 0.01}], "k", now=62.0)
    assert store.studies.get(late).state is StudyState.COMPLETED and len(store.trials.page(late)) == 4


def test_a_completed_study_runs_again_with_a_larger_budget(store: Store) -> None:
    study = all_tried(store)
    for _ in range(2):
        store.requests.extend(study, {"trials": 9}, now=3.0)
    reopened = store.studies.get(study)
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
            store.requests.extend(study, limits, now=4.0)
    with pytest.raises(Conflict, match="clone it"):
        store.requests.extend(stopped(store), {"trials": 12}, now=6.0)


def test_trials_that_a_limit_has_cancelled_continue_once_it_is_raised_or_dropped(store: Store) -> None:
    for limits in ({"seconds": 600}, {"seconds": None}):
        study = ended_by_time(store)
        with pytest.raises(
            Conflict, match=r"has used up its 61 s .* has run for 61 s so far: name more, or drop seconds"
        ):
            store.requests.extend(study, {"seconds": 61}, now=70.0)
        for _ in range(2):
            store.requests.extend(study, limits, now=70.0)
        again = store.studies.get(study)
        assert (again.state, again.reason) == (StudyState.RUNNING, "")
        assert again.spec["budget"]["seconds"] == limits["seconds"]
        trials = store.trials.page(study)
        states = [TrialState.COMPLETED, TrialState.WAITING, TrialState.CANCELLED]
        assert [trial.state for trial in trials] == states, "what something else has cancelled stays"
        assert (trials[1].waits_for, trials[1].finished_at) == (WaitsFor.NEW_PLAN, None)
        assert store.counts.counted(study) == tally_study(trials, [])
        events = store.events.page(study_id=study)
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
        store.requests.extend(study, limits, now=6.0)
    assert store.studies.get(study).state is StudyState.COMPLETED and store.studies.get(study).spec == SPEC


def test_a_study_whose_sampler_had_nothing_left_is_not_extended(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    with pytest.raises(Conflict, match="no candidates left after 0 trials; enqueue"):
        store.requests.extend(study, {"trials": 9}, now=6.0)


def test_a_study_that_is_just_ending_at_a_limit_is_extended_a_moment_later(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    completed = StudyState.COMPLETED
    store.studies.move(study, [StudyState.RUNNING], StudyState.STOPPING, reason=WHY, ends_as=completed, now=61.0)
    with pytest.raises(Conflict, match="try again in a few seconds"):
        store.requests.extend(study, {"seconds": 600}, now=62.0)


def test_limits_that_were_never_set_are_added_and_those_that_only_bound_others_are_replaced(store: Store) -> None:
    study = store.studies.create({**SPEC, "budget": {**SPEC["budget"], "terminator": {"regret": 0.1}}}, now=1.0).id
    store.studies.note_regret(study, 0.05, now=2.0)
    with pytest.raises(Conflict, match="drop the terminator"):
        store.requests.extend(study, {"trials": 8}, now=2.0)
    store.requests.extend(study, {"terminator": None, "device_hours": 2.0, "target": 0.1, "max_concurrent": 3}, now=2.0)
    store.requests.extend(study, {"target": 0.05, "max_concurrent": 1, "device_hours": None}, now=2.0)
    limits = {
        name: store.studies.get(study).spec["budget"][name] for name in ("target", "max_concurrent", "device_hours")
    }
    assert limits == {"target": 0.05, "max_concurrent": 1, "device_hours": None}


def test_a_study_has_another_priority(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0).id
    for _ in range(2):
        store.requests.prioritize(study, 7, now=2.0)
    assert store.studies.get(study).spec == {**SPEC, "priority": 7}
    assert [event.kind for event in store.events.page(study_id=study)] == ["study", "study"], (
        "a repeated request is none"
    )
    with pytest.raises(InvalidInput, match="priority"):
        store.requests.prioritize(study, 101, now=2.0)


def test_a_study_of_other_programs_takes_no_requests(store: Store) -> None:
    study = store.external.create_study("theirs", {**SPEC, "directions": ["minimize"]}, now=1.0)
    for ask in (
        lambda: store.requests.enqueue(study, [{}], "k", now=2.0),
        lambda: store.requests.extend(study, {}, now=2.0),
        lambda: store.requests.prioritize(study, 1, now=2.0),
    ):
        with pytest.raises(Conflict, match="run by other programs"):
            ask()
    with pytest.raises(NotFound):
        store.requests.extend(99, {"trials": 9}, now=2.0)


def failed_trials(store: Store, count: int) -> int:
    """A study with this many trials, of which each has ended its first attempt with an error; returns its id."""
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(number, {}) for number in range(count)], now=1.0)
    for trial in store.trials.page(study):
        assert store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.QUEUED, sized=sized(), now=2.0)
        assert store.attempts.begin(new_attempt(trial.id, now=3.0))
        assert store.reports.end(trial.id, 1, "t", Outcome.ERROR, "KeyError: 'a'", now=4.0)
        changes = TrialChanges(num_failures=3, num_lost=2, num_faults=1, retry_at=9.0)
        move = (trial.id, TrialState.RUNNING, 1, TrialState.FAILED)
        assert store.trials.move(*move, reason="KeyError: 'a'", changes=changes, now=5.0)
    return study


@pytest.mark.parametrize("ended", [StudyState.COMPLETED, StudyState.FAILED])
def test_failed_trials_wait_again_and_their_study_runs_again(store: Store, ended: StudyState) -> None:
    study = failed_trials(store, 3)
    reason = "its first 3 trials all failed" if ended is StudyState.FAILED else ""
    assert store.studies.move(study, [StudyState.RUNNING], ended, reason=reason, now=6.0)
    before = store.events.last_id()
    assert store.requests.retry(study, [1], now=7.0) == [1]
    assert [trial_id for _, trial_id in store.events.changed_since(before, limit=9)] == [
        store.trials.page(study)[1].id,
        None,
    ]
    again, retried = store.studies.get(study), store.trials.numbered(study, 1)
    assert (again.state, again.finished_at, again.reason) == (StudyState.RUNNING, None, "")
    assert (retried.state, retried.waits_for, retried.finished_at) == (TrialState.WAITING, WaitsFor.NEW_PLAN, None)
    assert retried.reason == "will be planned and run again, as a user retries it after: KeyError: 'a'"
    assert (retried.num_failures, retried.num_lost, retried.num_faults, retried.retry_at) == (0, 0, 0, 0.0)
    assert store.attempts.of_trial(retried.id)[0].detail == "KeyError: 'a'", "the failure stays readable"
    assert store.requests.retry(study, [1], now=8.0) == [], "a repeated request changes nothing"
    assert store.requests.retry(study, now=8.0) == [0, 2]
    assert store.counts.counted(study).states == {TrialState.WAITING: 3}
    assert store.counts.counted(study) == tally_study(store.trials.page(study), store.attempts.of_study(study))
    assert not store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, now=9.0), "they are to run first"


def test_only_failed_trials_of_a_study_that_can_continue_are_retried(store: Store) -> None:
    study = failed_trials(store, 2)
    store.trials.create(study, [(2, {})], now=5.0)
    waiting = store.trials.numbered(study, 2)
    assert store.requests.retry(study, [2], now=5.0) == [] and store.trials.get(waiting.id) == waiting
    assert store.trials.move(waiting.id, TrialState.WAITING, 0, TrialState.CANCELLED, now=5.0)
    with pytest.raises(NotFound, match="has no trial 7"):
        store.requests.retry(study, [0, 7], now=6.0)
    with pytest.raises(Conflict, match="trial 2 of study 1 is CANCELLED; only failed trials"):
        store.requests.retry(study, [0, 2], now=6.0)
    store.studies.note_ran({study: 60.0})
    for ended in (None, StudyState.COMPLETED):
        if ended:
            assert store.studies.move(study, [StudyState.RUNNING], ended, now=6.0)
        with pytest.raises(Conflict, match=r"used up its 60 s \(budget.seconds\); extend it first"):
            store.requests.retry(study, now=61.0)
    broken = failed_trials(store, 3)
    store.studies.note_ran({broken: 60.0})
    assert store.studies.move(broken, [StudyState.RUNNING], StudyState.FAILED, now=6.0)
    with pytest.raises(Conflict, match=r"clone it$"):  # a failed study cannot be extended
        store.requests.retry(broken, now=61.0)
    assert store.counts.states(study) == {TrialState.FAILED: 2, TrialState.CANCELLED: 1}, "nothing has changed"
    stopped = failed_trials(store, 1)
    assert store.studies.move(stopped, [StudyState.RUNNING], StudyState.STOPPING, now=6.0)
    with pytest.raises(Conflict, match="STOPPING; clone it"):
        store.requests.retry(stopped, now=7.0)
