"""The rows of the study database as frozen values; what the store returns and the decisions read.

Times are seconds since the epoch (UTC). Identifiers are integers given by the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.model import MIB
from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Study:
    id: int
    name: str
    state: StudyState
    spec: Json  # a validated StudySpec, as JSON
    code: str | None  # sha256 of the zip of user files sent along, in the store's blobs
    reason: str  # why it failed or was stopped; empty otherwise
    created_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """``attempt`` counts the attempts begun (0 = none yet). ``plan``, ``plan_reason`` (why no more preferred plan was
    taken), ``predicted_bytes`` and ``reserved_mib`` are of the newest plan. ``extra_bytes`` is the part of the
    prediction that no trace shows: what out-of-memory failures of this trial, or its family, have taught.
    ``learned_bytes`` is what its ``family`` taught when it was planned, and ``bias_bytes`` the tensors among the
    ``extra_bytes``. ``judged_step`` is the last rung at which stopping has decided. ``value`` is the objective at
    ``step``: the newest while it runs, the final one afterwards.
    """

    id: int
    study_id: int
    number: int
    state: TrialState
    attempt: int
    params: Json
    reason: str
    structure: str
    plan: Json | None
    plan_reason: str
    predicted_bytes: int
    reserved_mib: int
    measured_bytes: int
    extra_bytes: int
    bias_bytes: int
    learned_bytes: int
    family: str
    num_lost: int
    num_oom: int
    judged_step: int
    step: int
    value: float | None
    created_at: float
    started_at: float | None
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a trial. ``token`` fences it: a report with another token is refused. ``extra_bytes`` and
    ``bias_bytes`` are those of the trial's plan, part of ``predicted_bytes``. After an out-of-memory ``measured_bytes``
    is a lower bound. ``checkpoint_step`` is the step of its last committed checkpoint (-1: none)."""

    trial_id: int
    attempt: int
    token: str
    state: AttemptState
    plan: Json
    devices: tuple[str, ...]
    device_kinds: tuple[str, ...]
    mib_per_rank: int
    predicted_bytes: int
    extra_bytes: int
    bias_bytes: int
    measured_bytes: int
    outcome: Outcome | None
    detail: str
    placement_reason: str
    checkpoint_step: int
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def key(self) -> str:
        """Identifies the gang everywhere: ``trial/attempt``."""
        return f"{self.trial_id}/{self.attempt}"

    @property
    def traced_bytes(self) -> int:
        """The peak that the trace alone foretold."""
        return self.predicted_bytes - self.extra_bytes

    @property
    def reserved_bytes(self) -> int:
        """Of one rank, margin included."""
        return self.mib_per_rank * MIB

    @property
    def least_bytes(self) -> int:
        """After an out-of-memory: it needs more than was reserved, and than was held and asked for."""
        return max(self.measured_bytes, self.reserved_bytes)


@dataclass(frozen=True, slots=True)
class Metric:
    """One evaluation, reported by rank 0. (trial, attempt, seq) is unique, so a repeated report counts once."""

    trial_id: int
    attempt: int
    seq: int
    step: int
    values: Mapping[str, float]
    time: float


@dataclass(frozen=True, slots=True)
class LogLine:
    trial_id: int
    attempt: int
    rank: int
    seq: int
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; ``id`` grows in commit order and is the id of the server-sent event."""

    id: int
    time: float
    kind: str  # "study", "trial", "attempt", "metrics", "cluster"
    study_id: int | None
    trial_id: int | None
    data: Json


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over all studies; states that do not occur are left out."""

    studies: Mapping[StudyState, int]
    trials: Mapping[TrialState, int]
    open_attempts: int
