"""Views of a trial: its attempts, their memory peaks, its metrics and its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from api.views.studies import RequestBody
from api.views.view import LastEvent, NumRanks, PlanShort, Time, View
from placement.option import Evidence, Option
from scamp_service.lifecycle import AttemptState, Origin, Outcome, TrialState, WaitsFor
from scamp_service.model import Attempt, LogLine, Metric, Trial
from scamp_service.store.fields import attempt_fields, trial_fields
from scamp_service.store.options import option_json
from scamp_service.study.objectives import Objectives


class RunView(View):
    """Shared by a trial and its attempts: the plan, and what was predicted and measured under it."""

    plan_short: PlanShort
    num_ranks: NumRanks
    predicted_bytes: int
    """predicted peak of one rank, including extra_bytes"""
    bias_bytes: int
    """part of extra_bytes: tensors that the trace misses"""
    evaluation_bytes: int
    """predicted peak of an evaluation; 0 where it is not known"""
    expected_bytes: int
    """predicted peak of tensors, to compare with measured_bytes"""
    predicted_step_seconds: float | None
    """predicted seconds of an optimizer step of the gang alone on its host, with step_factor; null where the speed of
    its devices is not known"""
    step_factor: float
    """how many times as long steps of its family took as predicted; 1: nothing learned"""
    measured_step_seconds: float | None
    """median seconds of a step, without the first ones, evaluations and checkpoints; null: none"""
    predicted_communication_share: float | None
    """predicted share (0 to 1) of a step in which ranks wait for each other; null: not known"""
    measured_communication_share: float | None
    """measured share, of the rank that waits least; null: not measured"""
    created_at: Time
    started_at: Time | None


class TrialView(RunView):
    """A trial as it is listed."""

    id: int
    study_id: int
    number: int
    """number in the study, from 0; part of its address in this API"""
    state: TrialState
    origin: Origin
    """who created it: the study's sampler (SEARCH), a user (ENQUEUED), a stopping rule, as a copy of another one
    (BRANCH), a study with `repeats`, for another seed (REPEAT), or another program, which also runs it (EXTERNAL)"""
    parent_number: int | None
    """number of the trial with whose weights it began, or that it repeats; null: neither"""
    best_step: int | None
    """step of `value` where trials count by their best report; null: `step`"""
    parent_step: int | None
    """step of the checkpoint of that trial; null: it began anew"""
    attempt: int
    """number of attempts so far"""
    params: dict[str, Any]
    reason: str
    """reason of its state: why it waits, was placed there, failed or is infeasible"""
    waits_for: WaitsFor | None
    """what it waits for: its first plan or a new one, the predictions of all candidates, devices, the end of another
    trial of its study (MAX_CONCURRENT), the quota of its project, its next try after a fault of the host (RETRY), the
    trials that repeat it, or a stopping rule, which has not judged it yet where it has paused (COMPARISON), or has
    (PROMOTION). null: it does not wait"""
    proposal_reason: str
    """why it was chosen among several proposals, with their scores by `search.filter`; or empty"""
    plan: dict[str, Any] | None
    """null while there is no plan"""
    plan_text: str
    """the plan in words; empty while there is none"""
    plan_reason: str
    """why this plan was chosen"""
    batch: int
    """samples per optimizer step over all ranks; 0 while there is no plan"""
    extra_bytes: int
    """bytes added because earlier trials of its family, or itself, needed more than traced"""
    learned_bytes: int
    """extra bytes learned for its family and layout when it was planned, whether used or not"""
    family: str
    """trials of one family share memory corrections; empty until it is planned"""
    reserved_mib: int
    """MiB reserved on a device for one rank"""
    measured_bytes: int
    """largest measured peak of one rank's tensors, a lower bound if it ran out of memory; 0: none"""
    flops_per_sample: float | None
    """floating point operations of a training step for one sample, forward and backward"""
    num_params: int
    """number of the model's parameters; 0: not known"""
    check_share: float | None
    """share (0 to 1) of the time of its newest attempt in which the training checked itself; null: no step was timed"""
    noise_scale: float | None
    """of its gradient, in samples, as AdaScale estimates it; null: not known"""
    num_oom: int
    """attempts that ran out of memory"""
    healed: bool
    """whether it completed or was pruned after running out of memory"""
    num_lost: int
    """attempts that were lost, for example with their node"""
    num_failures: int
    """attempts that its own code ended with an error, since a user last retried it"""
    num_faults: int
    """attempts in a row that a fault of the host, such as a full disk, ended without a checkpoint; they do not count
    against the trial until they are too many"""
    step: int
    """optimizer step of its last evaluation"""
    value: float | None
    """objective at `step`; null while unknown or not finite"""
    values: list[float | None]
    """value of each of the study's objectives, in the order of `spec.objectives`; null while unknown or not finite.
    With one objective it is `value` alone"""
    repeats: list[list[float | None]]
    """`values` of its trainings with several seeds, its own first, in a study with `repeats`; those above are then
    their means. Empty: it was trained once"""
    deviations: list[float | None]
    """sample standard deviation of each of `values` over these seeds; empty: it was trained once"""
    metrics: dict[str, float | None]
    """all metrics of its last evaluation, or of its best where trials count by that one; null: not finite"""
    finished_at: Time | None
    paused: bool
    """whether a user has paused it"""
    priority: int
    """waiting trials of a higher one start before others of their study"""


