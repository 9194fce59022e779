"""What the API answers: the documented shape of every response, built from the rows of the study database.

Times are seconds since the epoch (UTC). JSON has no NaN and no infinity: such a number is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from estimators.model import Plan
from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Attempt, Json, LogLine, Metric, Study, Trial
from scamp_service.store.summary import Summary
from scamp_service.study.spec import StudySpec

Item = TypeVar("Item")
Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(description="seconds since the epoch, UTC", examples=[1_790_000_000.0])]
LastEvent = Annotated[
    int, Field(description="this answer is at least as new as this event: follow /v1/events?after= from here")
]


class View(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="null", protected_namespaces=())


class Problem(View):
    """An error by RFC 9457; ``detail`` says what is wrong and what to do."""

    type: str = "about:blank"
    title: Annotated[str, Field(examples=["Unprocessable Content"])]
    status: Annotated[int, Field(examples=[422])]
    detail: Annotated[str, Field(examples=["the study is not valid: space.lr: a log range needs low > 0, got 0"])]


class NewStudy(View):
    """A study to run. ``code_zip`` holds the user's own files, when ``workload`` is ``FILE.py:Class``."""

    spec: StudySpec
    code_zip: Annotated[str | None, Field(description="a zip in base64, at most 64 MiB before and after unpacking")] = (
        None
    )


class Page(View, Generic[Item]):
    items: list[Item]
    next: Annotated[
        int | None, Field(description="pass it as `after` for the next page; null: this is the last (see also Link)")
    ] = None


class BestView(View):
    """The leading trial: the best completed one, or else the best that still runs."""

    trial: Annotated[int, Field(description="its number in the study")]
    value: float | None
    params: dict[str, Any]
    plan: Annotated[str, Field(description="the plan in words", examples=["FSDP over 2 ranks, micro-batch 2 × 16"])]


class StudyView(View):
    id: int
    name: str
    state: StudyState
    reason: Annotated[str, Field(description="why it failed or was stopped; empty otherwise")]
    spec: Annotated[dict[str, Any], Field(description="the StudySpec with all defaults filled in")]
    trials: Annotated[
        dict[TrialState, Count], Field(description="trials by state, without zeros", examples=[{"COMPLETED": 12}])
    ]
    best: BestView | None
    device_seconds: Annotated[float, Field(description="seconds × devices held by its attempts so far")]
    created_at: Time
    finished_at: Time | None


class LessonView(View):
    """What the newest trials of a family teach of its memory: bytes that its next candidate is predicted with, beyond
    its trace and the constant margin. A family is a workload with its code and all parameters but the numbers that a
    study searches."""

    family: str
    extra_bytes: Annotated[int, Field(description="reserved beyond trace and margin")]
    bias_bytes: Annotated[int, Field(description="of these, tensors that the median trial has and its trace does not")]
    num_trials: Annotated[int, Field(description="trials that are evidence")]
    num_out_of_memory: Annotated[int, Field(description="those of them that went out of memory")]


class OutOfMemoryView(View):
    attempts: Annotated[int, Field(description="how many ended so")]
    least_excess_pct: Annotated[
        float | None, Field(description="the worst needed so much more than predicted, or beyond")
    ]


class SummaryView(View):
    """The study in a few numbers, the same as `scamp run --json` prints."""

    study: int
    name: str
    state: StudyState
    trials: dict[TrialState, Count]
    best: BestView | None
    degrees: Annotated[dict[str, Count], Field(description="ranks of a gang → trials that ran so")]
    colocated: Annotated[int, Field(description="most gangs of the study at once on one device")]
    healed: Annotated[int, Field(description="trials that ended well after an out-of-memory")]
    prediction_error_pct: Annotated[
        dict[str, float | None],
        Field(description="predicted against measured peak, where that is exact: median and max, absolute"),
    ]
    out_of_memory: OutOfMemoryView
    device_seconds: float
    wall_seconds: float
    best_metrics: Annotated[dict[str, float | None], Field(description="the last evaluation of the best trial")]
    learned: list[LessonView]


