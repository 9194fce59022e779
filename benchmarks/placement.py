"""Measures how well and how fast gangs are packed: studies in virtual time, proven optima, single
placements, and simulations of large clusters.

Prints every case, and last the figures as one line of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.packing import (
    kinds_part,
    mixed_part,
    optimum_part,
    scale_part,
    shares_part,
    space_part,
    speed_part,
    studies_part,
    traces_part,
)
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.placement --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "studies": studies_part,
    "optimum": optimum_part,
    "speed": speed_part,
    "scale": scale_part,
    "traces": traces_part,
    "mixed": mixed_part,
    "kinds": kinds_part,
    "shares": shares_part,
    "space": space_part,
}


if __name__ == "__main__":
    run_parts(__doc__, "How well gangs are packed", COMMAND, PARTS, 120)
