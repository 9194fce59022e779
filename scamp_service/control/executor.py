"""What the controller asks of whatever runs gangs: Ray in production, virtual time in the simulator.

The contract is level-triggered: ``gangs`` tells what exists now, ``launch`` and ``stop`` return at once and may be
repeated. An attempt that ``gangs`` no longer lists holds no memory on any device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from estimators.learning import NOTHING, Learned
from estimators.model import Candidate, Plan
from placement.model import Cluster
from scamp_service.model import Sized


@dataclass(frozen=True, slots=True)
class Order:
    """All that the ranks of one attempt must know. ``resume_step`` is -1 to start afresh."""

    trial_id: int
    attempt: int
    token: str
    study_id: int
    candidate: Candidate
    plan: Plan
    devices: tuple[str, ...]
    mib_per_rank: int
    seed: int
    steps: int
    report_every: int
    metric: str
    resume_step: int = -1

    @property
    def key(self) -> str:
        return f"{self.trial_id}/{self.attempt}"


class GangState(StrEnum):
    ALIVE = "ALIVE"  # every rank lives, or is being started
    BROKEN = "BROKEN"  # a rank is dead or could not be started, others may live: stop it
    STOPPING = "STOPPING"  # being torn down; memory may still be held


@dataclass(frozen=True, slots=True)
class GangStatus:
    state: GangState
    detail: str = ""


class Executor(Protocol):
    def cluster(self) -> Cluster:
        """The devices that can be used now; empty while the cluster starts."""
        ...

    def gangs(self) -> Mapping[str, GangStatus]:
        """Every attempt (``trial/attempt``) of which a rank may still hold memory."""
        ...

    def launch(self, order: Order) -> None:
        """Begin the attempt on ``order.devices``, one rank on each, or put it off: repeat it until ``gangs`` lists it.

        No effect when it is already there.
        """
        ...

    def stop(self, key: str) -> None:
        """End every rank of the attempt; no effect when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """A candidate to be sized.

    ``extra_bytes`` is what its own out-of-memory failures ask to add to its traced peaks, ``learned`` what its family
    does: the larger of the two is added.
    """

    candidate: Candidate
    extra_bytes: int = 0
    learned: Learned = NOTHING


@dataclass(frozen=True, slots=True)
class Unsized:
    """No plan: ``infeasible`` when the estimator says that none fits, else the workload itself failed."""

    reason: str
    infeasible: bool
    structure: str = ""


class Sizer(Protocol):
    """Traces and plans candidates away from the controller's thread."""

    def request(self, trial_id: int, demand: Demand, cluster: Cluster) -> None:
        """Begin sizing; no effect while the same trial is being sized."""
        ...

    def results(self) -> Mapping[int, Sized | Unsized]:
        """Finished since they were last taken by ``forget``."""
        ...

    def forget(self, trial_ids: Sequence[int]) -> None: ...
