"""Orders of the trials by a column: every column has one, and trials without a value come last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from estimators.model import Plan
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.store.table.order import ORDERS, By, order_of, sorted_numbers
from tests.values import sized

WIDE = Plan(micro_batch=2, num_micro_batches=1, dp_shard=4)
LARGE = Plan(micro_batch=16, num_micro_batches=2, recompute=True)
TRIALS: list[dict[str, Any]] = [
    {
        "id": 10,
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
        "id": 11,
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
        "id": 12,
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


def numbers_by(column: str, *, descending: bool) -> list[int]:
    order = order_of(column)
    rows = [SimpleNamespace(number=number, **trial) for number, trial in enumerate(TRIALS)]
    return sorted_numbers(order, rows, descending)


def test_every_column_has_an_order() -> None:
    assert set(ORDERS) == set(RISING) == set(By)


@pytest.mark.parametrize("column", By)
def test_a_column_orders_trials_by_what_it_shows(column: By) -> None:
    assert numbers_by(column, descending=False) == RISING[column]


@pytest.mark.parametrize("column", By)
def test_the_largest_come_first_in_descending_order_and_trials_without_a_value_stay_last(column: By) -> None:
    numbers = RISING[column]
    falling = [*reversed(numbers)] if column in ALWAYS_KNOWN else [*reversed(numbers[:-1]), 2]
    assert numbers_by(column, descending=True) == falling


def test_a_parameter_is_a_column_too() -> None:
    assert numbers_by("params.lr", descending=False) == [1, 2, 0]
    assert numbers_by("params.depth", descending=False) == [0, 1, 2]


def test_an_unknown_column_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput, match=r"there is no column 'colour'; take number, state, .* or params.NAME"):
        order_of("colour")
