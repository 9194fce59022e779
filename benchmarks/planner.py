"""Measures how good plans are: predicted seconds against those of real ranks, and the search that chooses them.

Prints every case, and last the figures as one line of JSON. Use --only, --cases and --results to run a part of the
cases and to continue later.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.planning import gangs_part, search_part, simulator_part
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.planner --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "search": search_part,
    "simulator": simulator_part,
    "gangs": gangs_part,
}


if __name__ == "__main__":
    run_parts(__doc__, "How good plans are", COMMAND, PARTS, 120)
