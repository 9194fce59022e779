"""Reads of trials; ``test_store`` has the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import sqlalchemy as sa

from scamp_service.access.model import Actor
from scamp_service.errors import Conflict, NotFound
from scamp_service.lifecycle import AttemptState, Origin, Outcome, TrialState
from scamp_service.model import Metric, Report
from scamp_service.store import schema
from scamp_service.store.store import Store
from scamp_service.study.objective import Objective
from tests.scamp_service.store.trials import hold, metric, new_study, new_trial, report, run


def value(store: Store, trial_id: int, acc: float, state: TrialState = TrialState.COMPLETED) -> None:
    hold(store, trial_id, "a", 1.0)
    rows = [Metric(trial_id, 1, 1, 10, {"acc": acc}, 2.0)]
    assert store.reports.add(Report(trial_id, 1, "t", metrics=rows, objectives=["acc"]), now=2.0)
    assert store.trials.move(trial_id, TrialState.RUNNING, 1, state, now=3.0)


def best(store: Store, direction: Literal["maximize", "minimize"]) -> int | None:
    leaders = store.trials.leaders(1, Objective(metric="acc", direction=direction))
    return leaders[0].number if leaders else None


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


@pytest.mark.parametrize("prepare", [new_trial, run])
def test_a_trial_is_stopped_whatever_it_does_and_keeps_what_it_reported(
    store: Store, prepare: Callable[[Store], int]
) -> None:
    trial_id = prepare(store)
    before = store.trials.get(trial_id)
    stopped = store.acting(Actor("anna")).trials.stop(1, before.number, reason="stopped by anna", now=9.0)
    assert (stopped.state, stopped.reason, stopped.finished_at) == (TrialState.CANCELLED, "stopped by anna", 9.0)
    assert stopped.attempt == before.attempt  # the controller sees that its ranks train what no trial wants
    assert store.trials.stop(1, before.number, reason="again", now=10.0) == stopped
    assert [(entry.action, entry.detail) for entry in store.audit.page()] == [("stop trial", {"trial": before.number})]
    assert store.counts.states(1)[TrialState.CANCELLED] == 1


def test_a_trial_of_another_program_is_not_stopped(store: Store) -> None:
    trial_id = new_trial(store)
    with store._database.write() as connection:
        connection.execute(sa.update(schema.trials).values(origin=Origin.EXTERNAL))
    with pytest.raises(Conflict, match="another program"):
        store.trials.stop(1, store.trials.get(trial_id).number, reason="", now=9.0)
    with pytest.raises(NotFound):
        store.trials.stop(1, 99, reason="", now=9.0)


def test_a_user_pauses_resumes_and_prioritizes_a_trial_until_it_ends(store: Store) -> None:
    trial_id = run(store)
    by_anna = store.acting(Actor("anna")).trials
    before = store.trials.get(trial_id)
    paused = by_anna.change(1, 0, {"paused": True}, now=9.0)
    assert paused == replace(before, paused=True)
    assert by_anna.change(1, 0, {"paused": True}, now=9.0) == paused, "a repeated request changes nothing"
    assert by_anna.change(1, 0, {"paused": False, "priority": 3}, now=9.0) == replace(before, priority=3)
    assert [(entry.action, entry.detail) for entry in store.audit.page()] == [
        ("change trial", {"trial": 0, "paused": False, "priority": 3}),
        ("change trial", {"trial": 0, "paused": True}),
    ]
    by_anna.change(1, 0, {"paused": True}, now=9.0)
    assert not by_anna.stop(1, 0, reason="", now=9.0).paused
    with pytest.raises(Conflict, match="has ended: it is CANCELLED"):
        by_anna.change(1, 0, {"paused": True}, now=9.0)


def test_a_deleted_trial_is_seen_nowhere_and_its_number_is_not_given_again(store: Store) -> None:
    ids = [run(store, 0), new_trial(store, 1), run(store, 2)]
    assert report(store, metric(ids[0], 0, 10, 0.9))
    assert store.trials.move(ids[0], TrialState.RUNNING, 1, TrialState.COMPLETED, now=8.0)
    assert store.attempts.move(ids[0], 1, [AttemptState.RUNNING], AttemptState.ENDED, now=8.0)
    with pytest.raises(Conflict, match="is WAITING: stop it"):
        store.trials.delete(1, 1, now=9.0)
    store.trials.stop(1, 2, reason="", now=9.0)
    with pytest.raises(Conflict, match="still being stopped"):
        store.trials.delete(1, 2, now=9.0)
    assert store.attempts.move(ids[2], 1, [AttemptState.RUNNING], AttemptState.ENDED, now=9.0)
    for number in (0, 2, 2):  # the second time without an effect
        store.acting(Actor("anna")).trials.delete(1, number, now=9.0)
    assert [entry.action for entry in store.audit.page()] == ["delete trial", "delete trial"]
    with pytest.raises(NotFound):
        store.trials.numbered(1, 0)
    objective = Objective(metric="acc")
    assert not store.trials.history(1) and not store.trials.scores(1) and not store.trials.leaders(1, objective)
    assert [trial.number for trial in store.trials.every(1)] == store.table.order(1, "number").numbers == [1]
    assert store.trials.with_numbers(1, [0, 1, 2]) == [store.trials.get(ids[1])]
    assert store.counts.states(1) == {TrialState.WAITING: 1}
    assert store.removals.deleted_trials() == [ids[0], ids[2]]
    for trial_id in (ids[0], ids[2]):
        assert store.removals.remove_trial(trial_id, limit=100)
    assert not store.removals.deleted_trials() and not store.attempts.of_trial(ids[2])
    assert store.trials.create(1, [(number, {"lr": 0.1}) for number in range(4)], now=10.0) == 1
    assert [trial.number for trial in store.trials.every(1)] == [1, 3]


def test_a_trial_is_not_deleted_while_another_one_begins_with_its_weights(store: Store) -> None:
    parent = run(store)
    assert store.reports.add(Report(parent, 1, "token-1", checkpoint_step=5), now=6.0)
    store.trials.stop(1, 0, reason="", now=9.0)
    assert store.attempts.move(parent, 1, [AttemptState.RUNNING], AttemptState.ENDED, outcome=Outcome.STOPPED, now=9.0)
    store.trials.create(1, [(1, {"lr": 0.2})], parents={1: 0}, now=9.0)
    with pytest.raises(Conflict, match="trial 1 of study 1 needs trial 0"):
        store.trials.delete(1, 0, now=9.0)
    store.trials.stop(1, 1, reason="", now=9.0)
    store.trials.delete(1, 0, now=9.0)
    store.trials.create(1, [(2, {"lr": 0.3})], parents={2: 0}, now=9.0)
    assert store.trials.numbered(1, 2).parent is None
