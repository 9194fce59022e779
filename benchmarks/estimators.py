"""How good the estimator is: every case, the bad ones too, and last the figures as one line of JSON.

Peaks against what real steps take from the C library, and what each rank of a gang takes; "it fits" against real steps
under an enforced limit; the estimator's shortcuts against direct traces; seconds of a step against real ones on this
CPU; how long it all takes, for one candidate and for a thousand.

All cases take an hour or so of one core. Run them in pieces: --cases, and --results, with which a later run goes on.
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small cases of each: does it work, not how well")
    parser.add_argument("--seed", type=int, default=0, help="of the points that are drawn")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--cases", default="", metavar="WORDS", help="only those that have these words in their name")
    parser.add_argument("--seconds", type=float, default=600, help="by the clock, for what a case runs for real (600)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep them; what is in it is not run again")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write all results as a page of Markdown")
    options = parser.parse_args()
    if options.quick and (options.results or options.write):
        parser.error("--quick is not for keeping: leave it out, and choose by --only and --cases")
    if options.quick:
        print("quick: small cases only, to see that all works; their figures do not say how good the estimator is")
        if options.only in (None, "pace"):
            pace.calibration()  # on another core meanwhile
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
    """Print each case as it ends; one that has failed before is tried again."""
    widths = [max(len(word), 9) for word in part.HEADER[:-1]]
    print(_aligned(part.HEADER, widths))
    for case in wanted:
        known = results.of(name, str(case))
        if known is None or known.failure:
            known = find(name, part, case, seconds)
            results.add(known)
        print(_aligned([*known.row, known.case], widths) if known.row else f"{case}: {known.failure}", flush=True)


def find(name: str, part: ModuleType, case: Any, seconds: float) -> Finding:
    began = time.monotonic()
    try:
        result = part.measure(case, seconds)
    except Exception as error:  # of whatever kind: hours of other cases must not be lost by one
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding(name, str(case), failure=failure, seconds=time.monotonic() - began)
    return Finding(name, str(case), result.row(), asdict(result), seconds=time.monotonic() - began)


def figures(part: ModuleType, found: Sequence[Finding]) -> dict[str, float]:
    done = [part.Result(**finding.values) for finding in found if not finding.failure]
    return part.figures(done) if done else {}


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    *numbers, case = cells
    return "  ".join([*(number.rjust(width) for number, width in zip(numbers, widths, strict=True)), case])


if __name__ == "__main__":
    main()
