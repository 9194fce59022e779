"""Simulates jobs among which all devices are divided anew, instead of a policy that leaves running jobs alone."""

from __future__ import annotations

from collections.abc import Sequence

from placement.model import Cluster, Queued
from placement.packing.elastic import Share, redivide
from placement.packing.packer import pack
from placement.simulation.schedule import Job, Run, ScheduleOptions, Simulation


class ElasticSimulation(Simulation):
    """Devices are divided each time among all jobs (``placement.packing.elastic.redivide``) instead of a policy's
    decision. A running job that changes its shape needs ``restart_seconds`` more."""

    def __init__(self, jobs: Sequence[Job], cluster: Cluster, restart_seconds: float, options: ScheduleOptions) -> None:
        super().__init__(jobs, cluster, pack, options, ())
        self._restart_seconds = restart_seconds
        self._shapes: dict[str, tuple[Queued, int]] = {}  # of the jobs that have started
        self.num_restarts = 0

    def decide(self, now: float) -> None:
        """Give all jobs the shapes of ``redivide``. Those that become narrower leave their devices first."""
        running = [(job, *shape) for job, shape in self._shapes.items() if job in self._open]
        jobs = [Share(queued, choice, self._part_left(job), self._restart_seconds) for job, queued, choice in running]
        jobs += [Share(queued) for queued in self._queues.nominated(self._most_nominated)]
        chosen = redivide(jobs, len(self._ledger.devices))
        changed = [(job, choice) for job, choice in zip(jobs, chosen, strict=True) if choice not in (None, job.choice)]
        left = {}
        for job, _ in changed:
            if job.choice is not None:
                left[job.queued.id] = job.left
                self._progress.stop(job.queued.id)
                self._ledger.release(job.queued.id)
        for job, choice in sorted(changed, key=lambda change: -change[0].queued.shapes[change[1] or 0].num_ranks):
            assert choice is not None
            self._start(job.queued, choice, now, left.get(job.queued.id))

    def _part_left(self, job: str) -> float:
        queued, choice = self._shapes[job]
        seconds = queued.shapes[choice].seconds
        return min(1.0, self._progress.left(job) / seconds) if seconds else 0.0

    def _start(self, queued: Queued, choice: int, now: float, left: float | None) -> None:
        """Start a waiting job, or with a part ``left`` continue one in another shape."""
        shape, gang = queued.shapes[choice], queued.gang(choice)
        devices = self._ledger.find_idle(shape.num_ranks, shape.mib_per_rank)
        assert devices is not None and shape.seconds is not None, "all devices are equal, and enough are free"
        self._ledger.place(gang, devices)
        seconds = shape.seconds if left is None else left * shape.seconds + self._restart_seconds
        self._progress.start(gang.id, devices, seconds)
        self._shapes[gang.id] = queued, choice
        share = shape.communication_share or 0.0
        if left is None:
            self._queues.started(queued)
            arrived = self._arrived.pop(gang.id)
            self._open[gang.id] = Run(gang.id, queued.study, devices, arrived, now, float("nan"), share)
        else:
            self.num_restarts += 1
            self._open[gang.id] = self._open[gang.id]._replace(devices=devices, communication_share=share)
