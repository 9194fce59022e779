"""Counts what is rehearsed of clusters that are not here: GPUs, schedulers, failed starts, backups, object storage.

Prints every case, and last the figures as one line of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.hosting import rehearsals_part, storage_part
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.clusters --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {"rehearsals": rehearsals_part, "storage": storage_part}


if __name__ == "__main__":
    run_parts(__doc__, "Clusters, rehearsed", COMMAND, PARTS, 900)
