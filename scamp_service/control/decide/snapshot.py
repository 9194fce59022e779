"""The input of the decisions: live studies, trials and attempts of the database, gangs, and the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from estimators.learning import Learned, PastAttempt
from estimators.model import Layout
from placement.model import Cluster, Offer, Ready
from placement.packing.autoscaling import with_devices_to_come
from placement.packing.device_time import DeviceTime, IdleRule
from placement.packing.packer import pack
from placement.packing.policy import Policy
from placement.packing.projects import NO_PEOPLE, NO_PROJECTS, Project, Quota, quotas_of
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.control.executor import GangStatus, Unsized
from scamp_service.control.stopping.rung import Rung
from scamp_service.lifecycle import TrialState
from scamp_service.model import Attempt, Refusals, Sized, Trial
from scamp_service.search.proposer import ProposalRequest
from scamp_service.study.objectives import Values
from workloads.training.checkpoints.name import CheckpointName, Donor

Corrections = Mapping[str, Mapping[Layout, Learned]]
"""Family → layout → what was learned."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How gangs get devices."""

    policy: Policy = pack
    max_gangs_per_device: int = 4
    projects: Mapping[str, Project] = field(default_factory=lambda: NO_PROJECTS)
    """Projects with a weight or quotas."""
    autoscale_devices: int = 0
    """Devices that an autoscaler may be asked for in all; 0: there is none."""
    pauses_idle: IdleRule | None = None
    """When a trial is paused because its gang is idle; None: never."""

    def to_plan_for(self, cluster: Cluster) -> Cluster:
        """The cluster with the devices that an autoscaler may add."""
        return with_devices_to_come(cluster, self.autoscale_devices)


USUAL_PACKING = Packing()


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
    packing: Packing = USUAL_PACKING
    silent: frozenset[str] = frozenset()
    """Devices on which a process does not answer."""
    closed: frozenset[str] = frozenset()
    """Devices on which no gang may be placed now."""
    leaving: Mapping[str, str] = field(default_factory=dict)
    """Devices whose nodes are about to leave, and why."""
    ready: Ready = field(default_factory=dict)
    """Where idle ranks are."""
    sized: Mapping[int, Sized | Unsized] = field(default_factory=dict)
    """Trial → its new plan, or why it has none."""
    held_up: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Trial → those whose sizing it waits for."""
    requests: Mapping[int, ProposalRequest] = field(default_factory=dict)
    """Study → what its sampler was asked for, and its answer."""
    rungs: Mapping[int, Mapping[int, Rung]] = field(default_factory=dict)
    """Study → step → values of its trials."""
    fronts: Mapping[int, Mapping[int, Values]] = field(default_factory=dict)
    """Study whose objectives are all predicted → number → values of the trials on the Pareto front."""
    checkpoints: Mapping[int, CheckpointName] = field(default_factory=dict)
    """Trial → the checkpoint to resume from."""
    donors: Mapping[int, Donor] = field(default_factory=dict)
    """Trial → with whose weights it begins as a new model."""
    past: Mapping[str, Sequence[PastAttempt]] = field(default_factory=dict)
    """Family → attempts of its newest trials."""
    failures: Mapping[int, Sequence[PastAttempt]] = field(default_factory=dict)
    """Waiting trial → its own attempts."""
    former: Mapping[int, Attempt] = field(default_factory=dict)
    """Trial that went wrong → its last attempt that trained."""
    refusals: Mapping[Refusals, float] = field(default_factory=dict)
    """INFEASIBLE trials → seconds since they were found to be so."""
    refused: Sequence[Trial] = ()
    """INFEASIBLE trials that may fit now, because the cluster offers more than when they were refused."""
    absent: Mapping[str, float] = field(default_factory=dict)
    """Attempt without gang → for how many seconds."""
    people: Mapping[str, Quota] = field(default_factory=lambda: NO_PEOPLE)
    """User → quota, of those who have one."""
    held: Mapping[str, DeviceTime] = field(default_factory=dict)
    """Holder of quotas → what attempts that have ended held, if any quota is in hours."""
    _by_state: dict[TrialState, list[Trial]] = field(init=False, repr=False, compare=False)
    _pending: Counter[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_state: dict[TrialState, list[Trial]] = {state: [] for state in TrialState}
        for trial in self.trials:
            by_state[trial.state].append(trial)
        object.__setattr__(self, "_by_state", by_state)
        launching = (
            trial for trial in by_state[TrialState.QUEUED] if not self.studies[trial.study_id].search.launches_front
        )
        pending = (*by_state[TrialState.WAITING], *launching)
        object.__setattr__(self, "_pending", Counter(trial.study_id for trial in pending if not trial.paused))

    @property
    def largest_offer(self) -> Offer:
        """The offer of the cluster with the devices that an autoscaler may add."""
        return self.packing.to_plan_for(self.cluster).offer

    def quotas_of(self, study_id: int) -> Mapping[str, Quota]:
        """Holder → quota, of the study's project and owner."""
        sharing = self.studies[study_id].sharing
        return quotas_of(sharing.project, sharing.owner, self.packing.projects, self.people)

    def most_devices(self, study_id: int) -> int | None:
        """The most devices that a trial of the study may use by its quotas; None: as many as there are."""
        limits = (quota.devices for quota in self.quotas_of(study_id).values())
        return min((most for most in limits if most is not None), default=None)

    @property
    def has_quotas_of_hours(self) -> bool:
        """Whether any project or user has a quota of hours."""
        quotas = (*self.packing.projects.values(), *self.people.values())
        return any(quota.device_hours is not None or quota.mib_hours is not None for quota in quotas)

    def in_state(self, state: TrialState) -> Sequence[Trial]:
        """The trials in this state, in the order of ``trials``."""
        return self._by_state[state]

    def room(self, study_id: int) -> int:
        """How many more candidates of a study may wait for devices: as many as there are devices, but at least four.

        Those that wait until every candidate is predicted, or until a user resumes them, do not count.

        More would be worse: the later a sampler proposes, and the later a paused trial is chosen to continue, the more
        results are known.
        """
        return max(4, len(self.cluster.devices)) - self._pending[study_id]

    def may_hold_memory(self, attempt: Attempt) -> bool:
        """Whether a process of this attempt may still exist."""
        return attempt.key in self.gangs or not self.silent.isdisjoint(attempt.devices)
