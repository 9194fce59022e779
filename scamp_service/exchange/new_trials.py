"""Optuna's frozen trials as external trials of the study database."""

from __future__ import annotations

from datetime import datetime

from optuna.distributions import distribution_to_json
from optuna.trial import FrozenTrial

from scamp_service.exchange.frozen_trials import FROM_OPTUNA
from scamp_service.store.parts.external import NewTrial


def new_trial_of(trial: FrozenTrial) -> NewTrial:
    """An external trial with all that a frozen trial holds, but for its number."""
    return NewTrial(
        FROM_OPTUNA[trial.state],
        params=trial.params,
        searched={
            name: (float(distribution.to_internal_repr(trial.params[name])), distribution_to_json(distribution))
            for name, distribution in trial.distributions.items()
        },
        values=None if trial.values is None else [float(value) for value in trial.values],
        reports={int(step): float(value) for step, value in trial.intermediate_values.items()},
        user_attributes=trial.user_attrs,
        system_attributes=trial.system_attrs,
        started_at=_seconds(trial.datetime_start),
        finished_at=_seconds(trial.datetime_complete),
    )


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