class StudyDetail(StudyView):
    summary: SummaryView
    last_event_id: LastEvent


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
    plan_reason: Annotated[str, Field(description="why this plan, and no more preferred one")]
    num_ranks: Annotated[int, Field(description="devices that the plan spreads it over; 0 while there is no plan")]
    predicted_bytes: Annotated[int, Field(description="predicted peak of one rank, with extra_bytes")]
    extra_bytes: Annotated[int, Field(description="of these, what past trials and its own failures have taught")]
    bias_bytes: Annotated[int, Field(description="of the extra_bytes, tensors that the trace does not show")]
    learned_bytes: Annotated[int, Field(description="what its family had taught when it was planned, taken or not")]
    family: Annotated[str, Field(description="trials that learn of each other; empty until it is planned")]
    reserved_mib: Annotated[int, Field(description="reserved on a device for one rank")]
    measured_bytes: Annotated[int, Field(description="measured peak of one rank; 0 while unknown")]
    num_oom: int
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
    devices: Annotated[list[str], Field(description="one device per rank, in rank order")]
    placement_reason: str
    mib_per_rank: int
    predicted_bytes: int
    extra_bytes: int
    bias_bytes: int
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


class GangView(View):
    """An attempt that holds devices."""

    key: Annotated[str, Field(description="trial id/attempt", examples=["17/1"])]
    study_id: int
    study_name: str
    trial_id: int
    number: Annotated[int, Field(description="of the trial in its study")]
    attempt: int
    state: AttemptState
    plan_text: str
    devices: list[str]
    mib_per_rank: int
    placement_reason: str
    created_at: Time


class DeviceView(View):
    id: str
    node: str
    index: int
    kind: str
    capacity_mib: int
    reserved_mib: int
    free_mib: int
    gangs: list[GangView]


class WaitingView(View):
    """A trial that has yet to get devices, and why."""

    study_id: int
    study_name: str
    trial_id: int
    number: int
    state: TrialState
    plan: dict[str, Any] | None
    plan_text: str
    reserved_mib: int
    reason: str


class ClusterView(View):
    status: Annotated[str, Field(description="`starting` until a live controller has reported", examples=["ready"])]
    detail: str
    controller_alive: bool
    controller_silent_seconds: Annotated[float | None, Field(description="since it was last heard of; null: never")]
    devices: list[DeviceView]
    gangs: list[GangView]
    waiting: Annotated[list[WaitingView], Field(description="the first 200")]
    num_waiting: int
    last_event_id: LastEvent


class EventView(View):
    """The `data` of a server-sent event; `id` and `event` (the kind) are fields of the stream as well."""

    id: int
    time: Time
    kind: Annotated[str, Field(description="study, trial, attempt, metrics or cluster")]
    study_id: int | None
    trial_id: int | None
    data: Annotated[dict[str, Any], Field(description="what has changed")]


class Health(View):
    status: Annotated[str, Field(examples=["ok"])]


class Readiness(View):
    status: Annotated[str, Field(examples=["ready"])]
    database: Annotated[str, Field(examples=["ok"])]
    controller: Annotated[str, Field(examples=["ok"])]


# --- from rows -------------------------------------------------------------------------------------------------------


def study_view(study: Study, counts: Mapping[TrialState, int], best: Trial | None, device_seconds: float) -> StudyView:
    leading = None
    if best is not None:
        leading = BestView(trial=best.number, value=best.value, params=dict(best.params), plan=plan_text(best.plan))
    return StudyView(
        **_study_fields(study),
        trials={state: counts[state] for state in TrialState if counts.get(state)},
        best=leading,
        device_seconds=device_seconds,
    )


