"""Simulates packing policies on clusters of a thousand and of ten thousand GPUs, and measures what that costs."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from placement.model import Cluster, Device, Shape
from placement.packing.policies import policy_named
from placement.simulation.schedule import Job, ScheduleOptions, schedule

TITLE = "Simulated clusters"
HEADER = ("seconds", "MB", "makespan h", "busy", "trials/s", "case")
ABOUT = """\
A policy places trials on nodes of 8 GPUs. All trials of ten studies are queued from the start. There is no database.
Ranks (1 to 8), MiB and seconds (log-normal, at most ten hours) are drawn. The policy decides once in five virtual
minutes, on about 128 trials of the queue; a trial takes 50 minutes on average. *Seconds* are processor seconds of the
one process, on an idle machine those of the clock, and *MB* its largest resident memory."""
PER_NODE, OFFERED_MIB = 8, 39_000
ROUND_SECONDS = 300.0
MOST_NOMINATED = 128
POLICIES = ("pack", "min-degree")


@dataclass(frozen=True, slots=True)
class Case:
    """A number of trials on a number of GPUs under a policy."""

    num_gpus: int
    num_trials: int
    policy: str
    seed: int

    def __str__(self) -> str:
        return f"{self.num_gpus} GPUs, {self.num_trials} trials, {self.policy}, seed {self.seed}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    sizes = [(1_024, 10_000)] if quick else [(1_024, 10_000), (10_000, 100_000)]
    return [Case(gpus, trials, policy, seed) for gpus, trials in sizes for policy in POLICIES]


@dataclass(frozen=True, slots=True)
class Result:
    """Cost and outcome of one simulation."""

    num_gpus: int
    num_trials: int
    policy: str
    seconds: float
    mb: float
    makespan_hours: float
    busy: float

    def row(self) -> list[str]:
        rate = self.num_trials / self.seconds
        return [
            f"{self.seconds:.2f}",
            f"{self.mb:.0f}",
            f"{self.makespan_hours:.1f}",
            f"{self.busy:.0%}",
            f"{rate:,.0f}",
        ]


def measure(case: Case, seconds: float) -> Result:
    """Simulate in a process of its own, so that its memory is not that of others."""
    command = [sys.executable, "-m", "benchmarks.packing.scale_part"]
    arguments = [str(case.num_gpus), str(case.num_trials), case.policy, str(case.seed)]
    done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=seconds)
    answer = json.loads(done.stdout.splitlines()[-1])
    return Result(case.num_gpus, case.num_trials, case.policy, **answer)


def figures(results: Sequence[Result]) -> dict[str, float]:
    values: dict[str, float] = {}
    for result in results:
        if result.policy == "pack" and result.num_gpus == 1_024:
            values["sim_1k_seconds"] = round(result.seconds, 3)
        elif result.policy == "pack":
            values |= {"sim_10k_seconds": round(result.seconds, 3), "sim_10k_mb": round(result.mb, 1)}
    return values


def draw(num_trials: int, seed: int) -> list[Job]:
    """Trials with drawn ranks, MiB and seconds, of ten studies."""
    rng = random.Random(seed)
    jobs = []
    for number in range(num_trials):
        ranks = rng.choices((1, 2, 4, 8), (0.7, 0.12, 0.1, 0.08))[0]
        shape = Shape(
            ranks, rng.randint(4_000, OFFERED_MIB), min(36_000.0, rng.lognormvariate(7.5, 1.0)), 0.05 * (ranks > 1)
        )
        jobs.append(Job(f"{number}", (shape,), study=number % 10))
    return jobs


def cluster_of(num_gpus: int) -> Cluster:
    """Nodes of eight GPUs; the last one may have fewer."""
    places = [divmod(number, PER_NODE) for number in range(num_gpus)]
    return Cluster(tuple(Device(f"{node}/{n}", f"{node}", n, "A100-40", OFFERED_MIB) for node, n in places))


def main() -> None:
    """Run one simulation (arguments: GPUS TRIALS POLICY SEED) and print its cost as JSON."""
    num_gpus, num_trials, seed = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
    jobs, cluster, policy = draw(num_trials, seed), cluster_of(num_gpus), policy_named(sys.argv[3])
    began = time.process_time()
    outcome = schedule(
        jobs, cluster, policy, ScheduleOptions(round_seconds=ROUND_SECONDS, most_nominated=MOST_NOMINATED)
    )
    seconds = time.process_time() - began
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = {"seconds": seconds, "mb": mb, "makespan_hours": outcome.makespan / 3600, "busy": outcome.utilisation}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
