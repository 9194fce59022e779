"""Orders of the trials by a column: every column has one, and trials without a value come last."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sqlalchemy as sa

from estimators.model import Plan
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.store import schema
from scamp_service.store.queries import SORTS
from scamp_service.store.store import Store
from scamp_service.store.table import trial_table
from scamp_service.store.table.order import ORDERS, By, order_of
from scamp_service.store.table.trial_table import Ordered
from tests.scamp_service.store.trials import new_study, new_trial
from tests.values import sized

WIDE = Plan(micro_batch=2, num_micro_batches=1, dp_shard=4)
LARGE = Plan(micro_batch=16, num_micro_batches=2, recompute=True)
TRIALS: list[dict[str, Any]] = [
    {
        "state": TrialState.COMPLETED,
        "value": 0.7,
        "params": {"lr": 0.3},
        "sized": sized(WIDE, 3, 90, 60, 0),
        "measured_bytes": 80,
        "attempt": 1,
        "started_at": 100.0,
        "finished_at": 160.0,
        "reason": "trained all steps",
    },
    {
        "state": TrialState.RUNNING,
        "value": 0.2,
        "params": {"lr": 0.1},
        "sized": sized(LARGE, 2, 80, 30, 10),
        "measured_bytes": 40,
        "attempt": 3,
        "started_at": 120.0,
        "finished_at": None,
        "reason": "on one device",
    },
    {
        "state": TrialState.WAITING,
        "value": None,
        "params": {"lr": 0.2},
        "sized": None,
        "measured_bytes": 0,
        "attempt": 0,
        "started_at": None,
        "finished_at": None,
        "reason": "",
    },
]
RISING = {
    By.NUMBER: [0, 1, 2],
    By.STATE: [2, 1, 0],
    By.VALUE: [1, 0, 2],
    By.PARAMS: [1, 2, 0],
    By.RANKS: [1, 0, 2],
    By.BATCH: [0, 1, 2],
    By.MICRO_BATCH: [0, 1, 2],
    By.RECOMPUTE: [0, 1, 2],
    By.PREDICTED: [0, 1, 2],
    By.MEASURED: [1, 0, 2],
    By.RESERVED: [1, 0, 2],
    By.ATTEMPTS: [2, 0, 1],
    By.SECONDS: [0, 1, 2],
    By.REASON: [1, 0, 2],
}
ALWAYS_KNOWN = {By.NUMBER, By.STATE, By.PARAMS, By.ATTEMPTS}
"""Columns in which every trial has a value."""


@pytest.fixture
def trials(store: Store) -> Store:
    """A store with a study of these trials."""
    ids = [new_trial(store, number) for number in range(len(TRIALS))]
    with store._database.write() as connection:
        for trial_id, columns in zip(ids, TRIALS, strict=True):
            connection.execute(sa.update(schema.trials).where(schema.trials.c.id == trial_id).values(**columns))
    return store


def test_every_column_has_one_order() -> None:
    assert {*ORDERS, *SORTS} == set(RISING) == set(By) and not {*ORDERS} & {*SORTS}


def test_a_column_orders_trials_by_what_it_shows_and_those_without_a_value_are_last(trials: Store) -> None:
    for column, numbers in RISING.items():
        falling = [*reversed(numbers)] if column in ALWAYS_KNOWN else [*reversed(numbers[:-1]), 2]
        assert trials.table.order(1, column) == (numbers, 3), column
        assert trials.table.order(1, column, descending=True) == (falling, 3), column


@pytest.mark.parametrize("most_apart", [0, 1000])
def test_the_first_of_an_order_are_the_first_of_all(
    trials: Store, monkeypatch: pytest.MonkeyPatch, most_apart: int
) -> None:
    monkeypatch.setattr(trial_table, "MOST_SORTED_APART", most_apart)
    for column in By:
        for chosen in ({}, {"states": [TrialState.RUNNING, TrialState.WAITING]}, {"where": "number > 0"}):
            numbers, num = trials.table.order(1, column, **chosen)
            assert trials.table.order(1, column, limit=1, **chosen) == (numbers[:1], num), (column, chosen)
            assert num == len(numbers) == (2 if chosen else 3)


def test_equal_values_are_by_number_in_both_directions_and_nan_is_no_value(store: Store) -> None:
    ids = new_study(store, 6)
    with store._database.write() as connection:
        for trial_id, value in zip(ids, (0.5, math.nan, math.inf, None, 0.5, -math.inf), strict=True):
            connection.execute(sa.update(schema.trials).where(schema.trials.c.id == trial_id).values(value=value))
    assert store.table.order(1, "value") == Ordered([5, 0, 4, 2, 1, 3], 6)
    assert store.table.order(1, "value", descending=True) == Ordered([2, 0, 4, 5, 1, 3], 6)


def test_a_parameter_is_a_column_too(trials: Store) -> None:
    assert trials.table.order(1, "params.lr").numbers == [1, 2, 0]


def test_an_unknown_column_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput, match=r"there is no column 'colour'; take number, state, .* or params.NAME"):
        order_of("colour")
