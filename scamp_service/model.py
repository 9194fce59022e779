"""The rows of the study database as frozen values. The store returns them, and the decisions read them.

Times are seconds since the epoch (UTC). Ids are integers that the database assigns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from estimators.learning import Phase
from estimators.model import MIB, Plan, Prediction
from placement.model import Offer
from placement.option import Option
from scamp_service.lifecycle import ENDED_WELL, AttemptState, Origin, Outcome, StudyState, TrialState
from workloads.training.checkpoints.name import CheckpointName

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads. ``epoch`` grows with each new holder, ``renewals`` while the holder lives.

    No time is stored: whoever waits for the lease sees by its own clock how long nobody has renewed it.
    """

    holder: str  # empty: nobody
    epoch: int
    renewals: int


@dataclass(frozen=True, slots=True)
class Study:
    """A study as a user has asked for it, and its state."""

    id: int
    name: str
    state: StudyState
    spec: Json  # a validated StudySpec, as JSON
    code: str | None  # sha256 of the zip of the user's files, a blob in the store; None for a built-in workload
    reason: str  # why it failed or was stopped; empty otherwise
    created_at: float
    finished_at: float | None
    warnings: tuple[str, ...] = ()  # what was doubtful when it was submitted: parameters that may not be read, say


@dataclass(frozen=True)  # without slots, which a cached property cannot have
class Sized:
    """The result of sizing a candidate: its plan, the reason, and the prediction for the rank with the highest peak.

    ``structure`` identifies the traced structure. ``learned_bytes`` is what earlier trials of the family suggested to
    add under the layout of the plan. It is larger than the ``extra_bytes`` of the prediction when no plan fits with
    that much added. ``options`` are the plans that were compared, and ``pipeline`` is the step of a plan with a
    pipeline as JSON (see ``sizing.sizer``; None: another plan). The store keeps both apart (``Store.options``,
    ``Store.pipeline``), because they are much larger than a trial: a trial that was read has neither. It has no
    ``share`` either, the number of devices for each candidate when this was decided.

    ``step_seconds`` are those predicted for an optimizer step of the gang alone on its host, times ``step_factor``,
    which was learned from earlier trials of the family (1: nothing was). None where the speed of the devices is not
    known.
    """

    structure: str
    plan: Plan
    prediction: Prediction
    reason: str
    learned_bytes: int = 0
    options: tuple[Option, ...] = ()
    step_seconds: float | None = None
    step_factor: float = 1.0
    pipeline: Json | None = None
    share: int = 1
    num_params: int = 0

    @property
    def quantities(self) -> Mapping[str, float | None]:
        """Everything that a study may bound, by its name in ``study.predicted``; None where it is not known."""
        return {
            "peak_mib": self.prediction.expected_bytes / MIB,
            "reserved_mib": self.prediction.reserved_mib,
            "step_seconds": self.step_seconds,
            "ranks": self.plan.world_size,
            "parameters": self.num_params or None,
        }

    @cached_property
    def demand(self) -> tuple[int, int]:
        """Ranks of the plan, and MiB to reserve for each. The queue asks for it in every cycle."""
        return self.plan.world_size, self.prediction.reserved_mib


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate's life. ``attempt`` counts the attempts begun (0: none yet).

    ``sized`` is the newest plan, None before the first one. ``structure`` is also set for candidates that fit nowhere.
    Trials with the same ``family`` learn from each other's memory. ``measured_bytes`` is the largest measured peak (0:
    none). ``measured_step_seconds`` is the newest of the attempts with this plan (None: none). ``num_lost`` and
    ``num_oom`` count the attempts that were lost or ran out of memory. ``passed_over`` counts the later trials that
    have begun since this one was queued, up to the number that decides something. ``judged_step`` is the last rung at
    which the stopping rule has decided. ``value`` is the objective at ``step``: the newest while the trial runs, the
    final one afterwards, NaN if it diverged. ``num_faults`` counts the attempts in a row that a fault of the host ended
    without a new checkpoint; before ``retry_at`` the trial does not run again. ``offer`` are the devices on which an
    INFEASIBLE trial fits under no plan, None if it would fit on no devices at all. It ``once_fit`` if the cluster had
    devices for its newest plan, and has lost them. ``origin`` says who has created the trial. A
    copy of another one begins with its checkpoint, ``parent``.
    """

    id: int
    study_id: int
    number: int
    state: TrialState
    attempt: int
    params: Json
    reason: str
    structure: str
    sized: Sized | None
    measured_bytes: int
    measured_step_seconds: float | None
    family: str
    num_lost: int
    num_oom: int
    passed_over: int
    judged_step: int
    step: int
    value: float | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    num_faults: int = 0
    retry_at: float = 0.0
    offer: Offer | None = None
    once_fit: bool = False
    origin: Origin = Origin.SEARCH
    parent_id: int | None = None
    parent_number: int | None = None
    parent_step: int | None = None

    @property
    def parent(self) -> CheckpointName | None:
        """The checkpoint of another trial with which this one begins; None: it begins anew."""
        if self.parent_id is None or self.parent_step is None:
            return None
        return CheckpointName(self.parent_id, self.parent_step)

    @property
    def plan(self) -> Plan | None:
        """The newest plan, None before the first one."""
        return self.sized.plan if self.sized else None

    @property
    def prediction(self) -> Prediction:
        """The newest prediction; all zeros before the first plan."""
        return self.sized.prediction if self.sized else Prediction()

    @property
    def predicted_step_seconds(self) -> float | None:
        """Predicted seconds of a step under the newest plan; None before it, or where none are predicted."""
        return self.sized.step_seconds if self.sized else None

    @property
    def quantities(self) -> Mapping[str, float | None]:
        """Everything that is predicted for the newest plan; nothing before it."""
        return self.sized.quantities if self.sized else {}

    @property
    def is_healed(self) -> bool:
        """Whether the trial ran out of memory at least once, and still completed or was pruned."""
        return self.num_oom > 0 and self.state in ENDED_WELL


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a trial. ``token`` fences it: a report with another token is refused.

    ``measured_bytes`` is the largest peak of tensors of one rank, or a lower bound when the attempt ran
    out of memory. ``predicted_step_seconds`` and ``step_factor`` are those of the plan (see ``Sized``).
    ``measured_step_seconds`` is the median of ``timed_steps`` optimizer steps, without the first ones, evaluations and
    checkpoints (None: no step was timed). ``checkpoint_step`` is the step of the last committed checkpoint (-1: none).
    ``detail`` explains the outcome. ``phase`` is what the attempt did when it ran out of memory (``learning.Phase``).
    """

    trial_id: int
    attempt: int
    token: str
    state: AttemptState
    plan: Plan
    devices: tuple[str, ...]
    device_kinds: tuple[str, ...]
    prediction: Prediction
    placement_reason: str
    created_at: float
    predicted_step_seconds: float | None = None
    step_factor: float = 1.0
    measured_bytes: int = 0
    measured_step_seconds: float | None = None
    timed_steps: int = 0
    outcome: Outcome | None = None
    detail: str = ""
    phase: str = ""
    checkpoint_step: int = -1
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def key(self) -> str:
        """Id of the attempt's gang in the executor, the ledger and the API: ``trial/attempt``."""
        return f"{self.trial_id}/{self.attempt}"

    @property
    def mib_per_rank(self) -> int:
        """MiB reserved on a device for one rank."""
        return self.prediction.reserved_mib

    @property
    def expected_bytes(self) -> int:
        """Predicted peak to compare with the measured one: that of an evaluation if one ran out of memory."""
        of_evaluation = self.prediction.evaluation_bytes if self.phase == Phase.EVALUATION else 0
        return of_evaluation or self.prediction.expected_bytes

    @property
    def least_bytes(self) -> int:
        """Lower bound in bytes on what one rank needs, once the attempt has run out of memory.

        It is the larger of the reservation and of what the rank held plus its failed request.
        """
        return max(self.measured_bytes, self.mib_per_rank * MIB)


@dataclass(frozen=True, slots=True)
class Refusals:
    """INFEASIBLE trials of a running study for which the devices of ``offer`` do not suffice.

    They ``once_fit`` if the cluster has lost the devices of their plans.
    ``newest_at`` is the time of the newest verdict.
    """

    study_id: int
    offer: Offer
    once_fit: bool
    newest_at: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One evaluation, reported by rank 0. (trial, attempt, seq) is unique, so a repeated report is stored once."""

    trial_id: int
    attempt: int
    seq: int
    step: int
    values: Mapping[str, float]
    time: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a rank printed. (trial, attempt, rank, seq) is unique, so a repeated report is stored once."""

    trial_id: int
    attempt: int
    rank: int
    seq: int
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """One change that clients are notified of. ``id`` grows in commit order and is the id of the server-sent event."""

    id: int
    time: float
    kind: str  # "study", "trial", "attempt", "metrics", "cluster"
    study_id: int | None
    trial_id: int | None
    data: Json


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers of studies and trials by state, and of open attempts, over all studies. Absent states are left out."""

    studies: Mapping[StudyState, int]
    trials: Mapping[TrialState, int]
    open_attempts: int
