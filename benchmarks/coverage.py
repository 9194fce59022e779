"""Measures what the estimator covers. Prints every case, refused ones too, and last the figures as one line of JSON.

It asks for an estimate of families of ``transformers`` that nobody chose for ScaMP, and compares predicted peaks of a
part of them, and of models of torch alone, with what real steps allocate, in single ranks and in gangs. It runs the
largest micro-batches that the estimator says fit, under an enforced limit. It also makes mistakes, and counts the clear
answers.

Use --only, --cases and --results to run a part of the cases and to continue later.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from benchmarks.covering import families_part, gangs_part, largest_part, mistakes, peaks_part
from benchmarks.estimating.results import Results, Section, page
from benchmarks.estimators import figures, run

COMMAND = "python -m benchmarks.coverage --results FILE --write PAGE"
PARTS: Mapping[str, ModuleType] = {
    "families": families_part,
    "peaks": peaks_part,
    "gangs": gangs_part,
    "largest": largest_part,
    "mistakes": mistakes,
}


def main() -> None:
    """Run the chosen cases, print what was refused and the figures as JSON and, with ``--write``, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only a few cases, to check that everything runs")
    parser.add_argument("--seed", type=int, default=0, help="seed for the families whose peaks are counted (0)")
    parser.add_argument("--only", choices=PARTS, help="run only this part")
    parser.add_argument("--cases", default="", metavar="WORDS", help="run only cases with these words in their name")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run only every Nth case of a part (1)")
    parser.add_argument("--seconds", type=float, default=300, help="time limit for the real run of a case (300 s)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep results here; cases in it are not run again")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write all results to this Markdown page")
    options = parser.parse_args()
    if options.quick and (options.results or options.write):
        parser.error("results of --quick cannot be kept: leave out --quick, and choose cases by --only and --cases")
    chosen = [options.only] if options.only else list(PARTS)
    results = Results(options.results)
    sections, closing = {}, []
    for name, part in PARTS.items():
        every = part.cases(options.quick, options.seed)
        if name in chosen:
            wanted = [case for case in every[:: options.every] if options.cases in str(case)]
            run(name, part, wanted, results, options.seconds)
        found = [finding for case in every if (finding := results.of(name, str(case)))]
        sections[name] = Section(part.TITLE, part.ABOUT, part.HEADER, len(every), found, figures(part, found))
        closing += part.notes(found) if name in chosen else []
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(page("What the estimator covers", COMMAND, list(sections.values())))
    print("\n".join(closing))
    print(json.dumps({figure: value for name in chosen for figure, value in sections[name].figures.items()}))


if __name__ == "__main__":
    main()
