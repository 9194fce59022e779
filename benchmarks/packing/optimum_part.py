"""Schedules of small studies against the proven optimum of CP-SAT.

The optima are committed (``optima.json``), because no environment can have both Ray and OR-Tools. To find them again:
``pip install --target DIR ortools==9.15.6755``, then ``PYTHONPATH=DIR:. python -m benchmarks.packing.solving`` with any
Python that has numpy; it writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from benchmarks.packing.ahead import best_schedule
from benchmarks.packing.instances import NUM_INSTANCES, instance

OPTIMA = Path(__file__).with_name("optima.json")
EVALUATIONS = 20_000

TITLE = "Small studies against the proven optimum"
HEADER = ("trials", "GPUs", "optimum s", "ours s", "greedy s", "ratio", "greedy ratio", "instance")
ABOUT = f"""\
Small studies, drawn by a seed from the committed table, whose shortest makespan on equal GPUs CP-SAT has proven.
"Ours" looks ahead: a portfolio of target times, then {EVALUATIONS} steps of local search. "Greedy" is the portfolio
alone. Instances without a proof within the time limit are not counted. The search was tuned on other instances. Studies
do not look ahead so far: they are packed by the rules of the table above, at each event anew."""


@dataclass(frozen=True)
class Case:
    """One drawn instance."""

    number: int

    def __str__(self) -> str:
        return str(self.number)


@dataclass(frozen=True, slots=True)
class Result:
    """Makespans of one instance in seconds."""

    num_trials: int
    num_devices: int
    optimum: float
    ours: float
    greedy: float

    @property
    def ratio(self) -> float:
        """Our makespan over the proven optimum."""
        return self.ours / self.optimum

    def row(self) -> list[str]:
        seconds = (f"{makespan:.0f}" for makespan in (self.optimum, self.ours, self.greedy))
        ratios = (f"{ratio:.4f}" for ratio in (self.ratio, self.greedy / self.optimum))
        return [str(self.num_trials), str(self.num_devices), *seconds, *ratios]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    proven = [number for number in range(NUM_INSTANCES) if str(number) in optima()]
    return [Case(number) for number in (proven[:5] if quick else proven)]


def measure(case: Case, seconds: float) -> Result:
    """Find a schedule for one instance; ``seconds`` is not used."""
    problem = instance(case.number)
    solution = optima()[str(case.number)]
    assert solution["instance"] == problem.key, "the table has changed since the optima were proven: solve again"
    free = [0.0] * problem.num_devices
    ours, greedy = (best_schedule(problem.tasks, free, evaluations).makespan for evaluations in (EVALUATIONS, 0))
    return Result(len(problem.tasks), problem.num_devices, float(solution["optimum"]), ours, greedy)


@cache
def optima() -> dict[str, dict[str, float | str]]:
    """Proven optima by the number of their instance."""
    by_number: dict[str, dict[str, float | str]] = json.loads(OPTIMA.read_text())
    return by_number


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {
        "optimum_instances": len(results),
        "optimum_mean_ratio": fmean(result.ratio for result in results),
        "optimum_max_ratio": max(result.ratio for result in results),
    }
