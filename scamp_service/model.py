"""The rows of the study database as frozen values. The store returns them, and the decisions read them.

Times are seconds since the epoch (UTC). Ids are integers that the database assigns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from statistics import stdev
from typing import Any, Literal, TypedDict

from estimators.learning import AttemptPhase
from estimators.model import MIB, Plan, Prediction
from placement.model import Offer, Shape
from placement.option import Option
from placement.packing.device_time import Watch
from placement.pipelining.timeline import PipelineStep
from scamp_service.lifecycle import (
    ENDED_WELL,
    AttemptState,
    DeliveryState,
    Origin,
    Outcome,
    StudyState,
    TrialState,
    WaitsFor,
)
from workloads.batch import BatchRequest, with_batch
from workloads.training.checkpoints.name import CheckpointName

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lease:
    """The leader lease: its holder leads.

    No time is stored: a process that waits for the lease sees by its own clock how long nobody has renewed it.
    """

    holder: str  # empty: nobody
    term: int  # number of the leader's term, as in Raft: one more for each new holder
    renewals: int  # grows while the holder lives


@dataclass(frozen=True, slots=True)
class Study:
    """A study as a user has asked for it, and its state."""

    id: int
    name: str
    state: StudyState
    spec: Json  # a validated StudySpec, as JSON
    created_at: float
    code: str | None = None  # sha256 of the zip of the user's files, a blob in the store; None for a built-in workload
    reason: str = ""  # why it failed or was stopped; empty otherwise
    finished_at: float | None = None
    warnings: tuple[str, ...] = ()  # what was doubtful when it was submitted: parameters that may not be read, say
    regret_bound: float | None = None  # what is left to gain, with high probability; None: not known
    ends_as: StudyState | None = None  # its final state, once the controller stops it for ``reason``
    ran_seconds: float = 0.0  # how long it has run under a controller, at most some seconds ago
    owner: str = ""  # name of the user who submitted it; empty if there were no users
    project: str = ""  # empty for a study of other programs
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False  # not listed unless one asks for it

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of devices that its trials may use; empty: all."""
        return frozenset(self.spec.get("kinds", ()))


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan and its cost: the one of an attempt, or one that a trial may start with."""

    plan: Plan
    prediction: Prediction
    """For the rank with the highest peak."""
    step_seconds: float | None = None
    """Predicted for an optimizer step of the gang alone on its host, times ``step_factor``; None: the speed of the
    devices is not known."""
    step_factor: float = 1.0
    """Learned from earlier trials of the family; 1: nothing was."""
    communication_share: float | None = None
    """Predicted share of a step (0 to 1) in which ranks wait for each other; None: not known."""
    kind: str = ""
    """Kind of devices that it was planned for; empty: any."""

    def to_json(self) -> Json:
        """The fields as a dictionary of JSON values; the plan as text, so that equal ones are read once."""
        parts = {"plan": json.dumps(self.plan.to_json()), "prediction": self.prediction.to_json()}
        return {name: getattr(self, name) for name in self.__slots__} | parts

    @classmethod
    def from_json(cls, data: Json) -> Choice:
        """The choice in its JSON."""
        parts = {"plan": _plan(data["plan"]), "prediction": Prediction.from_json(data["prediction"])}
        return cls(**{**data, **parts})

    @property
    def shape(self) -> Shape:
        """Its demand, with the seconds of one step."""
        return replace(
            demand_of(self.plan, self.prediction),
            seconds=self.step_seconds,
            communication_share=self.communication_share,
            kind=self.kind,
        )


@lru_cache(maxsize=4096)
def _plan(text: str) -> Plan:
    return Plan.from_json(json.loads(text))


def demand_of(plan: Plan, prediction: Prediction) -> Shape:
    """The demand of a plan on the cluster, without seconds."""
    mibs = plan.rank_mibs(prediction)
    samples = tuple(plan.samples_of_rank(rank) for rank in range(plan.world_size)) if mibs else ()
    return Shape(plan.world_size, prediction.reserved_mib, mibs=mibs, samples=samples)


@dataclass(frozen=True, slots=True)
class RecordedPipeline:
    """The step of a plan with a pipeline, as the study database keeps it: with it its timeline is simulated again."""

    step: PipelineStep
    unit: Literal["s", "FLOP"]
    """Unit of the step's times; FLOP where the speed of the devices is not known."""
    communicates: bool
    """Whether communication takes time; it takes none where the links are not known."""
    offered_mib: int | None
    """MiB that each device offers; None: not known."""

    def to_json(self) -> Json:
        return {
            "step": self.step.to_json(),
            "unit": self.unit,
            "communicates": self.communicates,
            "offered_mib": self.offered_mib,
        }

    @classmethod
    def from_json(cls, data: Json) -> RecordedPipeline:
        return cls(PipelineStep.from_json(data["step"]), data["unit"], data["communicates"], data["offered_mib"])


