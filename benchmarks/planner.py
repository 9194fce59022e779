"""Measures how good plans are: predicted seconds against those of real ranks, and the engines that choose plans.

Prints every case, and last the figures as one line of JSON. Use --only, --cases and --results to run a part of the
cases and to continue later.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from benchmarks.estimating.results import Results, Section, page
from benchmarks.estimators import figures, run
from benchmarks.planning import gangs_part, plans_part, search_part, simulator_part

COMMAND = "python -m benchmarks.planner --results FILE --write PAGE"
PARTS: Mapping[str, ModuleType] = {
    "search": search_part,
    "plans": plans_part,
    "simulator": simulator_part,
    "gangs": gangs_part,
}


def main() -> None:
    """Run the chosen cases, print the figures as JSON and, with ``--write``, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only a few small cases, to check that everything runs")
    parser.add_argument("--seed", type=int, default=0, help="seed for what is drawn at random (0)")
    parser.add_argument("--only", choices=PARTS, help="run only this part")
    parser.add_argument("--cases", default="", metavar="WORDS", help="run only cases with these words in their name")
    parser.add_argument("--seconds", type=float, default=120, help="time limit for the real run of a case (120 s)")
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
            run(name, part, [case for case in every if options.cases in str(case)], results, options.seconds)
        found = [finding for case in every if (finding := results.of(name, str(case)))]
        sections[name] = Section(part.TITLE, part.ABOUT, part.HEADER, len(every), found, figures(part, found))
        closing += part.notes(found) if name in chosen else []
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        plans_part.write_pictures(sections["plans"].findings, options.write.parent / plans_part.PICTURES)
        options.write.write_text(page("How good plans are", COMMAND, list(sections.values())))
    print("\n".join(closing))
    print(json.dumps({figure: value for name in chosen for figure, value in sections[name].figures.items()}))


if __name__ == "__main__":
    main()
