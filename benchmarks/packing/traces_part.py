"""Jobs like those of the Philly cluster: devices divided anew among them, against as many as each asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.packing.costs import cluster, table
from benchmarks.running.results import Finding
from placement.model import Shape, pareto
from placement.packing.policies import policy_named
from placement.simulation.generated import PHILLY, TraceJob, at_load, generate
from placement.simulation.schedule import Job, Schedule, schedule

NUM_JOBS = 400
LOADS = (0.5, 1.0, 2.0)
MOST_GPUS, MOST_SECONDS = 8, 24 * 3600.0
RESTART_SECONDS = 30.0
"""The simulators of Pollux and Sia use this value where nothing was measured."""
ROUND_SECONDS = 60.0

TITLE = "Elastic jobs on a trace like Philly's"
HEADER = (
    "done fixed", "done elastic", "mean h fixed", "mean h pack", "mean h elastic", "restarts", "jobs ratio",
    "completion ratio", "load, seed",
)  # fmt: skip
ABOUT = f"""\
{NUM_JOBS} jobs are drawn from the marginals of Microsoft's Philly cluster (`placement/simulation/generated.py`), up to
{MOST_GPUS} GPUs and 24 hours, and come to 8 nodes of 4 V100-16. Each is a candidate of the cost table, with as many
steps as take the trace's time on the GPUs that it asked for. "Fixed" gives it these, first come first served; those
that fit pass those that do not. "Pack" may start it wider or narrower. "Elastic" divides the devices anew at most once
a minute among running and waiting jobs, by the dynamic program of Saxena et al. (MASCOTS 2020); each change takes a job
{RESTART_SECONDS:.0f} s. "Done" are the jobs that have ended when the last one arrives, "mean h" the mean hours from
arrival to end. At a load of 2, twice the work arrives that the GPUs can do in this time. Against fixed jobs, Saxena et
al. report about twice the jobs and a tenth of the completion time, where batches may also grow, which trains faster.
No batch grows here. The figures are means at load {LOADS[-1]:g}."""


@dataclass(frozen=True)
class Case:
    """One drawn trace at a load."""

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

    @property
    def jobs_ratio(self) -> float:
        """Jobs done by the elastic policy for each of the fixed one."""
        return self.done["elastic"] / self.done["fixed"]

    @property
    def completion_ratio(self) -> float:
        """How many times the mean completion time is shorter under the elastic policy."""
        return self.hours["fixed"] / self.hours["elastic"]

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        done = [str(self.done[name]) for name in ("fixed", "elastic")]
        hours = [f"{self.hours[name]:.2f}" for name in ("fixed", "pack", "elastic")]
        return [*done, *hours, str(self.num_restarts), f"{self.jobs_ratio:.2f}", f"{self.completion_ratio:.2f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """Five traces at each load, or one at the highest."""
    return [Case(LOADS[-1], seed)] if quick else [Case(load, seed + n) for load in LOADS for n in range(5)]


def measure(case: Case, seconds: float) -> Result:
    """Simulate one trace under each policy; ``seconds`` is not used."""
    drawn = at_load(
        generate(PHILLY, NUM_JOBS, case.seed, most_gpus=MOST_GPUS, most_seconds=MOST_SECONDS),
        len(cluster().devices),
        case.load,
    )
    source = random.Random(f"candidates {case.seed}")
    jobs = [moldable(job, source) for job in drawn]
    fixed = [replace(job, shapes=(asked,)) for job, asked in jobs]
    free = [job for job, _ in jobs]
    found = {
        "fixed": _run(fixed, "min-degree"),
        "pack": _run(free, "pack"),
        "elastic": _run(free, "elastic", RESTART_SECONDS),
    }
    last = drawn[-1].at
    done = {name: sum(run.end <= last for run in one.runs) for name, one in found.items()}
    hours = {name: one.mean_completion / 3600 for name, one in found.items()}
    return Result(case.load, done, hours, sum(run.num_restarts for run in found["elastic"].runs))


def moldable(job: TraceJob, source: random.Random) -> tuple[Job, Shape]:
    """The job as a drawn candidate with the shapes of the table, and the shape that it asked for."""
    able = [one for one in table() if any(costs[0] == job.num_gpus for costs in one["options"])]
    costs = {int(one[0]): one for one in source.choice(able)["options"]}
    factor = job.seconds / costs[job.num_gpus][2]
    shapes = {n: Shape(n, int(cost[1]), cost[2] * factor, cost[3]) for n, cost in costs.items()}
    return Job(job.id, pareto(shapes.values()), job.at), shapes[job.num_gpus]


def _run(jobs: Sequence[Job], policy: str, restart_seconds: float | None = None) -> Schedule:
    return schedule(
        jobs,
        cluster(),
        policy_named(policy),
        round_seconds=ROUND_SECONDS,
        most_nominated=200,
        restart_seconds=restart_seconds,
    )


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Means over the traces at the highest load."""
    highest = [result for result in results if result.load == max(each.load for each in results)]
    return {
        "elastic_jobs_ratio": fmean(one.jobs_ratio for one in highest),
        "elastic_completion_ratio": fmean(one.completion_ratio for one in highest),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Why cases failed."""
    return [f"  {finding.case}: {finding.failure}" for finding in findings if finding.failure]
