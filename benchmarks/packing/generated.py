"""Draws jobs as clusters saw them, from published marginals: GPUs asked for, durations, arrivals in bursts.

No file of a published trace is needed. Each cluster is described by a few quantiles of its durations, for each number
of GPUs where these are known. Not drawn: users, failures, the time of day.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
"""The quantiles of durations that a class of jobs is described by."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a cluster's trace: it came ``at`` seconds after the first, and ran ``seconds`` on ``num_gpus`` GPUs."""

    id: str
    at: float
    num_gpus: int
    seconds: float

    @property
    def gpu_seconds(self) -> float:
        """GPUs × seconds."""
        return self.num_gpus * self.seconds


@dataclass(frozen=True, slots=True)
class JobClass:
    """Jobs of one kind: their ``weight`` among all, the GPUs they ask for with weights, and their durations.

    ``seconds`` are those at the ``QUANTILES``.
    """

    weight: float
    num_gpus: Mapping[int, float]
    seconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class Marginals:
    """A cluster: classes of jobs, and the share of jobs that come within seconds after the one before."""

    classes: Sequence[JobClass]
    burst_share: float


PHILLY = Marginals(
    (
        JobClass(0.9317, {1: 1.0}, (30, 52, 62, 122, 1117, 2716, 8512, 19137, 135404, 868927)),
        JobClass(0.0448, {2: 0.49, 4: 0.51}, (6, 11, 15, 21, 367, 45476, 166199, 233725, 748678, 2416865)),
        JobClass(0.0200, {8: 1.0}, (33, 125, 216, 1871, 23683, 173288, 352409, 525631, 1066894, 2658784)),
        JobClass(0.0035, {16: 0.72, 32: 0.28}, (2, 35, 69, 566, 21137, 104218, 252560, 446126, 1152387, 1710643)),
    ),
    0.53,
)
"""Microsoft's Philly: Jeon, Venkataraman, Phanishayee, Qian, Xiao and Yang, "Analysis of large-scale multi-tenant GPU
clusters for DNN training workloads", USENIX ATC 2019. Quantiles over the 82,248 jobs from September to December 2017 of
its published list, in the selection that Sia's artifact has."""


def generate(
    marginals: Marginals, num_jobs: int, seed: int, *, most_gpus: int = 2**31, most_seconds: float = math.inf
) -> list[TraceJob]:
    """Draw this many jobs, in the order of their arrival; the mean time between two is a minute (see ``at_load``).

    Jobs that are wider or longer than the limits are drawn again.
    """
    source = random.Random(seed)
    weights = [job_class.weight for job_class in marginals.classes]
    if not any(ranks <= most_gpus for job_class in marginals.classes for ranks in job_class.num_gpus):
        raise ValueError(f"no job of this trace runs on {most_gpus} GPUs")
    jobs: list[TraceJob] = []
    now = 0.0
    while len(jobs) < num_jobs:
        job_class = source.choices(marginals.classes, weights)[0]
        num_gpus = source.choices(list(job_class.num_gpus), list(job_class.num_gpus.values()))[0]
        seconds = _at_quantile(job_class.seconds, source.random())
        source.choice((1,))  # earlier figures were drawn with a share of one GPU, which Philly's jobs do not have
        if num_gpus > most_gpus or seconds > most_seconds:
            continue
        jobs.append(TraceJob(str(len(jobs)), now, num_gpus, seconds))
        is_soon = source.random() < marginals.burst_share
        mean = 3.0 if is_soon else (60 - 3 * marginals.burst_share) / (1 - marginals.burst_share)
        now += source.expovariate(1 / mean)
    return jobs


def at_load(jobs: Sequence[TraceJob], num_gpus: int, load: float) -> list[TraceJob]:
    """The jobs with their arrivals drawn together or apart, so that they ask for ``load`` × all GPU-seconds meanwhile.

    With a load above 1 more work arrives than the GPUs can do.
    """
    if load <= 0 or num_gpus < 1:
        raise ValueError(f"load must be above 0 and num_gpus at least 1, got {load} and {num_gpus}")
    last = max((job.at for job in jobs), default=0.0)
    if not last:
        return list(jobs)
    factor = sum(job.gpu_seconds for job in jobs) / (load * num_gpus) / last
    return [replace(job, at=job.at * factor) for job in jobs]


def _at_quantile(seconds: Sequence[float], quantile: float) -> float:
    """Seconds at a quantile: their logarithms are interpolated, and constant beyond the outermost known ones."""
    return math.exp(np.interp(quantile, QUANTILES, np.log(seconds)))
