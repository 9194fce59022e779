"""Jobs like those of the Philly cluster: devices divided anew among them, against as many as each asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.packing.costs import cluster, kind, table
from benchmarks.packing.elastic import ElasticSimulation
from benchmarks.packing.generated import PHILLY, TraceJob, at_load, generate
from estimators.devices.communication import Group, collective_seconds
from placement.model import Shape
from placement.packing.policies import policy_named
from placement.simulation.schedule import Job, Schedule, ScheduleOptions, schedule
from tests.shapes import pareto
from workloads.gain import gain_of_batch

NUM_JOBS = 400
LOADS = (0.5, 1.0, 2.0)
MOST_GPUS, MOST_SECONDS = 8, 24 * 3600.0
RESTART_SECONDS = 30.0
"""The simulators of Pollux and Sia use this value where nothing was measured."""
ROUND_SECONDS = 60.0
ROUNDS = ScheduleOptions(round_seconds=ROUND_SECONDS, most_nominated=200)
MOST_GROWTH = 8
"""The largest batch of a job over its own one."""
NOISE_TOKENS = (39e3, 1.07e6)
"""Least and largest noise scale of a language model, in tokens: the critical batches at losses of 6 and 3 in equation
5.3 of Kaplan et al., "Scaling laws for neural language models" (arXiv:2001.08361). Logarithms are drawn evenly."""

TITLE = "Elastic jobs on a trace like Philly's"
HEADER = (
    "done fixed", "done elastic", "done growing", "mean h fixed", "mean h pack", "mean h elastic", "mean h growing",
    "restarts", "jobs ratio", "completion ratio", "load, seed",
)  # fmt: skip
ABOUT = f"""\
{NUM_JOBS} jobs are drawn from the marginals of Microsoft's Philly cluster (`benchmarks/packing/generated.py`), up
to {MOST_GPUS} GPUs and 24 hours, and come to 8 nodes of 4 V100-16. Each is a candidate of the cost table, with as
many steps as take the trace's time on the GPUs that it asked for, and a study of its own. "Fixed" gives it these,
first come first served; those that fit pass those that do not. "Pack" may start it wider or narrower. "Elastic"
divides the devices anew at most once a minute among running and waiting jobs, by the dynamic program of Saxena et
al. (MASCOTS 2020); each change takes a job {RESTART_SECONDS:.0f} s. "Growing" does the same, and a batch may be up
to {MOST_GROWTH} times as large: replicas of a plan, on as many times the GPUs, train it in the plan's time and that
of an all-reduce of the gradients. A step then counts as AdaScale's gain (`workloads/gain.py`), with a noise scale of
{NOISE_TOKENS[0]:.0f} to {NOISE_TOKENS[1]:.0f} tokens, as measured on language models by Kaplan et al.
(arXiv:2001.08361). "Done" are the jobs that have ended when the last one arrives, "mean h" the mean hours from
arrival to end. At a load of 2, twice the work arrives that the GPUs can do in this time. "Restarts" and the ratios
to "fixed" are those of "growing". Saxena et al. report about twice the jobs and a tenth of the completion time,
where a batch of any size within the user's range is worth its number of samples. The figures are means at load
{LOADS[-1]:g}; those `with_equal_batches` are of "elastic"."""


@dataclass(frozen=True)
class Case:
    load: float
    seed: int

    def __str__(self) -> str:
        return f"{self.load:g}, {self.seed}"


@dataclass(frozen=True, slots=True)
class Result:
    """Jobs that ended before the last arrival, and mean hours from arrival to end, by policy."""

    load: float
    done: dict[str, int]
    hours: dict[str, float]
    num_restarts: int

    def jobs_ratio(self, policy: str) -> float:
        """Jobs done by a policy for each of the fixed one."""
        return self.done[policy] / self.done["fixed"]

    def completion_ratio(self, policy: str) -> float:
        """How many times the mean completion time is shorter under a policy."""
        return self.hours["fixed"] / self.hours[policy]

    def row(self) -> list[str]:
        done = [str(self.done[name]) for name in ("fixed", "elastic", "growing")]
        hours = [f"{self.hours[name]:.2f}" for name in ("fixed", "pack", "elastic", "growing")]
        ratios = self.jobs_ratio("growing"), self.completion_ratio("growing")
        return [*done, *hours, str(self.num_restarts), *(f"{ratio:.2f}" for ratio in ratios)]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(LOADS[-1], seed)] if quick else [Case(load, seed + n) for load in LOADS for n in range(5)]


def measure(case: Case, seconds: float) -> Result:
    """Simulate one trace under each policy; ``seconds`` is not used."""
    drawn = at_load(
        generate(PHILLY, NUM_JOBS, case.seed, most_gpus=MOST_GPUS, most_seconds=MOST_SECONDS),
        len(cluster().devices),
        case.load,
    )
    source = random.Random(f"candidates {case.seed}")
    jobs = [moldable(job, source, number) for number, job in enumerate(drawn)]
    growing = ElasticSimulation([job.growing for job in jobs], cluster(), RESTART_SECONDS, ROUNDS)
    outcomes = {
        "fixed": _run([job.fixed for job in jobs], "min-degree"),
        "pack": _run([job.free for job in jobs], "pack"),
        "elastic": ElasticSimulation([job.free for job in jobs], cluster(), RESTART_SECONDS, ROUNDS).run(),
        "growing": growing.run(),
    }
    last = drawn[-1].at
    done = {name: sum(run.end <= last for run in outcome.runs) for name, outcome in outcomes.items()}
    hours = {name: outcome.mean_completion / 3600 for name, outcome in outcomes.items()}
    return Result(case.load, done, hours, growing.num_restarts)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A job of the trace with the shape that it asked for, with all of the table, and with those of larger batches."""

    fixed: Job
    free: Job
    growing: Job


