"""A study of another tool, read but not stored yet, and how it becomes a study of ScaMP that has ended.

No import runs code: only databases and JSON are read, never pickles.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scamp_service.store.parts.external import METRIC, NewTrial, finite
from scamp_service.store.store import Store
from scamp_service.study.objectives import named_by_place

AT_ONCE = 500
"""Trials in one transaction, so that a running service is not held up."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A study with its trials by number. ``space`` is that of a study file; ``directions`` are in small letters."""

    name: str
    source: str
    directions: Sequence[str]
    trials: Sequence[NewTrial]
    metric: str = METRIC
    space: Mapping[str, Any] = field(default_factory=dict)
    user_attributes: Mapping[str, Any] = field(default_factory=dict)
    system_attributes: Mapping[str, Any] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        """The spec of a study that other programs have run, in the form that pages read."""
        steps = max((max(trial.reports, default=0) for trial in self.trials), default=0)
        return spec_of_others(self.name, self.directions, self.source, self.metric, self.space, len(self.trials), steps)


def spec_of_others(
    name: str,
    directions: Sequence[str],
    workload: str = "optuna",
    metric: str = METRIC,
    space: Mapping[str, Any] | None = None,
    trials: int = 0,
    steps: int = 0,
) -> dict[str, Any]:
    """The spec of a study whose trials other programs run. It cannot be submitted."""
    objectives = named_by_place(directions) if len(directions) > 1 else []
    return {
        "name": name,
        "workload": workload,
        "objective": objectives[0] if objectives else {"metric": metric, "direction": directions[0]},
        "objectives": objectives,
        "directions": list(directions),
        "space": finite(space or {}),
        "fixed": {},
        "start_with": [],
        "search": {},
        "stopping": {"rule": "none"},
        "budget": {"trials": trials, "steps": steps},
    }


def store_study(store: Store, imported: Imported) -> int:
    """Store a study with its trials and end it; returns its id. Numbers, values, states and dates are kept.

    A trial that had not ended is stopped. If this is interrupted, the study stays EXTERNAL, with the trials so far.
    """
    now = time.time()
    starts = [trial.started_at for trial in imported.trials if trial.started_at is not None]
    ends = [trial.finished_at for trial in imported.trials if trial.finished_at is not None]
    study_id = store.external.add_study(imported.name, imported.spec(), now=now, created_at=min(starts, default=now))
    for is_system, attributes in ((False, imported.user_attributes), (True, imported.system_attributes)):
        for name, value in attributes.items():
            store.external.set_study_attribute(study_id, name, value, is_system=is_system)
    for start in range(0, len(imported.trials), AT_ONCE):
        store.external.create_trials(study_id, imported.trials[start : start + AT_ONCE], now=now)
    store.external.end_study(study_id, finished_at=max(ends, default=now), now=now)
    return study_id
