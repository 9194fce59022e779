"""Curves of members of packs against those of the same trainings alone."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sharing.drawn import DIVERGES, alone, drawn, job_of, together

TITLE = "Curves"
HEADER = ("members", "reports", "shared passes", "largest error", "case")
NUM, LATE, STEPS = 8, 2, 10
ABOUT = f"""\
{NUM} adapters of one model share a process: of unlike rank, alpha, dropout, adapted layers, learning rate, decay, clip
norm, batch and number of steps, all drawn. One is stopped early, one diverges, and {LATE} more follow those that end
first. Each evaluation of each member, after every step, is compared with that of the same training alone. *Shared
passes*: of all passes that were asked for, those that were made for several members."""


@dataclass(frozen=True)
class Case:
    """A drawn pack."""

    seed: int
    precision: str

    def __str__(self) -> str:
        return f"{self.precision}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Result:
    """The largest difference of a loss, over so many reports."""

    precision: str
    num_reports: int
    shared_share: float
    error: float

    def row(self) -> list[str]:
        return [str(NUM + LATE), str(self.num_reports), f"{self.shared_share:.0%}", f"{self.error:.1e}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    seeds = range(seed, seed + (1 if quick else 12))
    return [Case(each, precision) for precision in ("fp32", "bf16") for each in seeds]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    keys: dict[str, Any] = {"pack_cases": len(results)}
    for name, precision in (("pack_max_error", "fp32"), ("pack_max_error_bf16", "bf16")):
        if errors := [result.error for result in results if result.precision == precision]:
            keys[name] = max(errors)
    return keys


def measure(case: Case, seconds: float) -> Result:
    params = drawn(case.seed, NUM + LATE, STEPS, case.precision)
    params[1] |= DIVERGES
    stops = {2: 2}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [job_of(number, each, Path(folder, "together")) for number, each in enumerate(params)]
        reporters, pack = together(jobs[:NUM], stops, jobs[NUM:])
        expected = [
            alone(job_of(number, each, Path(folder, "alone")), stops.get(number)) for number, each in enumerate(params)
        ]
    error, num = 0.0, 0
    for mine, other in zip(reporters, expected, strict=True):
        if [step for step, _ in mine.reports] != [step for step, _ in other.reports]:
            raise RuntimeError(f"a member reports steps {mine.reports}, and alone {other.reports}")
        for (_, values), (_, values_alone) in zip(mine.reports, other.reports, strict=True):
            error, num = max(error, *(abs(values[name] - values_alone[name]) for name in values)), num + 1
    made = sum(num_members * passes for num_members, passes in pack.passes.items())
    shared = sum(num_members * passes for num_members, passes in pack.passes.items() if num_members > 1)
    return Result(case.precision, num, shared / max(1, made), error)
