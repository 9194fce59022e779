"""Simulates a packing policy on known jobs in virtual time, without a database: for forecasts and benchmarks.

Jobs arrive, wait, run in the shape that the policy takes, and end. The policy and the ledger are those of a service.
Not simulated: sizing, samplers, stopping rules, and other plans for running trials (``scamp simulate`` has them all).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from placement.model import Cluster, Gang, Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.policy import Blocked, Policy, Wait
from placement.simulation.progress import Domains, Progress, domains_of
from placement.simulation.queues import Queues

NO_LIMITS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Job:
    """A trial that arrives at ``at`` and offers ``shapes``, whose seconds must be known.

    ``kinds`` are those of the devices on which it may start; empty: any.
    """

    id: str
    shapes: tuple[Shape, ...]
    at: float = 0.0
    study: int = 0
    kinds: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.shapes or any(shape.seconds is None for shape in self.shapes):
            raise ValueError(f"job {self.id} must have shapes with known seconds")


@dataclass(frozen=True, slots=True)
class Running:
    """A job that holds devices when the simulation begins, and needs ``seconds`` more alone on them."""

    id: str
    devices: tuple[str, ...]
    mib_per_rank: int
    seconds: float
    study: int = 0


class Run(NamedTuple):
    """A job that has run. ``arrived`` is when it came, ``start`` when it began."""

    id: str
    study: int
    devices: tuple[str, ...]
    arrived: float
    start: float
    end: float
    communication_share: float

    @property
    def device_seconds(self) -> float:
        """Devices × seconds that it has held."""
        return len(self.devices) * (self.end - self.start)


@dataclass(slots=True)
class Schedule:
    """The result of a simulation. ``never`` are the jobs that could not run, with why.

    ``first_waits`` say why each job waited at first.
    """

    num_devices: int
    runs: list[Run] = field(default_factory=list)
    never: dict[str, Wait] = field(default_factory=dict)
    first_waits: dict[str, Wait] = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        """Seconds until the last job has ended."""
        return max((run.end for run in self.runs), default=0.0)

    @property
    def device_seconds(self) -> float:
        """Devices × seconds that jobs have held."""
        return sum(run.device_seconds for run in self.runs)

    @property
    def utilisation(self) -> float:
        """Device-seconds over all there are until the makespan; above 1 where jobs share devices."""
        device_seconds = self.makespan * self.num_devices
        return self.device_seconds / device_seconds if device_seconds else 0.0

    @property
    def mean_completion(self) -> float:
        """Mean seconds from a job's arrival to its end."""
        return sum(run.end - run.arrived for run in self.runs) / len(self.runs) if self.runs else 0.0

    @property
    def communication_share(self) -> float:
        """Share (0 to 1) of the device-seconds in which ranks wait for communication."""
        held = [(run.device_seconds, run.communication_share) for run in self.runs]
        total_seconds = sum(seconds for seconds, _ in held)
        return sum(seconds * share for seconds, share in held) / total_seconds if total_seconds else 0.0


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """How a simulated cluster is run.

    The policy decides when a job arrives or ends, but at most once in ``round_seconds``, among about
    ``most_nominated`` jobs of the queue. ``domains`` say which devices share what; by default, jobs on one GPU take
    turns. ``most_running`` limits the jobs of a study that run at once.
    """

    max_gangs_per_device: int = 1
    domains: Domains | None = None
    round_seconds: float = 0.0
    most_nominated: int = 1000
    most_running: Mapping[int, int] = field(default_factory=lambda: NO_LIMITS)


def schedule(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    options: ScheduleOptions = ScheduleOptions(),
    *,
    running: Sequence[Running] = (),
) -> Schedule:
    """Run all jobs to their ends under ``policy``, after those that are ``running`` at the beginning."""
    return Simulation(jobs, cluster, policy, options, running).run()