class ChangedTrial(RequestBody):
    """Changes of a trial that has not ended; what is left out stays."""

    paused: Annotated[bool | None, Field(description="true: it stops and keeps its last checkpoint, until false")] = (
        None
    )
    priority: Annotated[
        int | None, Field(ge=-100, le=100, description="0 at first; a higher one starts before others of its study")
    ] = None


class WatchView(View):
    """How busy the first rank of an attempt was in a span of time: a minute, or more of a long attempt."""

    ended: Time
    seconds: float
    busy_share: float
    """share (0 to 1) of the time in which its GPU computed, or its process on a CPU"""
    mib: float
    """memory that it had at the end: of torch's allocator on a GPU, of the process on a CPU"""


class AttemptView(RunView):
    """One run of a trial on devices."""

    attempt: int
    """number of the attempt in its trial, from 1"""
    state: AttemptState
    outcome: Outcome | None
    detail: str
    """details of its end, such as a traceback"""
    phase: str
    """what it did when it ran out of memory, such as `an evaluation`"""
    plan: dict[str, Any]
    plan_text: str
    devices: list[str]
    """device of each rank, in rank order"""
    placement_reason: str
    """why it was placed on these devices"""
    mib_per_rank: int
    """MiB reserved on a device for one rank"""
    extra_bytes: int
    """bytes added to the traced peak"""
    measured_bytes: int
    """largest measured peak; after running out of memory, the bytes that were held and requested"""
    timed_steps: int
    """steps timed so far; measured_step_seconds is their median"""
    checkpoint_step: int
    """step of its last committed checkpoint; -1: none"""
    ended_at: Time | None
    pack: str
    """attempts with the same text here share a process (`TRIAL/ATTEMPT`, by ids); empty: none"""
    shared_mib: int
    """MiB of frozen weights in `mib_per_rank`, which all attempts that share a process have together"""
    load: list[WatchView]
    """how busy its first rank was, in order; empty in its first minute"""


class OptionView(View):
    """One of the plans that were compared when the trial was sized."""

    plan: dict[str, Any]
    plan_text: str
    num_ranks: NumRanks
    chosen: bool
    fits: bool
    """whether one rank's reservation is within what devices offer"""
    reserved_mib: int
    """MiB to reserve on a device for one rank"""
    offered_mib: int
    """MiB that each of its devices offers"""
    at_least: bool
    """whether reserved_mib is a lower bound"""
    traced: bool
    """whether its memory is that of a trace, and not added up from the costs of blocks"""
    evidence: Evidence
    """how reserved_mib is known: by traces; by a trace of one micro-batch, which needs too much; from model states
    alone, which are too large; or added up from the costs of units"""
    seconds: float | None
    """seconds of a step, from the costs of blocks, if every rank has a core for itself, with what was learned; null
    where the devices' speed is not known"""
    communication_share: float | None
    """predicted share of the step, 0 to 1, in which ranks wait for each other"""
    relative_device_seconds: float | None
    """devices × seconds of a step, over that of the chosen plan"""


