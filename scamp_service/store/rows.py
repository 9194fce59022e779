"""Turns rows of the tables into values, and values into columns: a column is called like the field that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import starmap
from sys import intern
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from scamp_service.lifecycle import NO_PLAN_YET, Origin, TrialState, WaitsFor
from scamp_service.model import Choice, Json, Sized, Trial
from scamp_service.store import schema

Value = TypeVar("Value")


class HistoryRow(NamedTuple):
    """A trial in the columns that its study's history needs. ``value`` is NaN if it diverged."""

    id: int
    number: int
    state: TrialState
    step: int
    value: float | None
    attempt: int
    origin: Origin


class Score(NamedTuple):
    """A trial in the columns that its objectives are read from (see ``study.objectives.Objectives.values_of``)."""

    id: int
    number: int
    state: TrialState
    step: int
    value: float | None
    values: tuple[float | None, ...] | None
    sized: Sized | None

    @property
    def quantities(self) -> Mapping[str, float | None]:
        """Everything that is predicted for the newest plan; nothing before it."""
        return self.sized.quantities if self.sized else {}


class Point(NamedTuple):
    """One evaluation. A value that is not finite is its text, such as "nan" (see ``schema.Floats``)."""

    step: int
    attempt: int
    values: Mapping[str, float | str]


UNMEASURED = {"measured_step_seconds": None, "measured_communication_share": None}
"""Columns of ``trials`` for the time of a step under its newest plan, before one was timed."""


def select_fields(table: sa.Table, kind: type[Any]) -> sa.Select[Any]:
    """SELECT of the columns that are called like the fields of ``kind``: see ``values_of``."""
    names = getattr(kind, "_fields", None) or [field.name for field in fields(kind)]
    return sa.select(*(table.c[name] for name in names))


def values_of(kind: Callable[..., Value], rows: Sequence[sa.Row[Any]]) -> list[Value]:
    """The value of each row, whose columns are called like the arguments of ``kind``."""
    # SQLAlchemy's names are slow to compare. Python finds an argument at once by the identity of an interned name.
    names = [intern(str(name)) for name in rows[0]._fields] if rows else []
    if getattr(kind, "_fields", None) == tuple(names):  # a named tuple in the order of the columns
        return list(starmap(kind, rows))
    return [kind(**dict(zip(names, row, strict=True))) for row in rows]


def select_trials() -> sa.Select[Any]:
    """SELECT of the columns from which ``trial_of`` makes trials."""
    return select_fields(schema.trials, Trial).add_columns(schema.trials.c.choices)


def trial_of(*, choices: tuple[Choice, ...] | None, **fields: Any) -> Trial:
    """The trial with these fields, and with the ``choices`` of its plan, which have a column of their own."""
    trial = Trial(**fields)
    return replace(trial, sized=replace(trial.sized, choices=choices)) if trial.sized and choices else trial


def sized_columns(sized: Sized) -> dict[str, Any]:
    """The columns of ``trials`` that a new plan changes, with their values. The time of a step is measured anew."""
    return {"structure": sized.structure, "sized": sized, "choices": sized.choices or None, **UNMEASURED}


def columns_of(value: Any) -> dict[str, Any]:
    """The fields of a value with slots, as columns of a new row."""
    return {name: getattr(value, name) for name in value.__slots__}


def new_trial(study_id: int, number: int, params: Json, now: float) -> dict[str, Any]:
    """The row of a trial without a plan."""
    return {
        "study_id": study_id,
        "number": number,
        "params": params,
        "state": TrialState.WAITING,
        "reason": NO_PLAN_YET,
        "waits_for": WaitsFor.PLAN,
        "created_at": now,
    }