@dataclass(frozen=True)  # without slots, which a cached property cannot have
class Sized:
    """The result of sizing a candidate: its plan with its cost, and the reason.

    The store keeps ``options`` and ``pipeline`` apart (``Trials.options``, ``Trials.pipeline``), because they are much
    larger than a trial. A trial that was read has neither.

    ``learned_bytes`` is larger than the ``extra_bytes`` of the prediction when no plan fits with that much added.
    """

    structure: str
    """Identifies the traced structure."""
    choice: Choice
    reason: str
    learned_bytes: int = 0
    """To add under the plan's layout, learned from earlier trials of the family."""
    options: tuple[Option, ...] = ()
    """The plans that were compared."""
    pipeline: RecordedPipeline | None = None
    """None: the plan has no pipeline."""
    num_params: int = 0
    """Parameters of the model."""
    frozen_bytes: int = 0
    """Bytes of parameters that never train, on one rank without sharding; a pack has them once."""
    flops_per_sample: float | None = None
    """FLOPs of a training step, forward and backward; None: not known."""
    choices: tuple[Choice, ...] = ()
    """This plan and those that may be taken instead: faster ones on more ranks, and those for other kinds of devices;
    or none."""
    is_uneven: bool = False
    """Whether samples differ in size, so that the peak is predicted for the largest and most steps need less."""
    batch_reason: str = ""
    """Why the plan has this batch, if ScaMP has chosen it; the trial keeps it."""

    def taking(self, choice: Choice) -> Sized:
        """This answer with one of the ``choices`` as the plan."""
        return replace(self, choice=choice, pipeline=self.pipeline if choice.plan == self.plan else None)

    def to_json(self) -> Json:
        """The fields as a dictionary of JSON values, without those in ``STORED_APART``."""
        names = (field.name for field in fields(self) if field.name not in STORED_APART)
        return {name: getattr(self, name) for name in names} | {"choice": self.choice.to_json()}

    @classmethod
    def from_json(cls, data: Json) -> Sized:
        """The result in its JSON."""
        return cls(**{**data, "choice": Choice.from_json(data["choice"])})

    @property
    def why(self) -> str:
        """The reasons of the plan and of a chosen batch."""
        return "; ".join(filter(None, (self.reason, self.batch_reason)))

    @property
    def plan(self) -> Plan:
        """The plan that was chosen."""
        return self.choice.plan

    @property
    def prediction(self) -> Prediction:
        """The prediction for the plan."""
        return self.choice.prediction

    @property
    def quantities(self) -> Mapping[str, float | None]:
        """Everything that a study may bound, by its name in ``study.predicted``; None where it is not known."""
        return {
            "peak_mib": self.prediction.expected_bytes / MIB,
            "reserved_mib": self.prediction.reserved_mib,
            "step_seconds": self.choice.step_seconds,
            "ranks": self.plan.world_size,
            "parameters": self.num_params or None,
            "flops": self.flops_per_sample,
        }

    @cached_property
    def demand(self) -> Shape:
        """Ranks of the plan, and MiB to reserve for each. The queue asks for it in every cycle."""
        return demand_of(self.plan, self.prediction)


