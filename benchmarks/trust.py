"""Measures what ScaMP's promises are worth: simulated faults, faults put into its own code, a hostile workload,
and an API under load.

Prints every case, and last the figures as one line of JSON. Use --only, --cases and --results to run a part of the
cases and to continue later.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts
from benchmarks.trusting import (
    api_part,
    hostile_part,
    hosts_part,
    kills_part,
    mutants_part,
    page_part,
    scale_part,
    seeds_part,
)

COMMAND = "python -m benchmarks.trust --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "seeds": seeds_part,
    "mutants": mutants_part,
    "kills": kills_part,
    "hosts": hosts_part,
    "hostile": hostile_part,
    "scale": scale_part,
    "api": api_part,
    "page": page_part,
}


def main() -> None:
    """Run the chosen cases."""
    run_parts(__doc__, "What the promises are worth", COMMAND, PARTS, 600)


if __name__ == "__main__":
    main()
