"""How many metrics the study database makes durable in a second, and how long one takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.living.drawn import NUM_DEVICES
from benchmarks.running.process import last_line
from benchmarks.running.results import Finding

TITLE = "Durable metrics"
HEADER = ("rows/s", "p99 ms", "case")
PACED = 2_000
ABOUT = f"""\
{NUM_DEVICES} processes report metrics as ranks do: their reports pass through the sink, an actor of Ray, into SQLite
in a file, which is synced at each commit. *Rows/s* counts from the first report until all are durable. *p99*: from
the call that reports a row until the database has acknowledged it. At full speed rows mostly wait in the queues of
the ranks, so the figure for latency is that at {PACED:,} rows a second of each."""


@dataclass(frozen=True)
class Case:
    """Processes that report as fast as they can (a rate of 0), or this many rows a second each."""

    rate: int
    num_rows: int

    def __str__(self) -> str:
        return f"{self.rate:,} rows/s of each" if self.rate else "full speed"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """Full speed, and a steady rate; if ``quick`` the latter alone, for a second."""
    return [Case(PACED, PACED)] if quick else [Case(0, 100_000), Case(PACED, 10 * PACED)]


@dataclass(frozen=True, slots=True)
class Result:
    """Rows that became durable in a second, and milliseconds of the slowest hundredth."""

    rate: int
    per_second: float
    p99_ms: float

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        return [f"{self.per_second:,.0f}", f"{self.p99_ms:.0f}"]


def measure(case: Case, seconds: float) -> Result:
    """Report in processes of their own."""
    arguments = (str(NUM_DEVICES), str(case.num_rows), str(case.rate))
    answer = json.loads(last_line("-m", "benchmarks.living.with_sink", *arguments, seconds=seconds))
    return Result(case.rate, NUM_DEVICES * case.num_rows / answer["seconds"], 1000 * answer["p99_seconds"])


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Rows a second at full speed, and the latency at the steady rate."""
    values = {}
    for result in results:
        if result.rate:
            values["metrics_p99_ms"] = result.p99_ms
        else:
            values["metrics_rows_per_second"] = result.per_second
    return values


def notes(findings: Sequence[Finding]) -> list[str]:
    """Why cases failed."""
    return [f"  {finding.case}: {finding.failure}" for finding in findings if finding.failure]