class TrialDetail(TrialView):
    """A trial with all its attempts, and the plans that were compared: the examined ones, then faster ones."""

    attempts: list[AttemptView]
    shared_with: list[int]
    """numbers of the other trials that share the process of its last attempt, or have shared it"""
    options: list[OptionView]
    unstored: str
    """checkpoints that are only on the service's host although object storage should have them, since when and why;
    empty: none"""
    last_event_id: LastEvent


class PeakView(View):
    """Tensors of one rank at its peak, and seconds of a step, as predicted before the attempt and as measured."""

    attempt: int
    outcome: Outcome | None
    predicted_bytes: int
    """traced tensors, and those that the trace is known to miss"""
    measured_bytes: int
    """exact peak, or a lower bound of it if `lower_bound`"""
    lower_bound: bool
    """whether the attempt ran out of memory"""
    reserved_mib: int
    """MiB reserved on a device for one rank"""
    predicted_step_seconds: float | None
    """null where the devices' speed is not known"""
    measured_step_seconds: float | None
    """null: no step was timed"""


class PeaksView(View):
    """Memory peaks and step times of all measured attempts of a trial."""

    trial_id: int
    number: int
    state: TrialState
    """state of the trial"""
    attempts: list[PeakView]


class MetricView(View):
    """One evaluation of a trial."""

    step: int
    attempt: int
    values: Annotated[dict[str, float | None], Field(examples=[{"accuracy": 0.953, "loss": 0.21}])]
    time: Time


class LogLineView(View):
    """One line that a rank printed."""

    id: int
    """ascending; pass the last one as `after` for later lines"""
    attempt: int
    rank: int
    time: Time
    text: str


def trial_view(trial: Trial, objectives: Objectives, metrics: Mapping[str, float | None]) -> TrialView:
    """View of a trial as it is listed, with the ``metrics`` that it counts by."""
    return TrialView(**trial_fields(trial, objectives), metrics=dict(metrics))


def trial_detail(
    trial: Trial,
    objectives: Objectives,
    metrics: Mapping[str, float | None],
    attempts: Iterable[Attempt],
    shared_with: Iterable[int],
    options: Iterable[Option],
    last_event_id: int,
    unstored: str = "",
) -> TrialDetail:
    """View of a trial with its attempts, and with the plans that were compared.

    ``shared_with`` are the numbers of other trials that share its process; ``unstored`` says which checkpoints are late
    in object storage.
    """
    return TrialDetail(
        **trial_fields(trial, objectives),
        metrics=dict(metrics),
        attempts=[attempt_view(attempt) for attempt in attempts],
        shared_with=list(shared_with),
        options=[OptionView(**option_json(option, trial.plan)) for option in options],
        unstored=unstored,
        last_event_id=last_event_id,
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    """View of an attempt, without the fencing token, which is a secret of the ranks."""
    load = [WatchView(**asdict(watch)) for watch in attempt.load]
    return AttemptView(**{**attempt_fields(attempt), "load": load})


def peaks_view(number: int, state: TrialState, attempts: Sequence[Attempt]) -> PeaksView:
    """View of the memory peaks of trial ``number`` in ``state``; ``attempts`` are at least one, all measured."""
    peaks = [_peak(attempt) for attempt in attempts]
    return PeaksView(trial_id=attempts[0].trial_id, number=number, state=state, attempts=peaks)


def _peak(attempt: Attempt) -> PeakView:
    failed = attempt.outcome is Outcome.OUT_OF_MEMORY
    return PeakView(
        attempt=attempt.attempt,
        outcome=attempt.outcome,
        predicted_bytes=attempt.expected_bytes,
        measured_bytes=attempt.least_bytes if failed else attempt.measured_bytes,
        lower_bound=failed,
        reserved_mib=attempt.mib_per_rank,
        predicted_step_seconds=attempt.choice.step_seconds,
        measured_step_seconds=attempt.measured_step_seconds,
    )


def metric_view(metric: Metric) -> MetricView:
    """View of one evaluation."""
    return MetricView(step=metric.step, attempt=metric.attempt, values=dict(metric.values), time=metric.time)


def log_view(row: tuple[int, LogLine]) -> LogLineView:
    """View of a (line id, line) from the study database."""
    line_id, line = row
    return LogLineView(id=line_id, attempt=line.attempt, rank=line.rank, time=line.time, text=line.text)
