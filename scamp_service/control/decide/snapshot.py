"""What the decisions look at: the live studies, trials and attempts of the database, the gangs and the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from estimators.learning import Run
from estimators.model import Candidate
from placement.model import Cluster
from placement.packing.packer import Start
from scamp_service.control.executor import GangStatus, Unsized
from scamp_service.control.families import family
from scamp_service.lifecycle import StudyState
from scamp_service.model import Attempt, Sized, Trial


@dataclass(frozen=True, slots=True)
class StudyRules:
    """A live study as the decisions need it. ``num_trials`` counts every trial ever created."""

    id: int
    state: StudyState
    workload: str
    code: str | None
    metric: str
    maximize: bool
    seed: int
    max_trials: int
    steps: int
    report_every: int
    rungs: tuple[int, ...]
    reduction_factor: int
    max_concurrent: int | None
    max_lost: int
    max_oom: int
    num_trials: int
    searched: frozenset[str] = frozenset()  # the names of its search space
    exhausted: bool = False  # the sampler has nothing more to propose
    broken: str = ""  # why no candidate of this study can ever run

    @property
    def wants_trials(self) -> bool:
        return self.state is StudyState.RUNNING and not self.exhausted and self.num_trials < self.max_trials

    def candidate(self, trial: Trial) -> Candidate:
        return Candidate(self.workload, self.code, trial.params)

    def family(self, trial: Trial) -> str:
        """The family of trials that ``trial`` learns from and teaches."""
        return family(self.candidate(trial), self.searched)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known at one moment, read in this order: ``gangs``, then ``attempts``, then ``trials``.

    A rank commits its metrics, then its outcome, then disappears; so an absent gang without an outcome is truly lost,
    and a trial whose attempt is done has its last value.
    """

    now: float
    studies: Mapping[int, StudyRules]
    trials: Sequence[Trial]
    attempts: Sequence[Attempt]
    gangs: Mapping[str, GangStatus]
    cluster: Cluster
    sized: Mapping[int, Sized | Unsized] = field(default_factory=dict)
    rungs: Mapping[int, Mapping[int, Mapping[int, float]]] = field(default_factory=dict)  # study → step → trial → value
    checkpoints: Mapping[int, int] = field(default_factory=dict)  # trial → last committed step
    past: Mapping[str, Sequence[Run]] = field(default_factory=dict)  # family → runs of its newest trials
    starts: Sequence[Start] = ()  # attempts ever begun by the oldest queued trial and by those after it
    max_gangs_per_device: int = 4
