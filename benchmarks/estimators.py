"""Measures how good the estimator is. Prints every case, good or bad, and last the figures as one line of JSON.

It compares predicted peaks with the memory that real steps allocate, for single ranks and for each rank of a gang;
the answer "it fits" with real steps under an enforced limit; the estimator's shortcuts with direct traces; peaks
predicted with knowledge of a CPU's kernels and without it; and predicted seconds of a step with real ones on this CPU.
It also measures how long estimates take, for one candidate and for a thousand.

All cases together take about an hour on one core. Use --cases to run a part of them, and --results to continue later.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.estimating import envelope, oom, pace, ranks, screening, speed, truth, unknown
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.estimators --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "truth": truth,
    "unknown": unknown,
    "ranks": ranks,
    "oom": oom,
    "envelope": envelope,
    "pace": pace,
    "speed": speed,
    "screening": screening,
}


def _begin_quick(chosen: list[str]) -> None:
    print("quick: small cases, to check that everything runs; their figures do not say how good the estimator is")
    if "pace" in chosen:
        pace.calibration()  # starts in the background, on another core


if __name__ == "__main__":
    run_parts(__doc__, "How good the estimator is", COMMAND, PARTS, 600, _begin_quick)
