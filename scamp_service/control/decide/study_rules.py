"""The part of a live study that decisions need: what its spec says, and how far it is.

All but ``progress`` follows from the spec alone, and is made once (``control.specs``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimators.model import Candidate, Plan
from placement.packing.projects import DEFAULT_PROJECT
from scamp_service.control.families import family
from scamp_service.control.stopping.rule import StoppingRule
from scamp_service.lifecycle import Origin, StudyState
from scamp_service.model import Trial
from scamp_service.study.budget import Budget
from scamp_service.study.objectives import Objectives
from scamp_service.study.one_shot import OneShot, Part, is_supernet
from scamp_service.study.predicted import NO_BOUNDS, PredictedBounds
from scamp_service.study.values import Params


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a study is, and why it ends."""

    state: StudyState
    num_trials: int = 0
    """Every trial that its sampler has proposed."""
    exhausted: bool = False
    """The sampler has nothing more to propose."""
    regret_bound: float | None = None
    """Most that is left to gain, with high probability; None: not known."""
    used_up: str = ""
    """Which limit of its budget it has reached, other than the number of trials; empty: none."""
    broken: str = ""
    """Why its trials all fail; empty if they do not."""
    reason: str = ""
    """Why it is STOPPING; empty while it is running."""
    ends_as: StudyState | None = None
    """Its final state once it is STOPPING; None: STOPPED."""

    @property
    def is_running(self) -> bool:
        """Whether trials may train. If not, the study is STOPPING."""
        return self.state is StudyState.RUNNING

    @property
    def is_ending_at_its_limit(self) -> bool:
        """Whether the study is STOPPING because it has reached a limit of its budget."""
        return self.state is StudyState.STOPPING and self.ends_as is StudyState.COMPLETED

    @property
    def may_propose(self) -> bool:
        """Whether the study is running and not broken, and neither its budget nor its search space is used up."""
        return self.is_running and not self.used_up and not self.broken and not self.exhausted


@dataclass(frozen=True, slots=True)
class Search:
    """How candidates follow from others, and which of them are trained."""

    names: frozenset[str] = frozenset()
    """Names of the parameters in the search space."""
    mutate: Callable[[Params, int], Params] | None = None
    """Returns the parameters of a copy, from those of its donor and its number; None: trials are not copied."""
    one_shot: OneShot | None = None
    inherits: bool = False
    """Whether candidates may begin with weights of earlier ones."""
    predicted: PredictedBounds = NO_BOUNDS
    """Bounds on what is predicted of a trial that has not trained yet."""
    launches_front: bool = False
    """Only trials on the Pareto front are launched, once every candidate is predicted."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How trials share the devices with those of other studies."""

    project: str = DEFAULT_PROJECT
    owner: str = ""
    priority: int = 0
    """Trials of a higher one are placed first."""
    paused: bool = False
    """None of its trials may run."""


@dataclass(frozen=True, slots=True)
class StudyRules:
    """Rules of a live study for its trials, and how far it is."""

    id: int
    workload: str
    code: str | None
    seed: int
    report_every: int
    """Steps or epochs between evaluations (``budget.unit``)."""
    objectives: Objectives
    stopping: StoppingRule
    budget: Budget
    progress: Progress
    search: Search = Search()
    sharing: Sharing = Sharing()
    repeats: int = 1
    """How often a candidate is trained, with other seeds."""
    plan: Plan | None = None
    """Plan of all candidates, if the study gives one."""
    guard: bool = True
    """Whether trainings check that their curves do not depend on how a batch is divided."""
    pack: int = 1
    """The most trials that share a process; 1: none does."""
    kinds: frozenset[str] = frozenset()
    """Kinds of the devices that its trials may use; empty: any."""

    @property
    def wants_trials(self) -> bool:
        """Whether new candidates may be proposed."""
        return self.progress.may_propose and self.progress.num_trials < self.budget.trials

    def part_of(self, trial: Trial) -> Part:
        """The part of a trial in one-shot search; that of all trials in any other is to train alone."""
        if self.search.one_shot is None or trial.origin is not Origin.SEARCH:
            return Part.ALONE
        if is_supernet(trial.params):
            return Part.SUPERNET
        return Part.ALONE if trial.parent is None else Part.SCORED

    def steps_of(self, trial: Trial) -> int:
        """Steps that a trial trains; 0: it is only evaluated."""
        match self.part_of(trial):
            case Part.SUPERNET:
                assert self.search.one_shot is not None
                return self.search.one_shot.steps or self.budget.length
            case Part.SCORED:
                return 0
        return self.budget.length

    def candidate(self, trial: Trial) -> Candidate:
        """The candidate of one of the study's trials."""
        return Candidate(self.workload, self.code, trial.trained_params)

    def family(self, trial: Trial) -> str:
        """The family of ``trial``: trials of one family learn from each other's memory. It is stored with the plan."""
        return trial.family or family(self.candidate(trial), self.search.names)
