"""Draws jobs as clusters saw them, from published marginals: GPUs asked for, durations, arrivals in bursts.

No file of a published trace is needed. Each cluster is described by a few quantiles of its durations, for each number
of GPUs where these are known. Not drawn: users, failures, the time of day.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from placement.model import Cluster, Shape
from placement.simulation.schedule import Job

QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
"""The quantiles of durations that a class of jobs is described by."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a cluster's trace: it came ``at`` seconds after the first, and ran ``seconds`` on ``num_gpus`` GPUs.

    A job on one GPU may have asked for a ``share`` (above 0, at most 1) of it.
    """

    id: str
    at: float
    num_gpus: int
    seconds: float
    share: float = 1.0

    def __post_init__(self) -> None:
        for name, is_right, rule in (
            ("num_gpus", self.num_gpus >= 1, "at least 1"),
            ("seconds", self.seconds > 0, "above 0"),
            ("share", 0 < self.share <= 1, "above 0 and at most 1"),
            ("at", self.at >= 0, "at least 0"),
        ):
            if not is_right:
                raise ValueError(f"{name} of job {self.id!r} must be {rule}, got {getattr(self, name)}")

    @property
    def gpu_seconds(self) -> float:
        """GPUs × seconds, of one that is shared only the share."""
        return self.num_gpus * self.seconds * self.share


@dataclass(frozen=True, slots=True)
class JobClass:
    """Jobs of one kind: their ``weight`` among all, the GPUs they ask for with weights, and their durations.

    ``seconds`` are those at the ``QUANTILES``. ``shares`` of a GPU are drawn evenly from the given ones.
    """

    weight: float
    num_gpus: Mapping[int, float]
    seconds: Sequence[float]
    shares: Sequence[float] = (1.0,)


@dataclass(frozen=True, slots=True)
class Marginals:
    """A cluster: classes of jobs, and the share of jobs that come within seconds after the one before."""

    classes: Sequence[JobClass]
    burst_share: float


def _log_normal(median: float, mean: float) -> Sequence[float]:
    """Quantiles of the log-normal distribution with this median and mean."""
    sigma = math.sqrt(2 * math.log(mean / median))
    deviations = (round(NormalDist().inv_cdf(quantile), 3) for quantile in QUANTILES)
    return [median * math.exp(sigma * deviation) for deviation in deviations]


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

HELIOS = Marginals(
    (JobClass(1.0, {1: 0.565, 2: 0.1, 4: 0.1, 8: 0.18, 16: 0.04, 32: 0.015}, _log_normal(206, 6652)),),
    0.5,
)
"""SenseTime's Helios: Hu, Sun, Yan, Wen and Zhang, "Characterization and prediction of deep learning workloads in
large-scale GPU datacenters", SC 2021. More than half of the jobs ask for one GPU, the mean is 3.72; durations have a
median of 206 s and a mean of 6,652 s, and are log-normal here. Bursts are assumed to be as in Philly."""

PAI = Marginals(
    (
        JobClass(0.573, {1: 1.0}, (30, 55, 80, 208, 758, 2462, 6030, 13278, 243803, 2500000)),
        JobClass(0.415, {1: 1.0}, (20, 40, 55, 144, 539, 1858, 9235, 20410, 77910, 1500000), (0.32, 0.46, 0.59, 0.81)),
        JobClass(0.005, {2: 0.5, 4: 0.5}, (20, 30, 36, 40, 1071, 4319, 27368, 44259, 912663, 1000000)),
        JobClass(0.007, {8: 1.0}, (60, 100, 136, 255, 553, 17759, 101998, 209987, 1332357, 1500000)),
    ),
    0.5,
)
"""Alibaba's PAI: Weng, Yang, Yu, Wang, Tang, Yang and Zhang, "Beware of fragmentation: scheduling GPU-sharing workloads
with fragmentation gradient descent", USENIX ATC 2023. Quantiles over the 6,203 scheduled pods with GPUs of its
published list (``openb_pod_list_default.csv``); four of ten ask for a part of one GPU."""

CLUSTERS: Mapping[str, Marginals] = MappingProxyType({"philly": PHILLY, "helios": HELIOS, "pai": PAI})


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
        share = source.choice(job_class.shares)
        if num_gpus > most_gpus or seconds > most_seconds:
            continue
        jobs.append(TraceJob(str(len(jobs)), now, num_gpus, seconds, share))
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


def rigid_jobs(jobs: Sequence[TraceJob], cluster: Cluster) -> list[Job]:
    """The jobs for ``schedule``, each on as many devices as it asked for, with its share of the smallest of them.

    Each counts as a study of its own, so that none goes first because it is longer.
    """
    mib = min((device.capacity_mib for device in cluster.devices), default=1)
    shapes = (Shape(job.num_gpus, max(1, int(job.share * mib)), job.seconds) for job in jobs)
    return [Job(job.id, (shape,), job.at, n) for n, (job, shape) in enumerate(zip(jobs, shapes, strict=True))]


def _at_quantile(seconds: Sequence[float], quantile: float) -> float:
    """Seconds at a quantile: their logarithms are interpolated, and constant beyond the outermost known ones."""
    return math.exp(np.interp(quantile, QUANTILES, np.log(seconds)))
