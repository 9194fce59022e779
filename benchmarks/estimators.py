"""Measures how good the estimator is. Prints every case, good or bad, and last the figures as one line of JSON.

It compares predicted peaks with the memory that real steps allocate, for single ranks and for each rank of a gang;
the answer "it fits" with real steps under an enforced limit; the estimator's shortcuts with direct traces; and
predicted seconds of a step with real ones on this CPU. It also measures how long estimates take, for one candidate and
for a thousand.

All cases together take about an hour on one core. Use --cases to run a part of them, and --results to continue later.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.estimating import envelope, oom, pace, ranks, screening, speed, truth
from benchmarks.estimating.results import Finding, Results, Section, page

COMMAND = "python -m benchmarks.estimators --results FILE --write PAGE"
PARTS: Mapping[str, ModuleType] = {
    "truth": truth,
    "ranks": ranks,
    "oom": oom,
    "envelope": envelope,
    "pace": pace,
    "speed": speed,
    "screening": screening,
}


def main() -> None:
    """Run the chosen cases, print their figures as JSON and, with ``--write``, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only a few small cases, to check that everything runs")
    parser.add_argument("--seed", type=int, default=0, help="seed for the random cases (0)")
    parser.add_argument("--only", choices=PARTS, help="run only this part")
    parser.add_argument("--cases", default="", metavar="WORDS", help="run only cases with these words in their name")
    parser.add_argument("--seconds", type=float, default=600, help="time limit for the real run of a case (600 s)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep results here; cases in it are not run again")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write all results to this Markdown page")
    options = parser.parse_args()
    if options.quick and (options.results or options.write):
        parser.error("results of --quick cannot be kept: leave out --quick, and choose cases by --only and --cases")
    if options.quick:
        print("quick: small cases, to check that everything runs; their figures do not say how good the estimator is")
        if options.only in (None, "pace"):
            pace.calibration()  # starts in the background, on another core
    chosen = [options.only] if options.only else list(PARTS)
    results = Results(options.results)
    sections = {}
    for name, part in PARTS.items():
        every = part.cases(options.quick, options.seed)
        if name in chosen:
            run(name, part, [case for case in every if options.cases in str(case)], results, options.seconds)
        found = [finding for case in every if (finding := results.of(name, str(case)))]
        sections[name] = Section(part.TITLE, part.ABOUT, part.HEADER, len(every), found, figures(part, found))
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(page("How good the estimator is", COMMAND, list(sections.values())))
    print(json.dumps({figure: value for name in chosen for figure, value in sections[name].figures.items()}))


def run(name: str, part: ModuleType, wanted: Sequence[Any], results: Results, seconds: float) -> None:
    """Run ``wanted`` and print each case as it ends; kept results are not run again, except failures."""
    widths = [max(len(word), 9) for word in part.HEADER[:-1]]
    print(_aligned(part.HEADER, widths))
    for case in wanted:
        known = results.of(name, str(case))
        if known is None or known.failure:
            known = find(name, part, case, seconds)
            results.add(known)
        print(_aligned([*known.row, known.case], widths) if known.row else f"{case}: {known.failure}", flush=True)


def find(name: str, part: ModuleType, case: Any, seconds: float) -> Finding:
    """The finding of one case, which says why if the case fails; ``seconds`` limits its real run."""
    began = time.monotonic()
    try:
        result = part.measure(case, seconds)
    except Exception as error:  # any kind: one case must not end a run of many hours
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding(name, str(case), failure=failure, seconds=time.monotonic() - began)
    return Finding(name, str(case), result.row(), asdict(result), seconds=time.monotonic() - began)


def figures(part: ModuleType, found: Sequence[Finding]) -> dict[str, float]:
    """The part's figures over all findings that have a result; empty if none has."""
    done = [part.Result(**finding.values) for finding in found if not finding.failure]
    return part.figures(done) if done else {}


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    *numbers, case = cells
    return "  ".join([*(number.rjust(width) for number, width in zip(numbers, widths, strict=True)), case])


if __name__ == "__main__":
    main()
