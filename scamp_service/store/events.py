"""Types of what an event tells clients: a class for each kind, whose fields are the ``data`` of the event as JSON.

The store makes them when it writes an event, and the API documents them. docs/api.md has a table of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from scamp_service.lifecycle import NO_PLAN_YET, AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Json


@dataclass(frozen=True, slots=True)
class StudyChange:
    """A study is new, has another state, or something else about it has changed."""

    kind: ClassVar = "study"
    id: int
    name: str
    state: StudyState


@dataclass(frozen=True, slots=True)
class TrialChange:
    """A trial is new, or has moved."""

    kind: ClassVar = "trial"
    id: int
    number: int
    state: TrialState
    attempt: int
    step: int
    value: float | None
    reason: str
    parent_number: int | None

    @classmethod
    def of_new(cls, trial_id: int, number: int, parent_number: int | None = None) -> TrialChange:
        """The change to tell when a trial of ScaMP has been created, which has no plan yet."""
        return cls(trial_id, number, TrialState.WAITING, 0, 0, None, NO_PLAN_YET, parent_number)


@dataclass(frozen=True, slots=True)
class AttemptChange:
    """An attempt has begun, has moved, or its ranks have reported how it ended."""

    kind: ClassVar = "attempt"
    trial: int
    attempt: int
    state: AttemptState
    devices: Sequence[str]
    mib_per_rank: int
    outcome: Outcome | None
    detail: str


@dataclass(frozen=True, slots=True)
class NewMetrics:
    """A trial has reported metrics: the last ones of a report, which may have several."""

    kind: ClassVar = "metrics"
    trial: int
    step: int
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster as its controller sees it now; sent when something about it has changed."""

    kind: ClassVar = "cluster"
    status: str
    detail: str
    devices: Sequence[Json]
    speed: str = ""
    controller: Json = field(default_factory=dict)


Change = StudyChange | TrialChange | AttemptChange | NewMetrics | ClusterState
