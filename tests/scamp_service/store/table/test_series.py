"""Trials as columns of numbers, and the few that charts ask for by number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sqlalchemy as sa

from scamp_service.access.model import Actor
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.store import schema
from scamp_service.store.store import Store
from scamp_service.store.table.trial_table import MOST_KEPT
from tests.scamp_service.store.trials import new_trial

COMPLETED, RUNNING, WAITING = TrialState.COMPLETED, TrialState.RUNNING, TrialState.WAITING


@pytest.fixture
def trials(store: Store) -> Store:
    """A store whose trial 3 repeats trial 0, trial 4 continues from trial 1, trial 5 waits and trial 6 is deleted."""
    rows: list[dict[str, Any]] = [
        {"state": COMPLETED, "attempt": 1, "value": 0.5},
        {"state": RUNNING, "attempt": 1, "value": math.nan},
        {"state": COMPLETED, "value": math.inf},
        {"state": COMPLETED, "attempt": 1, "value": 0.7, "origin": Origin.REPEAT, "parent_number": 0},
        {"state": WAITING, "value": 0.2, "parent_number": 1, "parent_step": 7},
        {"state": WAITING, "value": None},
        {"state": TrialState.DELETED, "attempt": 1, "value": 0.9},
    ]
    ids = [new_trial(store, number, {"lr": number / 10}) for number in range(len(rows))]
    with store._database.write() as connection:
        for trial_id, row in zip(ids, rows, strict=True):
            connection.execute(sa.update(schema.trials).where(schema.trials.c.id == trial_id).values(**row))
    return store


def test_a_series_has_trials_that_have_begun_or_ended_and_repeat_no_other_one(trials: Store) -> None:
    series = trials.table.series(1)
    assert series.number.tolist() == [0, 1, 2, 4]
    assert str(series.value.tolist()) == "[0.5, nan, nan, 0.2]", "no value that is not finite"
    assert series.states() == [COMPLETED, RUNNING, COMPLETED, WAITING]
    assert series.has_run.tolist() == [True, True, False, False]
    assert series.has_state(RUNNING, WAITING).tolist() == [False, True, False, True]


def test_a_series_may_be_of_chosen_trials_and_empty(trials: Store) -> None:
    assert trials.table.series(1, states=[COMPLETED]).number.tolist() == [0, 2]
    assert trials.table.series(1, states=[COMPLETED], where="lr > 0.1").number.tolist() == [2]
    assert len(trials.table.series(1, where="lr > 1")) == 0
    assert len(trials.table.series(9)) == 0


def test_a_series_is_read_again_after_each_event_of_its_study_and_the_last_ones_are_kept(trials: Store) -> None:
    first = trials.table.series(1)
    user = trials.acting(Actor("ada", "127.0.0.1"))
    assert user.table.series(1) is first
    user.trials.stop(1, 5, reason="enough", now=1.0)
    assert user.table.series(1).number.tolist() == trials.table.series(1).number.tolist() == [0, 1, 2, 4, 5]
    newest = trials.table.series(1)
    for study_id in range(2, 2 + MOST_KEPT):
        trials.table.series(study_id)
    assert trials.table.series(1 + MOST_KEPT) is trials.table.series(1 + MOST_KEPT)
    assert trials.table.series(1) is not newest


def test_trials_of_a_chart_are_read_by_their_numbers(trials: Store) -> None:
    assert [(row.number, row.state) for row in trials.trials.history(1, [4, 0, 6])] == [(0, COMPLETED), (4, WAITING)]
    assert trials.table.params(1, [2, 4]) == {2: {"lr": 0.2}, 4: {"lr": 0.4}}
    assert trials.table.params(1, []) == {}


def test_relatives_are_those_who_continue_and_those_from_whom_they_do(trials: Store) -> None:
    assert [(row.number, row.parent_number) for row in trials.table.relatives(1)] == [(1, None), (4, 1)]