STORED_APART = ("options", "pipeline", "choices")
"""Fields of ``Sized`` that have columns of their own."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate from its proposal to its end, however often it runs."""

    id: int
    study_id: int
    number: int
    """Number within the study, from 0."""
    state: TrialState
    params: Json
    created_at: float
    attempt: int = 0
    """Attempts begun so far; 0: none yet."""
    reason: str = ""
    """Why it is in its state."""
    structure: str = ""
    """Identifies the traced structure; also set for candidates that fit nowhere."""
    sized: Sized | None = None
    """The newest plan; None before the first one."""
    measured_bytes: int = 0
    """Largest measured peak of a rank; 0: none."""
    measured_step_seconds: float | None = None
    """Seconds of a step in the newest attempt with this plan that was timed; None: none was."""
    family: str = ""
    """Trials of the same family learn from each other's memory."""
    num_lost: int = 0
    """Losses in a row without a new checkpoint; a stall counts as several."""
    num_oom: int = 0
    """Attempts that ran out of memory."""
    passed_over: int = 0
    """Later trials that began since this one was queued, up to the number that decides something."""
    judged_step: int = 0
    """Last rung at which the stopping rule has decided."""
    step: int = 0
    """Step of ``value``."""
    value: float | None = None
    """Objective: the newest while the trial runs, the final one afterwards; NaN if it diverged."""
    started_at: float | None = None
    finished_at: float | None = None
    num_faults: int = 0
    """Attempts in a row that a fault of the host ended without a new checkpoint."""
    retry_at: float = 0.0
    """The trial does not run again before this time."""
    offer: Offer | None = None
    """Devices on which an INFEASIBLE trial does not fit; None: it fits on no devices at all."""
    once_fit: bool = False
    """Whether the cluster had devices for the newest plan, and has lost them."""
    origin: Origin = Origin.SEARCH
    """Who has created the trial."""
    parent_id: int | None = None
    """Id of the trial with whose weights this one begins, or that it repeats; None: neither."""
    parent_number: int | None = None
    parent_step: int | None = None
    """Step of the parent's checkpoint, with which this one begins; None: it begins anew."""
    values: tuple[float | None, ...] | None = None
    """Value of each objective at ``step``, None for predicted ones; None: the study has one objective, or nothing is
    reported yet."""
    repeats: tuple[tuple[float | None, ...], ...] = ()
    """Values of each objective of its trainings with several seeds, its own first; ``value`` and ``values`` are their
    means. Empty: it was trained once."""
    best_step: int | None = None
    """Step of ``value`` in a study whose trials count by their best report; None: ``step``."""
    measured_communication_share: float | None = None
    """Share of a step in the newest attempt with this plan that was measured."""
    check_share: float | None = None
    """Share of the time of its newest timed attempt that checks of the training on itself took."""
    proposal_reason: str = ""
    """Why it was chosen among several proposals of the sampler; empty: it was not."""
    noise_scale: float | None = None
    """Noise scale of its gradient in samples, where AdaScale has estimated it (``workloads.gain``)."""
    waits_for: WaitsFor | None = None
    """Its ``reason`` in one word; None: it does not wait."""
    num_failures: int = 0
    """Attempts that its own code ended with an error, since a user last retried it."""
    requeued_because: str = ""
    """Why it was queued again when its last attempt had ended; empty: it was not, or the next attempt has begun."""
    resumes: bool = True
    """Whether its attempts resume from its checkpoints; not if these have shown not to hold all of its training."""
    paused: bool = False
    """Whether a user lets it not run."""
    priority: int = 0
    """Waiting trials of a higher one start before others of their study."""

    @property
    def parent(self) -> CheckpointName | None:
        """The checkpoint of another trial with whose weights this one begins; None: it begins anew."""
        if self.parent_id is None or self.parent_step is None:
            return None
        return CheckpointName(self.parent_id, self.parent_step)

    def is_kept(self, attempt: Attempt) -> bool:
        """Whether the trial resumes from a checkpoint that ``attempt`` has written."""
        return self.resumes and attempt.checkpoint_step >= 0

    @property
    def is_repeat(self) -> bool:
        """Whether it trains its parent's candidate with another seed. Its value counts only in its parent's mean."""
        return self.origin is Origin.REPEAT

    @property
    def is_judged(self) -> bool:
        """Whether stopping rules judge it: not a repeat, nor a candidate that a user has added."""
        return self.origin not in (Origin.REPEAT, Origin.ENQUEUED)

    @property
    def deviations(self) -> list[float | None]:
        """Sample standard deviation of each objective over the seeds; None where fewer than two are known."""
        columns = [[value for value in column if value is not None] for column in zip(*self.repeats, strict=True)]
        return [stdev(column) if len(column) > 1 else None for column in columns]

    @property
    def is_copy(self) -> bool:
        """Whether it continues as the copy of its parent, instead of beginning as a new model with weights of it."""
        return self.origin is Origin.BRANCH

    @property
    def trained_params(self) -> Json:
        """The parameters that ranks get: with the batch of its plan, once ScaMP has chosen the largest."""
        if self.plan is None or not BatchRequest.of(self.params).takes_largest:
            return self.params
        return with_batch(self.params, self.plan.batch)

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
        return self.sized.choice.step_seconds if self.sized else None

    @property
    def quantities(self) -> Mapping[str, float | None]:
        """Everything that is predicted for the newest plan; nothing before it."""
        return self.sized.quantities if self.sized else {}

    @property
    def is_healed(self) -> bool:
        """Whether the trial ran out of memory at least once, and still completed or was pruned."""
        return self.num_oom > 0 and self.state in ENDED_WELL


