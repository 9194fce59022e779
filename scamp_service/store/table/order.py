"""Orders the trials of a study by columns of their table that the database cannot order by (see ``queries.SORTS``).

Pure: ``trial_table`` reads the columns that an order needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scamp_service.errors import InvalidInput
from scamp_service.study.spaces.parameter_axes import MISSING, value_at

Key = Callable[..., Any]

VALUES = "values."
"""Begins the name of the column of one of several objectives, counted from 0."""
PARAMETER = "params."
"""Begins the name of the column of one parameter, such as ``params.lr`` or ``params.layers.0.width``."""


class By(StrEnum):
    """Columns to sort trials by."""

    NUMBER = "number"
    STATE = "state"
    VALUE = "value"
    PARAMS = "params"
    RANKS = "ranks"
    BATCH = "batch"
    MICRO_BATCH = "micro_batch"
    RECOMPUTE = "recompute"
    PREDICTED = "predicted"
    MEASURED = "measured"
    RESERVED = "reserved"
    ATTEMPTS = "attempts"
    SECONDS = "seconds"
    REASON = "reason"


@dataclass(frozen=True, slots=True)
class SortOrder:
    """``columns`` of the table of trials, and the key by which they are sorted; a trial without a key comes last."""

    columns: tuple[str, ...]
    key: Key


def order_of(by: str) -> SortOrder:
    """The order of a column: one of ``ORDERS``, or ``params.NAME``. Raises ``InvalidInput``."""
    if by.startswith(PARAMETER):
        name = by.removeprefix(PARAMETER)
        return SortOrder(("params",), lambda params: _of_parameter(value_at(params, name)))
    if by not in list(By):
        raise InvalidInput(f"there is no column {by[:100]!r}; take {', '.join(By)} or params.NAME")
    return ORDERS[By(by)]


def sorted_numbers(order: SortOrder, columns: Mapping[str, Sequence[Any]], descending: bool) -> list[int]:
    """Numbers of trials in this order. Their ``columns`` are by number, which also orders equal keys."""
    keys = map(order.key, *(columns[name] for name in order.columns))
    keyed = list(zip(keys, columns["number"], strict=True))
    with_keys = [(key, number) for key, number in keyed if key is not None]
    with_keys.sort(key=lambda pair: pair[0], reverse=descending)
    return [number for _, number in with_keys] + [number for key, number in keyed if key is None]


def _of_plan(name: str) -> SortOrder:
    return SortOrder(("sized",), lambda sized: getattr(sized.plan, name) if sized else None)


def _of_prediction(name: str) -> SortOrder:
    return SortOrder(("sized",), lambda sized: getattr(sized.prediction, name) or None if sized else None)


def _params(params: Mapping[str, Any]) -> list[tuple[str, bool, Any]]:
    """Parameters by name, in the order of the space; numbers before everything else."""
    return [(name, *_comparable(value)) for name, value in params.items()]


def _comparable(value: Any) -> tuple[bool, Any]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number, value if is_number else str(value)


def _of_parameter(value: Any) -> tuple[bool, Any] | None:
    """Key of one parameter. Repeated blocks are ordered by their number; a trial without the parameter has none."""
    if value is MISSING:
        return None
    is_blocks = isinstance(value, list) and all(isinstance(block, Mapping) for block in value)
    return _comparable(len(value) if is_blocks else value)


ORDERS: Mapping[By, SortOrder] = {
    By.PARAMS: SortOrder(("params",), _params),
    By.RANKS: _of_plan("world_size"),
    By.BATCH: _of_plan("batch"),
    By.MICRO_BATCH: _of_plan("micro_batch"),
    By.RECOMPUTE: _of_plan("recompute"),
    By.PREDICTED: _of_prediction("expected_bytes"),
    By.RESERVED: _of_prediction("reserved_mib"),
    By.REASON: SortOrder(("reason",), lambda reason: reason or None),
}
