"""Decides which jobs of Slurm could run a study: devices, and a wall time with its error, so that backfill takes them.

A study continues when its job is requeued, so a job may be cut to the shortest run that is worth its start
(``--time-min``): Slurm's backfill then starts it in a hole that is too short for all of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement.model import Cluster
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.simulation.outcome import Simulated

START_SECONDS, STOP_SECONDS = 60, 120
"""Seconds of a run until Ray has started and the first trial trains, and those before its end in which it stops
(``--signal`` in deploy/slurm/scamp.sbatch)."""
SHORTEST_SECONDS = 10 * (START_SECONDS + STOP_SECONDS)
"""A run that is as long spends a tenth of its time on its start and end."""
MEASURED_ERROR, DATASHEET_ERROR = 0.2, 1.0
"""Relative errors of wall times. For a device that was timed it is `step_p95_pct` of `python -m benchmarks.estimators`,
rounded up. For others nobody knows it: the assumed shares of datasheet peaks may be twice too high."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of ``nodes`` with ``devices`` each. ``predicted_seconds`` are those of the study alone.

    ``rank_mib`` is the largest reservation of a rank, and ``gang`` the number of devices of the largest gang.
    """

    nodes: int
    devices: int
    predicted_seconds: float
    error: float
    rank_mib: int
    gang: int

    @property
    def options(self) -> list[str]:
        """Options of sbatch."""
        minutes = math.ceil((self.predicted_seconds * (1 + self.error) + START_SECONDS + STOP_SECONDS) / 60)
        shortest = min(minutes, SHORTEST_SECONDS // 60)
        where = [f"--gpus={self.devices}"]
        if self.nodes > 1:
            where = [f"--nodes={self.nodes}", f"--gpus-per-node={self.devices}"]
        return [*where, f"--time={_clock(minutes)}", f"--time-min={_clock(shortest)}"]


def parts_of(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the parts of a cluster that a job may ask for: 1, 2, 4, … devices of a node, then 1, 2, 4, … whole nodes.

    Raises ``InvalidInput`` for devices of several kinds, or nodes of several sizes.
    """
    nodes = Counter(device.node for device in cluster.devices)
    if len({device.kind for device in cluster.devices}) > 1 or len(set(nodes.values())) > 1:
        raise InvalidInput("--slurm writes jobs for nodes of one kind: name a cluster of equal nodes")
    size = next(iter(nodes.values()))
    for count in (*_doubled(size), *(size * num for num in _doubled(len(nodes)) if num > 1)):
        yield Cluster(cluster.devices[:count])


def slurm_jobs(simulations: Sequence[Simulated], *, is_timed: bool) -> list[SlurmJob]:
    """The jobs for those parts of a cluster on which as many trials fit as on any other, the smallest first."""
    simulated = [result for result in simulations if result.spans and not result.why_unfinished]
    unfit = [result.states.get(TrialState.INFEASIBLE, 0) for result in simulated]
    error = MEASURED_ERROR if is_timed else DATASHEET_ERROR
    return [_job(result, error) for result, num in zip(simulated, unfit, strict=True) if num == min(unfit)]


def _job(result: Simulated, error: float) -> SlurmJob:
    nodes = len({device.node for device in result.cluster.devices})
    return SlurmJob(
        nodes,
        len(result.cluster.devices) // nodes,
        result.makespan,
        error,
        max(span.mib_per_rank for span in result.spans),
        max(len(span.devices) for span in result.spans),
    )


def _doubled(most: int) -> list[int]:
    """1, 2, 4, … up to ``most``, which is the last."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def _clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}:00"
