"""Compares predictions for GPUs with measurements that others have published. It needs no GPU.

Prints every row, good or bad, and last the figures as one line of JSON. Rows that are cited in
``benchmarks/publishing`` need nothing else; --tables reads more of them from a checkout. Models are traced with their
real sizes, on fake tensors, which takes about a minute for each model and plan; traces are kept for later runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.publishing import memory_part
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.published --tables DIR --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {"memory": memory_part}


if __name__ == "__main__":
    run_parts(__doc__, "Predictions for GPUs and published measurements", COMMAND, PARTS, 600)
