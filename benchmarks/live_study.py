"""Measures live studies on virtual devices: against a static policy and Ray Tune, and launches.

Prints every case, and last the figures as one line of JSON. Other work on the machine falsifies them.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.living import launch_part, study_part
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.live_study --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "study": study_part,
    "launch": launch_part,
}


if __name__ == "__main__":
    run_parts(__doc__, "Live studies", COMMAND, PARTS, 600)
