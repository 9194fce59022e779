"""Turns rows of ``trials`` and ``attempts`` into values, and values into columns.

A ``Prediction`` is stored in six columns: predicted, extra and bias bytes, those of an evaluation, the reserved MiB,
and those of each share where they are unlike. The margin, and on GPUs the allocator's slack, are the difference between
the reservation and the larger predicted peak. The parts by category are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import sqlalchemy as sa

from estimators.model import MIB, Plan, Prediction
from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.model import Attempt, Sized, Trial
from scamp_service.store import schema


class HistoryRow(NamedTuple):
    """A trial in the columns that its study's history needs. ``value`` is NaN if it diverged."""

    id: int
    number: int
    state: TrialState
    step: int
    value: float | None
    attempt: int


class Score(NamedTuple):
    """A trial in the columns that its objectives are read from (see ``study.objectives.Objectives.values_of``)."""

    id: int
    number: int
    state: TrialState
    step: int
    value: float | None
    values: tuple[float | None, ...] | None
    plan: Plan | None
    predicted_bytes: int
    extra_bytes: int
    bias_bytes: int
    reserved_mib: int
    predicted_step_seconds: float | None
    num_params: int
    flops_per_sample: float | None

    @property
    def quantities(self) -> Mapping[str, float | None]:
        """Everything that is predicted for the newest plan; nothing before it."""
        if self.plan is None:
            return {}
        return {
            "peak_mib": (self.predicted_bytes - self.extra_bytes + self.bias_bytes) / MIB,  # Prediction.expected_bytes
            "reserved_mib": self.reserved_mib,
            "step_seconds": self.predicted_step_seconds,
            "ranks": self.plan.world_size,
            "parameters": self.num_params or None,
            "flops": self.flops_per_sample,
        }


class MeasuredPoint(NamedTuple):
    """Prediction and measurement of an attempt. ``predicted_bytes`` are the expected ones, 0 or None is unknown."""

    trial_id: int
    outcome: Outcome | None
    predicted_bytes: int
    measured_bytes: int
    predicted_step_seconds: float | None
    measured_step_seconds: float | None


class Point(NamedTuple):
    """One evaluation. A value that is not finite is its text, such as "nan" (see ``schema.Floats``)."""

    step: int
    attempt: int
    values: Mapping[str, float | str]


def _names(kind: type[Any], nested: str, columns: Sequence[str]) -> tuple[list[str], int, int]:
    """Column names in the order of the fields of ``kind``, with ``columns`` in place of the field ``nested``.

    Also returns the positions at which ``columns`` begin and end.
    """
    names = [field.name for field in fields(kind)]
    start = names.index(nested)
    return [*names[:start], *columns, *names[start + 1 :]], start, start + len(columns)


_SIZED = (
    "plan",
    "predicted_bytes",
    "extra_bytes",
    "bias_bytes",
    "evaluation_bytes",
    "reserved_mib",
    "shares_mib",
    "plan_reason",
    "learned_bytes",
    "predicted_step_seconds",
    "step_factor",
    "num_params",
    "flops_per_sample",
    "predicted_communication_share",
    "choices",
    "is_uneven",
)
_PREDICTION = ("predicted_bytes", "extra_bytes", "bias_bytes", "evaluation_bytes", "mib_per_rank", "shares_mib")
_TRIAL, _SIZED_START, _SIZED_END = _names(Trial, "sized", _SIZED)
_ATTEMPT, _PREDICTION_START, _PREDICTION_END = _names(Attempt, "prediction", _PREDICTION)
_STRUCTURE = _TRIAL.index("structure")


def select_trials() -> sa.Select[Any]:
    """SELECT of the columns that ``trial_of`` reads."""
    return sa.select(*(schema.trials.c[name] for name in _TRIAL))


def select_attempts() -> sa.Select[Any]:
    """SELECT of the columns that ``attempt_of`` reads."""
    return sa.select(*(schema.attempts.c[name] for name in _ATTEMPT))


def trial_of(row: Sequence[Any]) -> Trial:
    """The trial in a row of ``select_trials``."""
    plan, *prediction, reason, learned_bytes, seconds, factor, num_params, flops, share, choices, is_uneven = row[
        _SIZED_START:_SIZED_END
    ]
    sized = None
    if plan:
        sized = Sized(
            structure=row[_STRUCTURE],
            plan=plan,
            prediction=_prediction(*prediction),
            reason=reason,
            learned_bytes=learned_bytes,
            options=(),
            step_seconds=seconds,
            step_factor=factor,
            num_params=num_params,
            flops_per_sample=flops,
            communication_share=share,
            choices=choices or (),
            is_uneven=is_uneven,
        )
    values: list[Any] = [*row[:_SIZED_START], sized, *row[_SIZED_END:]]
    return Trial(*values)


def attempt_of(row: Sequence[Any]) -> Attempt:
    """The attempt in a row of ``select_attempts``."""
    prediction = _prediction(*row[_PREDICTION_START:_PREDICTION_END])
    values: list[Any] = [*row[:_PREDICTION_START], prediction, *row[_PREDICTION_END:]]
    return Attempt(*values)


def sized_columns(sized: Sized) -> dict[str, Any]:
    """The columns of ``trials`` that a new plan changes, with their values. The time of a step is measured anew."""
    values = (
        sized.plan,
        *_columns(sized.prediction),
        sized.reason,
        sized.learned_bytes,
        sized.step_seconds,
        sized.step_factor,
        sized.num_params,
        sized.flops_per_sample,
        sized.communication_share,
        sized.choices or None,
        sized.is_uneven,
    )
    columns = dict(zip(_SIZED, values, strict=True))
    return {
        "structure": sized.structure,
        "measured_step_seconds": None,
        "measured_communication_share": None,
        **columns,
    }


def taken_columns(attempt: Attempt) -> dict[str, Any]:
    """The columns of ``trials`` that change when an attempt begins with one of the trial's choices."""
    names = ("plan", *("reserved_mib" if name == "mib_per_rank" else name for name in _PREDICTION))
    taken = dict(zip(names, (attempt.plan, *_columns(attempt.prediction)), strict=True))
    times = ("predicted_step_seconds", "step_factor", "predicted_communication_share")
    return {**taken, **{name: getattr(attempt, name) for name in times}}


def attempt_columns(attempt: Attempt) -> dict[str, Any]:
    """A new row of ``attempts``, as columns and values."""
    values: Mapping[str, Any] = {name: getattr(attempt, name) for name in _ATTEMPT if name not in _PREDICTION}
    return {**values, **dict(zip(_PREDICTION, _columns(attempt.prediction), strict=True))}


def _prediction(
    predicted_bytes: int,
    extra_bytes: int,
    bias_bytes: int,
    evaluation_bytes: int,
    reserved_mib: int,
    shares_mib: Sequence[int] | None,
) -> Prediction:
    margin_bytes = reserved_mib * MIB - max(predicted_bytes, evaluation_bytes)
    traced_bytes = predicted_bytes - extra_bytes
    return Prediction(
        traced_bytes,
        0,
        extra_bytes,
        bias_bytes,
        margin_bytes,
        evaluation_bytes=evaluation_bytes,
        shares_mib=tuple(shares_mib or ()),
    )


def _columns(prediction: Prediction) -> tuple[int, int, int, int, int, list[int] | None]:
    of_step = (prediction.predicted_bytes, prediction.extra_bytes, prediction.bias_bytes)
    shares_mib = list(prediction.shares_mib) or None
    return *of_step, prediction.evaluation_bytes, prediction.reserved_mib, shares_mib