class TrialChanges(TypedDict, total=False):
    """Fields of a trial that a move changes, besides its state, reason and plan. The others stay as they are."""

    family: str
    structure: str
    offer: Offer | None
    once_fit: bool
    num_lost: int
    num_oom: int
    num_faults: int
    num_failures: int
    retry_at: float
    passed_over: int
    requeued_because: str
    judged_step: int
    value: float | None
    resumes: bool
    paused: bool
    priority: int


NO_CHANGES = TrialChanges()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a trial."""

    trial_id: int
    attempt: int  # its number within the trial, from 1
    token: str  # the fencing token: a report with another one is refused
    state: AttemptState
    choice: Choice
    devices: tuple[str, ...]
    device_kinds: tuple[str, ...]
    placement_reason: str
    created_at: float
    measured_bytes: int = 0  # largest peak of tensors of one rank, or a lower bound if the attempt ran out of memory
    measured_step_seconds: float | None = None  # median of ``timed_steps`` steps; None: no step was timed
    timed_steps: int = 0  # optimizer steps, without the first ones, evaluations and checkpoints
    outcome: Outcome | None = None
    detail: str = ""  # explains the outcome
    measured_communication_share: float | None = None  # share of a step in which the rank that waits least waits
    phase: str = ""  # of the attempt when it ran out of memory (``learning.AttemptPhase``)
    checkpoint_step: int = -1  # step of the last committed checkpoint; -1: none
    started_at: float | None = None
    ended_at: float | None = None
    pack: str = ""  # of attempts that may share a process: the key of the one that began it; empty: never shares
    shared_mib: int = 0  # MiB of frozen weights, which the attempts of a pack have once
    load: tuple[Watch, ...] = ()  # how busy its first rank was, minute by minute

    @property
    def key(self) -> str:
        """Id of the attempt's gang in the executor, the ledger and the API: ``trial/attempt``."""
        return f"{self.trial_id}/{self.attempt}"

    @property
    def plan(self) -> Plan:
        """The plan that its gang trains under."""
        return self.choice.plan

    @property
    def prediction(self) -> Prediction:
        """The prediction for the plan."""
        return self.choice.prediction

    @property
    def mib_per_rank(self) -> int:
        """MiB reserved on a device for one rank, the largest if ranks take unlike shares of the batch.

        They are without the frozen weights that another attempt of its pack has brought."""
        return max(1, self.prediction.reserved_mib - brought_mib(self))

    @property
    def mibs(self) -> tuple[int, ...]:
        """MiB reserved for each rank, in the order of ``devices``, if they take unlike shares of the batch."""
        return self.plan.rank_mibs(self.prediction)

    def mib_on(self, device: str) -> int:
        """MiB reserved on one of its devices; 0 on any other."""
        if device not in self.devices:
            return 0
        return self.mibs[self.devices.index(device)] if self.mibs else self.mib_per_rank

    @property
    def expected_bytes(self) -> int:
        """Predicted peak to compare with the measured one: that of an evaluation if one ran out of memory."""
        return expected_bytes(self.prediction, self.phase)

    @property
    def least_bytes(self) -> int:
        """Lower bound in bytes on what one rank needs, once the attempt has run out of memory.

        It is the larger of the reservation and of what the rank held plus its failed request.
        """
        return max(self.measured_bytes, self.mib_per_rank * MIB)


