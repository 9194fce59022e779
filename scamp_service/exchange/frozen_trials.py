"""Trials of the study database as Optuna's frozen trials, and the states of both.

Optuna has fewer states than ScaMP: a trial that fits nowhere or was cancelled is FAIL, like one that failed. A trial
that diverged is PRUNED without a value; one that completed with NaN is FAIL, and so is one that repeats another with a
new seed, which then has the mean as its value. A paused trial is RUNNING. ScaMP's own
state is in the user attribute ``scamp:state``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from scamp_service.exchange.optuna_space import OptunaSpace
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.store.parts.external import OptunaTrialRow
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives

TO_OPTUNA: Mapping[TrialState, OptunaState] = {
    TrialState.WAITING: OptunaState.WAITING,
    TrialState.QUEUED: OptunaState.WAITING,
    TrialState.RUNNING: OptunaState.RUNNING,
    TrialState.PAUSED: OptunaState.RUNNING,
    TrialState.COMPLETED: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.FAILED: OptunaState.FAIL,
    TrialState.INFEASIBLE: OptunaState.FAIL,
    TrialState.CANCELLED: OptunaState.FAIL,
}
FROM_OPTUNA: Mapping[OptunaState, TrialState] = {
    OptunaState.WAITING: TrialState.WAITING,
    OptunaState.RUNNING: TrialState.RUNNING,
    OptunaState.COMPLETE: TrialState.COMPLETED,
    OptunaState.PRUNED: TrialState.PRUNED,
    OptunaState.FAIL: TrialState.FAILED,
}


class Freezer:
    """Makes frozen trials of the trials of one study."""

    def __init__(self, store: Store, space: OptunaSpace, objectives: Objectives) -> None:
        self._store, self._space, self._objectives = store, space, objectives

    def frozen(self, seen: Sequence[OptunaTrialRow]) -> list[FrozenTrial]:
        """Frozen trials, in the same order. Reads what belongs to them: reports and attributes."""
        external = [row.id for row in seen if row.searched is not None]
        stored = self._store.external
        reports, attributes = stored.reports(external), stored.trial_attributes(external)
        values, metric = self._values(seen), self._objectives.leading.metric
        curves = self._store.reports.curves([row.id for row in seen if row.searched is None and row.step])
        trials = []
        for trial in seen:
            if trial.searched is not None:
                attributes_there = (attributes.get((trial.id, False), {}), attributes.get((trial.id, True), {}))
                trials.append(_external(trial, reports.get(trial.id, {}), *attributes_there))
            else:
                curve = [(point.step, point.values.get(metric)) for point in curves.get(trial.id, [])]
                reported = {step: float(value) for step, value in curve if value is not None}
                trials.append(self._own_trial(trial, values.get(trial.id), reported))
        return trials

    def plain(self, seen: Sequence[OptunaTrialRow]) -> list[FrozenTrial]:
        """Frozen trials without reports and attributes, in the same order."""
        values = self._values(seen)
        return [
            _external(row, {}, {}, {}) if row.searched is not None else self._own_trial(row, values.get(row.id), {})
            for row in seen
        ]

    def _values(self, seen: Sequence[OptunaTrialRow]) -> dict[int, list[float]]:
        """Trial of ScaMP's own → its values, for those that have all."""
        own_rows = [row for row in seen if row.searched is None]
        if not self._objectives.has_several:
            return {row.id: [row.value] for row in own_rows if row.value is not None and not math.isnan(row.value)}
        scored = [
            (score.id, self._objectives.values_of(score))
            for score in self._store.trials.scores(trial_ids=[o.id for o in own_rows])
        ]
        return {trial_id: list(values) for trial_id, values in scored if values is not None}

    def _own_trial(
        self, row: OptunaTrialRow, known_values: list[float] | None, reported: dict[int, float]
    ) -> FrozenTrial:
        state, values = TO_OPTUNA[row.state], None
        if state in (OptunaState.COMPLETE, OptunaState.PRUNED):
            values = known_values
        if state is OptunaState.COMPLETE and (values is None or row.origin is Origin.REPEAT):
            state, values = OptunaState.FAIL, None  # it diverged, or counts in the trial that it repeats
        params = self._space.flat(row.params or {})
        system = {
            "scamp:state": row.state.value,
            "scamp:reason": row.reason,
            "scamp:plan": str(row.sized.plan) if row.sized else "",
            "scamp:reserved_mib": row.sized.prediction.reserved_mib if row.sized else 0,
            "scamp:measured_bytes": row.measured_bytes,
        }
        return _frozen(
            row,
            state,
            values,
            _Point(params, {name: self._space.distributions[name] for name in params}),
            reported,
            _Attributes({name: value for name, value in system.items() if value}, {}),
        )


def _external(
    row: OptunaTrialRow, reported: dict[int, float], user: dict[str, Any], system: dict[str, Any]
) -> FrozenTrial:
    params, distributions = dict[str, Any](), dict[str, BaseDistribution]()
    for name, (number, text) in (row.searched or {}).items():
        distributions[name] = _distribution(text)
        params[name] = distributions[name].to_external_repr(number)
    values = None if row.values is None else list(row.values)
    point = _Point(params, distributions)
    return _frozen(row, TO_OPTUNA[row.state], values, point, reported, _Attributes(user, system))


class _Point(NamedTuple):
    params: dict[str, Any]
    distributions: dict[str, BaseDistribution]


class _Attributes(NamedTuple):
    user: dict[str, Any]
    system: dict[str, Any]


def _frozen(
    row: OptunaTrialRow,
    state: OptunaState,
    values: list[float] | None,
    point: _Point,
    reported: dict[int, float],
    attributes: _Attributes,
) -> FrozenTrial:
    return FrozenTrial(
        number=row.number,
        trial_id=row.id,
        state=state,
        value=None,
        values=values,
        datetime_start=local_time(row.started_at),
        datetime_complete=local_time(row.finished_at),
        params=point.params,
        distributions=point.distributions,
        user_attrs=attributes.user,
        system_attrs=attributes.system,
        intermediate_values=reported,
    )


@lru_cache(maxsize=4096)
def _distribution(text: str) -> BaseDistribution:
    """A distribution; a study has many trials with the same."""
    return json_to_distribution(text)


def local_time(seconds: float | None) -> datetime | None:
    """Local time without a zone, as Optuna has it, from seconds since the epoch."""
    return None if seconds is None else datetime.fromtimestamp(seconds)
