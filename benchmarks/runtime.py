"""Measures the training of workloads: the same curve under every plan, its memory, its speed, and what ports cost.

Prints every case, and last the figures as one line of JSON. Use --only, --cases and --results to run a part of the
cases and to continue later.

A part is a module as ``benchmarks.running.runner`` describes it, and a line of ``PARTS``.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.features import drawn_part, features_part, plans_part, trainings_part
from benchmarks.porting import ports_part
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts
from benchmarks.throughput import communication_part, throughput_part, unlike_part

COMMAND = "python -m benchmarks.runtime --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "features": features_part,
    "drawn": drawn_part,
    "plans": plans_part,
    "ports": ports_part,
    "throughput": throughput_part,
    "communication": communication_part,
    "unlike": unlike_part,
    "papers": trainings_part,
}


if __name__ == "__main__":
    run_parts(__doc__, "Trainings under every plan", COMMAND, PARTS, 300)
