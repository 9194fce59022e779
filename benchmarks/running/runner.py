"""The command line that benchmarks of several parts share: choose parts and cases, keep results, write a page."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.running.part import HasNotes, HasOptions, HasOrder, Part
from benchmarks.running.results import Finding, Results, Section, page


def run_parts(
    about: str | None,
    title: str,
    command: str,
    parts: Mapping[str, Part],
    seconds: float,
    begin_quick: Callable[[list[str]], None] = lambda chosen: None,
) -> None:
    """Run the chosen cases, print each and last the figures as one line of JSON, and write the page if asked to.

    ``about`` describes the benchmark in its help; a case is limited to ``seconds`` unless the user says otherwise.
    ``begin_quick`` is called with the chosen parts before a quick run.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only a few small cases, to check that everything runs")
    parser.add_argument("--seed", type=int, default=0, help="seed for what is drawn at random (0)")
    parser.add_argument("--only", choices=parts, help="run only this part")
    parser.add_argument("--cases", default="", metavar="WORDS", help="run only cases with these words in their name")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run only every Nth case of a part (1)")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"time limit of a case ({seconds:.0f} s)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep results here; cases in it are not run again")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write all results to this Markdown page")
    for part in parts.values():
        for option, words in _options(part).items():
            parser.add_argument(f"--{option}", type=Path, metavar="DIR", help=words)
    options = parser.parse_args()
    if options.quick and (options.results or options.write):
        parser.error("results of --quick cannot be kept: leave out --quick, and choose cases by --only and --cases")
    chosen = [options.only] if options.only else list(parts)
    if options.quick:
        begin_quick(chosen)
    results = Results(options.results)
    sections = {}
    closing: list[str] = []
    for name, part in parts.items():
        folders = {name: getattr(options, name) for name in _options(part)}
        every = part.cases(options.quick, options.seed, **folders)
        if name in chosen:
            cases = [case for case in every[:: options.every] if options.cases in str(case)]
            run(name, part, cases, results, options.seconds)
        findings = [finding for case in every if (finding := results.of(name, str(case)))]
        findings = part.in_order(findings) if isinstance(part, HasOrder) else findings
        sections[name] = Section(part.TITLE, part.ABOUT, part.HEADER, len(every), findings, figures(part, findings))
        if name in chosen:
            done = [finding for finding in findings if not finding.failure]
            closing += [*(part.notes(done) if isinstance(part, HasNotes) else []), *failures(name, findings)]
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(page(title, command, list(sections.values())))
    for line in closing:
        print(line)
    print(json.dumps({figure: value for name in chosen for figure, value in sections[name].figures.items()}))


def run(name: str, part: Part, cases: Sequence[Any], results: Results, seconds: float) -> None:
    """Run ``wanted`` and print each case as it ends; kept results are not run again, except failures."""
    widths = [max(len(word), 9) for word in part.HEADER[:-1]]
    print(_aligned(part.HEADER, widths))
    for case in cases:
        finding = results.of(name, str(case))
        if finding is None or finding.failure:
            finding = find(name, part, case, seconds)
            results.add(finding)
        cells = [*finding.row, finding.case]
        print(_aligned(cells, widths) if finding.row else f"{case}: {finding.failure}", flush=True)


def find(name: str, part: Part, case: Any, seconds: float) -> Finding:
    """The finding of one case, which says why if the case fails; ``seconds`` limits its real run."""
    began = time.monotonic()
    try:
        result = part.measure(case, seconds)
    except Exception as error:  # any kind: one case must not end a run of many hours
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding(name, str(case), failure=failure, seconds=time.monotonic() - began)
    return Finding(name, str(case), result.row(), asdict(result), seconds=time.monotonic() - began)


def figures(part: Part, findings: Sequence[Finding]) -> Mapping[str, Any]:
    """The part's figures over all findings that have a result; empty if none has."""
    done = [part.Result(**finding.values) for finding in findings if not finding.failure]
    return part.figures(done) if done else {}


def failures(name: str, findings: Sequence[Finding]) -> list[str]:
    """A line on the cases of a part that have failed, which no figure shows; none if all have a result."""
    failed = [finding.case for finding in findings if finding.failure]
    return [f"{name}: {len(failed)} of {len(findings)} cases have no result: {'; '.join(failed)}"] if failed else []


def _options(part: Part) -> Mapping[str, str]:
    return part.OPTIONS if isinstance(part, HasOptions) else {}


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    *numbers, case = cells
    return "  ".join([*(number.rjust(width) for number, width in zip(numbers, widths, strict=True)), case])
