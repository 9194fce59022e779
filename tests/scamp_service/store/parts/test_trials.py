"""Reads of trials; ``test_store`` has the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import pytest
import sqlalchemy as sa

from scamp_service.access.model import Actor
from scamp_service.errors import Conflict, NotFound
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.model import Metric, Report
from scamp_service.store import schema
from scamp_service.store.store import Store
from scamp_service.study.objective import Objective
from tests.scamp_service.store.trials import hold, new_study, new_trial, run


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