def brought_mib(attempt: Any) -> int:
    """MiB of frozen weights in the prediction of an attempt (or its row) that another one of its pack has brought."""
    return attempt.shared_mib if attempt.pack not in ("", f"{attempt.trial_id}/{attempt.attempt}") else 0


def reserved_mibs(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, int]]:
    """Each of the attempts that hold devices, with the MiB that are reserved for one of its ranks.

    What those of a pack share counts with the one that began it, or else with another that still runs.
    """
    begun = {attempt.key for attempt in attempts}
    for attempt in attempts:
        brings = bool(attempt.pack) and attempt.pack not in begun
        begun.add(attempt.pack)
        yield attempt, attempt.mib_per_rank + attempt.shared_mib * brings


def expected_bytes(prediction: Prediction, phase: str) -> int:
    """Predicted peak of tensors, of an evaluation if an attempt ran out of memory in that ``phase``."""
    of_evaluation = prediction.evaluation_bytes if phase == AttemptPhase.EVALUATION else 0
    return of_evaluation or prediction.expected_bytes


@dataclass(frozen=True, slots=True)
class Refusals:
    """INFEASIBLE trials of a running study for which the devices of ``offer`` do not suffice."""

    study_id: int
    offer: Offer
    once_fit: bool  # the cluster has lost the devices of their plans
    newest_at: float  # time of the newest verdict


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
class Report:
    """Rows that a rank sends at once: metrics, log lines, and what it has measured since.

    ``objectives`` are the names of the study's objectives, and ``best_of`` the direction of the only one if its best
    value counts. ``step_seconds`` is the median of ``timed_steps`` steps, ``check_share`` that of checks in the time,
    ``communication_share`` that of the ranks' steps, ``noise_scale`` that of the gradient in samples, and
    ``checkpoint_step`` the last committed checkpoint. ``load`` is that of the attempt so far. None, 0 bytes or steps, a
    checkpoint of -1, or no load mean nothing new.
    """

    trial_id: int
    attempt: int
    token: str
    objectives: Sequence[str] = ()
    metrics: Sequence[Metric] = ()
    logs: Sequence[LogLine] = ()
    measured_bytes: int = 0
    checkpoint_step: int = -1
    step_seconds: float = 0.0
    timed_steps: int = 0
    check_share: float = 0.0
    communication_share: float | None = None
    noise_scale: float | None = None
    load: tuple[Watch, ...] = ()
    best_of: str = ""


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
class Delivery:
    """A notice on its way to one receiver, from the moment that it was due to its end."""

    id: int
    webhook_id: str  # the same in every attempt, so that a receiver can drop what comes twice
    kind: str  # a ``receivers.Kind``, or "test"
    topic: str  # what a notice of a lasting condition is about, such as a quota; otherwise empty
    study_id: int | None
    address: str
    receiver: Json  # a ``receivers.Receiver``
    body: Json  # in the form of Standard Webhooks: type, timestamp, data
    state: DeliveryState
    created_at: float
    next_at: float  # it is not tried before
    num_attempts: int = 0
    answer: str = ""  # what came of the last attempt
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class WaitingTrials:
    """The trials of a study that wait for one thing."""

    study_id: int
    waits_for: WaitsFor
    num_trials: int
    reason: str  # of the oldest of them


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers of studies and trials by state, and of open attempts, over all studies. Absent states are left out."""

    studies: Mapping[StudyState, int]
    trials: Mapping[TrialState, int]
    open_attempts: int