def study_detail(study: Study, summary: Summary, last_event_id: int) -> StudyDetail:
    told = SummaryView.model_validate(summary.to_json())
    return StudyDetail(
        **_study_fields(study),
        trials=told.trials,
        best=told.best,
        device_seconds=told.device_seconds,
        summary=told,
        last_event_id=last_event_id,
    )


def trial_view(trial: Trial) -> TrialView:
    return TrialView(**_trial_fields(trial))


def trial_detail(trial: Trial, attempts: Iterable[Attempt], last_event_id: int) -> TrialDetail:
    return TrialDetail(
        **_trial_fields(trial), attempts=[attempt_view(attempt) for attempt in attempts], last_event_id=last_event_id
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    """Without the fencing token, which is a secret of the ranks."""
    own = {name: getattr(attempt, name) for name in AttemptView.model_fields if name != "plan_text"}
    return AttemptView(**own, plan_text=plan_text(attempt.plan))


def peaks_view(number: int, attempts: Sequence[Attempt]) -> PeaksView:
    peaks = [_peak(attempt) for attempt in attempts]
    return PeaksView(trial_id=attempts[0].trial_id, number=number, attempts=peaks)


def _peak(attempt: Attempt) -> PeakView:
    failed = attempt.outcome is Outcome.OUT_OF_MEMORY
    return PeakView(
        attempt=attempt.attempt,
        outcome=attempt.outcome,
        predicted_bytes=attempt.traced_bytes + attempt.bias_bytes,
        measured_bytes=attempt.least_bytes if failed else attempt.measured_bytes,
        lower_bound=failed,
        reserved_mib=attempt.mib_per_rank,
    )


def metric_view(metric: Metric) -> MetricView:
    return MetricView(step=metric.step, attempt=metric.attempt, values=dict(metric.values), time=metric.time)


def log_view(row: tuple[int, LogLine]) -> LogLineView:
    line_id, line = row
    return LogLineView(id=line_id, attempt=line.attempt, rank=line.rank, time=line.time, text=line.text)


def gang_view(attempt: Attempt, trial: Trial, study_name: str) -> GangView:
    return GangView(
        key=attempt.key,
        study_id=trial.study_id,
        study_name=study_name,
        trial_id=trial.id,
        number=trial.number,
        attempt=attempt.attempt,
        state=attempt.state,
        plan_text=plan_text(attempt.plan),
        devices=list(attempt.devices),
        mib_per_rank=attempt.mib_per_rank,
        placement_reason=attempt.placement_reason,
        created_at=attempt.created_at,
    )


def device_view(device: Json, gangs: Sequence[GangView]) -> DeviceView:
    here = [gang for gang in gangs if device["id"] in gang.devices]
    reserved = sum(gang.mib_per_rank for gang in here)
    return DeviceView(
        id=device["id"],
        node=device["node"],
        index=device["index"],
        kind=device["kind"],
        capacity_mib=device["capacity_mib"],
        reserved_mib=reserved,
        free_mib=device["capacity_mib"] - reserved,
        gangs=here,
    )


def waiting_view(trial: Trial, study_name: str) -> WaitingView:
    return WaitingView(
        study_id=trial.study_id,
        study_name=study_name,
        trial_id=trial.id,
        number=trial.number,
        state=trial.state,
        plan=None if trial.plan is None else dict(trial.plan),
        plan_text=plan_text(trial.plan),
        reserved_mib=trial.reserved_mib,
        reason=trial.reason,
    )


def plan_text(plan: Json | None) -> str:
    return str(Plan.from_json(plan)) if plan else ""


def _study_fields(study: Study) -> dict[str, Any]:
    names = ("id", "name", "state", "reason", "spec", "created_at", "finished_at")
    return {name: getattr(study, name) for name in names}


def _trial_fields(trial: Trial) -> dict[str, Any]:
    derived = {
        "plan_text": plan_text(trial.plan),
        "num_ranks": Plan.from_json(trial.plan).world_size if trial.plan else 0,
    }
    return {name: getattr(trial, name) for name in TrialView.model_fields if name not in derived} | derived