class _SecondsLeft(Mapping[str, float]):
    """Seconds until each running gang ends at its present speed; found when they are asked for."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __getitem__(self, gang: str) -> float:
        return max(0.0, self._progress.end_of(gang) - self._progress.now)

    def __contains__(self, gang: object) -> bool:
        return gang in self._progress

    def __iter__(self) -> Iterator[str]:
        return iter(self._progress)

    def __len__(self) -> int:
        return len(self._progress)


class Simulation:
    """One simulation of ``schedule``."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        policy: Policy,
        options: ScheduleOptions,
        running: Sequence[Running],
    ) -> None:
        self._policy, self._round_seconds, self._most_nominated = policy, options.round_seconds, options.most_nominated
        self._arrivals = sorted(range(len(jobs)), key=lambda n: (jobs[n].at, n), reverse=True)
        self._jobs, self._cluster = jobs, cluster
        self._empty: dict[frozenset[str], Ledger] = {}  # by kinds
        self._ledger = Ledger(cluster, options.max_gangs_per_device)
        self._progress = Progress(options.domains or domains_of(cluster))
        self._left = _SecondsLeft(self._progress)
        self._queues = Queues(options.most_running)
        self._open: dict[str, Run] = {}  # without their ends
        self._arrived: dict[str, float] = {}
        self._found = Schedule(len(cluster.devices))
        for gang in running:
            self._ledger.restore(Gang(gang.id, len(gang.devices), gang.mib_per_rank), gang.devices)
            self._progress.start(gang.id, gang.devices, gang.seconds)
            self._queues.runs(gang.id, gang.study)
            self._open[gang.id] = Run(gang.id, gang.study, gang.devices, 0.0, 0.0, math.nan, 0.0)

    def run(self) -> Schedule:
        """Run all jobs to their ends."""
        now = 0.0
        while True:
            self._arrive(now)
            self.decide(now)
            soonest = min(self._progress.next_end, self._next_arrival())
            if soonest == math.inf:
                break
            # Ends and arrivals until the next round are decided about together.
            until = max(soonest, now + self._round_seconds)
            self._advance(until)
            now = until
        assert not len(self._queues), f"{len(self._queues)} jobs never start on an empty cluster"
        return self._found

    def _next_arrival(self) -> float:
        return self._jobs[self._arrivals[-1]].at if self._arrivals else math.inf

    def _arrive(self, now: float) -> None:
        while self._arrivals and self._jobs[self._arrivals[-1]].at <= now:
            number = self._arrivals.pop()
            job = self._jobs[number]
            devices = self._ledger if not job.kinds else self._of_kinds(job.kinds)
            if not any(devices.could_hold(shape) for shape in job.shapes):
                self._found.never[job.id] = Wait(Blocked.TOO_LARGE, "no devices of the cluster could ever run it")
                continue
            self._arrived[job.id] = job.at
            self._queues.add(Queued(job.id, job.shapes, arrival=number, study=job.study, kinds=job.kinds))

    def _of_kinds(self, kinds: frozenset[str]) -> Ledger:
        """The empty devices of these kinds."""
        if kinds not in self._empty:
            self._empty[kinds] = Ledger(self._cluster.of_kinds(kinds), self._ledger.max_gangs_per_device)
        return self._empty[kinds]

    def decide(self, now: float) -> None:
        """Let the policy decide until it starts nothing more among the jobs that are nominated."""
        while nominated := self._queues.nominated(self._most_nominated):
            decision = self._policy(nominated, self._ledger, self._left)
            by_id = {queued.id: queued for queued in nominated} if decision.placements else {}
            for placement in decision.placements:
                gang, queued = placement.gang, by_id[placement.gang.id]
                shape = queued.shapes[placement.choice]
                assert shape.seconds is not None
                self._ledger.place(gang, placement.devices)
                self._progress.start(gang.id, placement.devices, shape.seconds, shape.samples)
                self._queues.started(queued)
                arrived, share = self._arrived.pop(gang.id), shape.communication_share or 0.0
                self._open[gang.id] = Run(gang.id, queued.study, placement.devices, arrived, now, math.nan, share)
            started = {placement.gang.id for placement in decision.placements}
            self._queues.note_passes(nominated, started)
            for job, wait in decision.waits.items():
                self._found.first_waits.setdefault(job, wait)
            if not started or len(nominated) == len(self._queues) + len(started):
                return

    def _advance(self, until: float) -> None:
        """Let jobs end until then. What they leave free is not used before."""
        progress = self._progress
        while progress.next_end <= until:
            progress.now = max(progress.now, progress.next_end)
            for job in progress.ended():
                progress.stop(job)
                self._ledger.release(job)
                self._queues.ended(job)
                self._found.runs.append(self._open.pop(job)._replace(end=progress.now))
        progress.now = until
