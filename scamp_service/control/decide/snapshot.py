"""The input of the decisions: live studies, trials and attempts of the database, gangs, and the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from estimators.learning import Learned, PastAttempt
from estimators.model import Candidate, Layout, Plan
from placement.model import Cluster, Offer
from placement.packing.autoscaling import with_devices_to_come
from placement.packing.packer import pack
from placement.packing.policy import Policy
from placement.packing.projects import DEFAULT_PROJECT, Project
from scamp_service.control.executor import GangStatus, Unsized
from scamp_service.control.families import family
from scamp_service.control.stopping.rule import StoppingRule
from scamp_service.control.stopping.rung import Rung
from scamp_service.lifecycle import Origin, StudyState, TrialState
from scamp_service.model import Attempt, Refusals, Sized, Trial
from scamp_service.search.proposer import ProposalRequest
from scamp_service.study.budget import TRACE_SECONDS
from scamp_service.study.objectives import Objectives, Values
from scamp_service.study.one_shot import OneShot, Part, is_supernet
from scamp_service.study.predicted import NO_BOUNDS, PredictedBounds
from scamp_service.study.values import Params
from workloads.training.checkpoints.name import CheckpointName, Donor

Corrections = Mapping[str, Mapping[Layout, Learned]]
"""Family → layout → what was learned."""


@dataclass(frozen=True, slots=True)
class StudyRules:
    """The part of a live study that decisions need. ``num_trials`` counts every trial that its sampler has proposed."""

    id: int
    state: StudyState
    workload: str
    code: str | None
    objectives: Objectives
    seed: int
    max_trials: int
    steps: int
    report_every: int
    stopping: StoppingRule
    max_concurrent: int | None
    max_lost: int
    max_oom: int
    num_trials: int
    trace_seconds: int = TRACE_SECONDS
    project: str = DEFAULT_PROJECT
    priority: int = 0  # trials of a higher one are placed first
    policy: str | None = None  # the name of its own; None: that of the server
    unit: str = "step"  # that ``steps`` count, or epoch
    stall_seconds: float | None = None  # without progress; None: learned from the steps of each attempt
    searched: frozenset[str] = frozenset()  # names of the parameters in its search space
    mutate: Callable[[Params, int], Params] | None = (
        None  # parameters for a copy, from those of the donor and its number
    )
    one_shot: OneShot | None = None
    inherits: bool = False  # whether its candidates may begin with weights of earlier ones
    predicted: PredictedBounds = NO_BOUNDS  # bounds on what is predicted of a trial that has not trained yet
    launches_front: bool = False  # only trials on the Pareto front are launched, once every candidate is predicted
    plan: Plan | None = None  # of all its candidates, if the study gives one
    exhausted: bool = False  # the sampler has nothing more to propose
    broken: str = ""  # why its trials all fail; empty if they do not
    regret_bound: float | None = None  # of what was found so far; None: not known
    used_up: str = ""  # which limit of its budget it has reached, other than the number of trials
    reason: str = ""  # why it is STOPPING; empty while it is running
    ends_as: StudyState | None = None  # its final state once it is STOPPING; None: STOPPED

    @property
    def is_ending_at_its_limit(self) -> bool:
        """Whether the study is STOPPING because it has reached a limit of its budget."""
        return self.state is StudyState.STOPPING and self.ends_as is StudyState.COMPLETED

    @property
    def wants_trials(self) -> bool:
        """Whether new candidates may be proposed: the study is running and not broken, and neither its budget nor its
        search space is used up."""
        is_open = self.state is StudyState.RUNNING and not self.used_up and not self.broken
        return is_open and not self.exhausted and self.num_trials < self.max_trials

    def part_of(self, trial: Trial) -> Part:
        """The part of a trial in one-shot search; that of all trials in any other is to train alone."""
        if self.one_shot is None or trial.origin is not Origin.SEARCH:
            return Part.ALONE
        if is_supernet(trial.params):
            return Part.SUPERNET
        return Part.ALONE if trial.parent is None else Part.SCORED

    def steps_of(self, trial: Trial) -> int:
        """Steps that a trial trains; 0: it is only evaluated."""
        match self.part_of(trial):
            case Part.SUPERNET:
                assert self.one_shot is not None
                return self.one_shot.steps or self.steps
            case Part.SCORED:
                return 0
        return self.steps

    def candidate(self, trial: Trial) -> Candidate:
        """The candidate of one of the study's trials."""
        return Candidate(self.workload, self.code, trial.params)

    def family(self, trial: Trial) -> str:
        """The family of ``trial``: trials of one family learn from each other's memory. It is stored with the plan."""
        return trial.family or family(self.candidate(trial), self.searched)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that ``decide`` knows, read in this order: ``gangs``, then ``attempts``, then ``trials``.

    A rank commits its metrics, then its outcome, then disappears. Because of the order, an absent gang without an
    outcome is really lost, and a trial whose attempt is done has its last value. ``silent`` is read before ``gangs``
    and after it, so a rank that answers in between is in one of them.
    """

    now: float
    studies: Mapping[int, StudyRules]
    trials: Sequence[Trial]
    attempts: Sequence[Attempt]
    gangs: Mapping[str, GangStatus]
    cluster: Cluster
    silent: frozenset[str] = frozenset()  # devices on which a process does not answer
    closed: frozenset[str] = frozenset()  # devices on which no gang may be placed now
    sized: Mapping[int, Sized | Unsized] = field(default_factory=dict)
    requests: Mapping[int, ProposalRequest] = field(default_factory=dict)  # by study
    held_up: Mapping[int, Sequence[int]] = field(default_factory=dict)  # trial → those whose sizing it waits for
    rungs: Mapping[int, Mapping[int, Rung]] = field(default_factory=dict)  # study → step → values of its trials
    fronts: Mapping[int, Mapping[int, Values]] = field(default_factory=dict)  # study whose objectives are all predicted
    # → number → values of the trials on the Pareto front
    checkpoints: Mapping[int, CheckpointName] = field(default_factory=dict)  # trial → the one to resume from
    donors: Mapping[int, Donor] = field(default_factory=dict)  # trial → with whose weights it begins as a new model
    past: Mapping[str, Sequence[PastAttempt]] = field(default_factory=dict)  # family → runs of its newest trials
    failures: Mapping[int, Sequence[PastAttempt]] = field(default_factory=dict)  # waiting trial → its own runs
    refusals: Mapping[Refusals, float] = field(default_factory=dict)  # INFEASIBLE trials; seconds since this was found
    refused: Sequence[Trial] = ()  # some of them, for which the cluster now offers more than when this was found
    absent: Mapping[str, float] = field(default_factory=dict)  # attempt without gang → for how many seconds
    former: Mapping[int, Attempt] = field(default_factory=dict)  # trial that went wrong → what trained last
    max_gangs_per_device: int = 4
    projects: Mapping[str, Project] = field(default_factory=dict)  # with a weight or quotas
    mib_seconds: Mapping[str, float] = field(default_factory=dict)  # project → MiB × seconds of attempts that ended
    policy: Policy = pack
    autoscale_devices: int = 0  # that an autoscaler may be asked for in all; 0: there is none
    _by_state: dict[TrialState, list[Trial]] = field(init=False, repr=False, compare=False)
    _pending: Counter[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_state: dict[TrialState, list[Trial]] = {state: [] for state in TrialState}
        for trial in self.trials:
            by_state[trial.state].append(trial)
        object.__setattr__(self, "_by_state", by_state)
        launching = (each for each in by_state[TrialState.QUEUED] if not self.studies[each.study_id].launches_front)
        pending = (*by_state[TrialState.WAITING], *launching)
        object.__setattr__(self, "_pending", Counter(trial.study_id for trial in pending))

    @property
    def largest_offer(self) -> Offer:
        """The offer of the cluster with the devices that an autoscaler may add."""
        return with_devices_to_come(self.cluster, self.autoscale_devices).offer

    def in_state(self, state: TrialState) -> Sequence[Trial]:
        """The trials in this state, in the order of ``trials``."""
        return self._by_state[state]

    def room(self, study_id: int) -> int:
        """How many more candidates of a study may wait for devices: as many as there are devices, but at least four.

        Those that wait until every candidate is predicted do not count.

        More would be worse: the later a sampler proposes, and the later a paused trial is chosen to continue, the more
        results are known.
        """
        return max(4, len(self.cluster.devices)) - self._pending[study_id]

    def may_hold_memory(self, attempt: Attempt) -> bool:
        """Whether a process of this attempt may still exist."""
        return attempt.key in self.gangs or not self.silent.isdisjoint(attempt.devices)
