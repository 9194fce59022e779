"""A trial with its attempts, their peaks of memory, its metrics and its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field

from api.views.view import LastEvent, NumRanks, PlanShort, Time, View
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Attempt, LogLine, Metric, Trial
from scamp_service.store.fields import attempt_fields, trial_fields


class TrialView(View):
    id: int
    study_id: int
    number: Annotated[int, Field(description="counts from 0 in the study; addresses it in this API")]
    state: TrialState
    attempt: Annotated[int, Field(description="attempts begun")]
    params: dict[str, Any]
    reason: Annotated[str, Field(description="of its state: why it waits, was placed there, failed, is infeasible")]
    plan: dict[str, Any] | None
    plan_text: Annotated[str, Field(description="the plan in words; empty while there is none")]
    plan_short: PlanShort
    plan_reason: Annotated[str, Field(description="why this plan, and no more preferred one")]
    num_ranks: NumRanks
    batch: Annotated[int, Field(description="samples per optimizer step over all ranks; 0 while there is no plan")]
    predicted_bytes: Annotated[int, Field(description="predicted peak of one rank, with extra_bytes")]
    extra_bytes: Annotated[int, Field(description="of these, what past trials and its own failures have taught")]
    bias_bytes: Annotated[int, Field(description="of the extra_bytes, tensors that the trace does not show")]
    expected_bytes: Annotated[int, Field(description="predicted tensors: compare it with measured_bytes")]
    learned_bytes: Annotated[int, Field(description="what its family had taught when it was planned, taken or not")]
    family: Annotated[str, Field(description="trials that learn of each other; empty until it is planned")]
    reserved_mib: Annotated[int, Field(description="reserved on a device for one rank")]
    measured_bytes: Annotated[int, Field(description="measured peak of one rank; 0 while unknown")]
    num_oom: int
    healed: Annotated[bool, Field(description="it completed or was pruned after an out-of-memory")]
    num_lost: int
    step: int
    value: Annotated[float | None, Field(description="the objective at `step`; null while unknown or not finite")]
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


class AttemptView(View):
    attempt: int
    state: AttemptState
    outcome: Outcome | None
    detail: Annotated[str, Field(description="of its end, such as a traceback")]
    plan: dict[str, Any]
    plan_text: str
    plan_short: PlanShort
    num_ranks: NumRanks
    devices: Annotated[list[str], Field(description="one device per rank, in rank order")]
    placement_reason: str
    mib_per_rank: int
    predicted_bytes: int
    extra_bytes: int
    bias_bytes: int
    expected_bytes: Annotated[int, Field(description="predicted tensors: compare it with measured_bytes")]
    measured_bytes: Annotated[int, Field(description="after an out-of-memory: what was held and asked for")]
    checkpoint_step: Annotated[int, Field(description="step of its last committed checkpoint; -1: none")]
    created_at: Time
    started_at: Time | None
    ended_at: Time | None


class TrialDetail(TrialView):
    attempts: list[AttemptView]
    last_event_id: LastEvent


class PeakView(View):
    """Tensors of one rank at its peak, as predicted before the attempt began and as measured in it."""

    attempt: int
    outcome: Outcome | None
    predicted_bytes: Annotated[int, Field(description="by the trace, and the tensors that its family is known to miss")]
    measured_bytes: Annotated[int, Field(description="exact; with lower_bound: it needs more than this")]
    lower_bound: Annotated[bool, Field(description="it went out of memory")]
    reserved_mib: int


class PeaksView(View):
    trial_id: int
    number: int
    attempts: list[PeakView]


class MetricView(View):
    step: int
    attempt: int
    values: Annotated[dict[str, float | None], Field(examples=[{"accuracy": 0.953, "loss": 0.21}])]
    time: Time


class LogLineView(View):
    id: Annotated[int, Field(description="grows; pass the last one as `after`")]
    attempt: int
    rank: int
    time: Time
    text: str


def trial_view(trial: Trial) -> TrialView:
    return TrialView(**trial_fields(trial))


def trial_detail(trial: Trial, attempts: Iterable[Attempt], last_event_id: int) -> TrialDetail:
    return TrialDetail(
        **trial_fields(trial), attempts=[attempt_view(attempt) for attempt in attempts], last_event_id=last_event_id
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    """Without the fencing token, which is a secret of the ranks."""
    return AttemptView(**attempt_fields(attempt))


def peaks_view(number: int, attempts: Sequence[Attempt]) -> PeaksView:
    peaks = [_peak(attempt) for attempt in attempts]
    return PeaksView(trial_id=attempts[0].trial_id, number=number, attempts=peaks)


def _peak(attempt: Attempt) -> PeakView:
    failed = attempt.outcome is Outcome.OUT_OF_MEMORY
    return PeakView(
        attempt=attempt.attempt,
        outcome=attempt.outcome,
        predicted_bytes=attempt.prediction.expected_bytes,
        measured_bytes=attempt.least_bytes if failed else attempt.measured_bytes,
        lower_bound=failed,
        reserved_mib=attempt.mib_per_rank,
    )


def metric_view(metric: Metric) -> MetricView:
    return MetricView(step=metric.step, attempt=metric.attempt, values=dict(metric.values), time=metric.time)


def log_view(row: tuple[int, LogLine]) -> LogLineView:
    line_id, line = row
    return LogLineView(id=line_id, attempt=line.attempt, rank=line.rank, time=line.time, text=line.text)