def moldable(job: TraceJob, source: random.Random, study: int = 0) -> Drawn:
    """The job as a candidate of the table, in a study of its own: users do not wait for each other's longer jobs."""
    able = [row for row in table() if any(costs[0] == job.num_gpus for costs in row["options"])]
    candidate = source.choice(able)
    costs = {int(cost[0]): cost for cost in candidate["options"]}
    steps = job.seconds / costs[job.num_gpus][2]
    shapes = {n: Shape(n, int(cost[1]), cost[2] * steps, cost[3]) for n, cost in costs.items()}
    low, high = map(math.log, NOISE_TOKENS)
    noise_tokens = math.exp(random.Random(f"noise {job.id} {job.seconds}").uniform(low, high))
    grown = [*shapes.values(), *with_larger_batches(candidate, steps, noise_tokens)]
    offers = ([shapes[job.num_gpus]], shapes.values(), grown)
    fixed, free, growing = (Job(job.id, pareto(offer), job.at, study) for offer in offers)
    return Drawn(fixed, free, growing)


def with_larger_batches(candidate: Mapping[str, Any], steps: float, noise_tokens: float) -> Iterator[Shape]:
    """Shapes of replicas of its plans, each with the candidate's batch; the noise scale is in tokens."""
    params, links = candidate["params"], kind().links
    assert links is not None
    noise_scale = noise_tokens / params["context"]
    gradient_bytes = 4 * 12 * params["depth"] * params["width"] ** 2
    factors = [2**n for n in range(1, MOST_GROWTH.bit_length())]
    for ranks, mib, seconds, share, *_ in candidate["options"]:
        for factor in factors:
            reduced = collective_seconds("all_reduce", gradient_bytes / ranks, Group(factor, ranks), links)
            gain = gain_of_batch(factor * params["batch"], params["batch"], noise_scale)
            waiting = (share * seconds + reduced) / (seconds + reduced)
            yield Shape(ranks * factor, mib, steps * (seconds + reduced) / gain, waiting)


def _run(jobs: Sequence[Job], policy: str) -> Schedule:
    return schedule(jobs, cluster(), policy_named(policy), ROUNDS)


def figures(results: Sequence[Result]) -> dict[str, float]:
    highest = [result for result in results if result.load == max(other.load for other in results)]
    return {
        "elastic_jobs_ratio": fmean(result.jobs_ratio("growing") for result in highest),
        "elastic_completion_ratio": fmean(result.completion_ratio("growing") for result in highest),
        "elastic_jobs_ratio_with_equal_batches": fmean(result.jobs_ratio("elastic") for result in highest),
        "elastic_completion_ratio_with_equal_batches": fmean(result.completion_ratio("elastic") for result in highest),
        "pack_completion_ratio": fmean(result.completion_ratio("pack") for result in highest),
    }
