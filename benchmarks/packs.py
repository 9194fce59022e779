"""Measures packs of trials that share a process and its frozen weights: curves, memory, seconds of a study, and kills.

Prints every case, and last the figures as one line of JSON. Other work on the machine falsifies seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts
from benchmarks.sharing import curves_part, kills_part, memory_part, study_part

COMMAND = "python -m benchmarks.packs --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {"curves": curves_part, "memory": memory_part, "study": study_part, "kills": kills_part}


if __name__ == "__main__":
    run_parts(__doc__, "Packs of adapters", COMMAND, PARTS, 600)
