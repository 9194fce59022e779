"""The interface between the controller and the code that runs gangs: Ray in production, virtual time in simulations.

The contract is level-triggered: ``gangs`` returns what exists now. ``launch`` and ``stop`` return at once and may be
repeated. An attempt that ``gangs`` no longer lists holds no memory on any device, except on ``silent`` ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from estimators.learning import Learned, PastAttempt
from estimators.model import NO_EVALUATION_EXTRA, Candidate, EvaluationExtra, Layout, Plan
from estimators.traits import NO_TRAITS, Traits
from placement.model import Cluster, Offer, Ready
from scamp_service.model import Sized
from scamp_service.patience import TRACE_SECONDS
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.name import CheckpointName

SPARE_SECONDS = 60.0
"""For which an idle rank is kept. A start takes about 5 s of a core, and a study often needs the rank again once the
gangs that took its device have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(TrainingJob):
    """Everything that the ranks of one attempt need: the job, and where it runs. Each rank adds what its host knows.

    ``objectives`` are the names of the study's objectives, and ``metrics`` those of them that evaluations report. Other
    trials may need the checkpoints in ``keep``. ``mibs`` are the MiB of each rank if they take unlike shares of the
    batch. An attempt with a ``pack`` joins the process of another one of the same pack, if there is one on its device.
    """

    token: str
    devices: tuple[str, ...]
    mib_per_rank: int
    objectives: Sequence[str]
    keep: frozenset[CheckpointName] = frozenset()
    mibs: tuple[int, ...] = ()
    code_dir: Path | None = None
    budget_bytes: int | None = None
    checkpoint_root: Path = Path()
    pack: str = ""

    def mib_of(self, rank: int) -> int:
        """MiB reserved for a rank."""
        return self.mibs[rank] if self.mibs else self.mib_per_rank

    @property
    def key(self) -> str:
        """Id of the gang: ``trial/attempt``."""
        return f"{self.trial_id}/{self.attempt}"


class GangState(StrEnum):
    """State of a gang as a whole."""

    ALIVE = "ALIVE"  # every rank is running or being started
    BROKEN = "BROKEN"  # a rank is dead or could not be started; others may still run, so stop the gang
    STOPPING = "STOPPING"  # being torn down; memory may still be held


@dataclass(frozen=True, slots=True)
class GangStatus:
    """State of a gang, and what went wrong when it is broken.

    ``quiet_seconds`` have passed since any of its ranks made progress, and ``doing`` says what each one does.
    """

    state: GangState
    detail: str = ""
    quiet_seconds: float = 0.0
    doing: str = ""


class Executor(Protocol):
    """Runs gangs on a cluster."""

    def cluster(self) -> Cluster:
        """The devices that can be used now; empty while the cluster starts."""
        ...

    def gangs(self) -> Mapping[str, GangStatus]:
        """Every attempt (``trial/attempt``) with a rank that may still hold memory.

        One that broke without an outcome in the database is listed until ``stop``, so that the reason is not lost.
        """
        ...

    def silent(self) -> frozenset[str]:
        """Devices with a process that does not answer, so that nobody knows which attempt it runs."""
        ...

    def put_off(self) -> frozenset[str]:
        """Attempts whose launch was postponed, and only waits for its turn."""
        ...

    def closed(self) -> Mapping[str, str]:
        """Devices on which no gang may be placed now, and why. Silent ones are among them, and those that leave."""
        ...

    def leaving(self) -> Mapping[str, str]:
        """Devices whose nodes are about to leave the cluster, and why."""
        ...

    def ready(self) -> Ready:
        """Where idle ranks have started, and which archives of user code they have run."""
        ...

    def launch(self, order: Order) -> None:
        """Start the attempt on ``order.devices``, one rank on each.

        The executor may postpone it, so repeat the call until ``gangs`` lists the attempt. Then it has no effect.
        """
        ...

    def stop(self, key: str, *, keep: bool = False) -> None:
        """End every rank of the attempt; no effect when there is none.

        With ``keep`` they first write a checkpoint, and report it with their last rows and the outcome, but only as
        long as the executor waits for that.
        """
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """A candidate to be sized, of a study; studies take turns.

    ``own_attempts`` are its own runs that ran out of memory, and ``learned`` are the corrections of its family under
    each layout that has any. ``past`` are the runs of its family, whose times correct the predicted seconds of a step.
    A trace may take ``trace_seconds`` of processor time. ``evaluation`` is what its own and its family's evaluations
    needed beyond their trace. ``plan`` is the one that the study gives, if any, and ``kinds`` are those of the devices
    that it may use; empty: any. ``traits`` are those of its code that attempts of its family have shown.
    """

    candidate: Candidate
    own_attempts: Sequence[PastAttempt] = ()
    learned: Mapping[Layout, Learned] = field(default_factory=dict)
    past: Sequence[PastAttempt] = ()
    study_id: int = 0
    trace_seconds: int = TRACE_SECONDS
    evaluation: EvaluationExtra = NO_EVALUATION_EXTRA
    plan: Plan | None = None
    kinds: frozenset[str] = frozenset()
    traits: Traits = NO_TRAITS

    def learned_bytes(self, layout: Layout) -> int:
        """Bytes that the family has learned to add under ``layout``."""
        return self.learned[layout].extra_bytes if layout in self.learned else 0


@dataclass(frozen=True, slots=True)
class Unsized:
    """Why a candidate has no plan: ``infeasible`` if none fits, otherwise the workload itself failed, or the host did
    so that another try ``may_pass``.

    ``offer`` are the devices on which none fits; None if the candidate fits on no devices at all.
    """

    reason: str
    infeasible: bool
    structure: str = ""
    offer: Offer | None = None
    may_pass: bool = False


class Sizer(Protocol):
    """Traces and plans candidates away from the controller's thread."""

    def request(self, trial_id: int, demand: Demand, cluster: Cluster) -> None:
        """Start sizing; no effect while the same trial is being sized."""
        ...

    def results(self) -> Mapping[int, Sized | Unsized]:
        """Finished results by trial id, until ``forget`` removes them."""
        ...

    def forget(self, trial_ids: Sequence[int]) -> None:
        """Remove the results of these trials."""
        ...

    def held_up(self) -> Mapping[int, Sequence[int]]:
        """Trials whose sizing waits because those of other trials, which they are mapped to, take long."""
        ...
